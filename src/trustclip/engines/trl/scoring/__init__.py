"""Scoring: what a pass of the model computes for the loss, and what it need not compute."""
