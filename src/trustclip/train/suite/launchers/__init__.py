"""Launchers: local processes, Slurm jobs or Ray tasks."""
