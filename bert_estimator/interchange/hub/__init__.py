"""TF Hub's modules, which are read."""
