"""A few utilities that every room may use: text, terminals, files, names, imports."""
