"""The methods, one per file: adding a file here adds a method, with no other change."""
