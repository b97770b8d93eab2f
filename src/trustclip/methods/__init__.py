"""One method, one file: a new file here is a new method, with nothing else to touch."""
