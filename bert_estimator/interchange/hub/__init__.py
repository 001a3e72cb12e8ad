"""TF Hub's modules, read and written."""
