"""Sampling: completions of the policy or of a copy, with the log-probabilities of each draw."""
