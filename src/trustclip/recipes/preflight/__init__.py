"""Checks before a training starts: its plan, memory, longest batch and ranks."""
