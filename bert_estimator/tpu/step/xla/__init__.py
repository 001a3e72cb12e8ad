"""A step as one XLA program for each core."""
