"""Other projects' own tests, run on the classes of trustclip: ``make peers``."""
