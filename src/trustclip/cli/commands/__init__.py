"""The commands behind ``trustclip``, by what they are about."""
