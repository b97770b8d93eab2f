"""Recording: what an update did, token by token, for the log and the run directory."""
