"""Statistics of many runs on many tasks, beside those of trustclip."""
