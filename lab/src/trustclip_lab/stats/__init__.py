"""Statistics of many runs on many tasks, in addition to those of trustclip."""
