"""What runs say in words: figures of runs and groups in, one list of findings out."""
