"""Settings of runs and commands: each declared once, with marks beside it for whoever asks."""
