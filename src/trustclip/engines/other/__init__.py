"""Adapters of the loss alone, for engines with a documented hook; each imports its engine late."""
