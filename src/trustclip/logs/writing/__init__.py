"""A run directory as it is written: by `trustclip.Recorder`, and by the training program."""
