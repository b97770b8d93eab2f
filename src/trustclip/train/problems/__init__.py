"""Problems to train and evaluate on: generated, from files or from the hub."""
