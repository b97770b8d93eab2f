"""Training engines: one file or folder for each that has a hook for a loss."""
