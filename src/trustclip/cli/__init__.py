"""The command-line interface ``trustclip``."""
