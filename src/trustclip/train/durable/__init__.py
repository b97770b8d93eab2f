"""Training that continues exactly after a kill, independent of any engine."""
