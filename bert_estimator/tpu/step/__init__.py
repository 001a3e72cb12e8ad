"""One step: as a TF1 session runs it, or as one XLA program per core."""
