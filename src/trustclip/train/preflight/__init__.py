"""Checks before training starts: its plan, memory, longest batch and ranks."""
