"""Callbacks that observe a training run: records, guards, trackers."""
