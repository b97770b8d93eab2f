"""Sampling and grading of problem sets."""
