"""This machine and process: files, locks, streams, memory, and how TensorFlow is imported."""
