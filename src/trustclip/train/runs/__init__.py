"""The run directory: writing it, reading it, and its numbers as text."""
