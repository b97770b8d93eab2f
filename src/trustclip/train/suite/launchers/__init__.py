"""Launchers: local processes, Slurm jobs."""
