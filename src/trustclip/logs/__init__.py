"""Logs of other trainers: one file reads one source, and all of them return a `Log`."""
