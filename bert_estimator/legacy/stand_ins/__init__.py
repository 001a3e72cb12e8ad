"""What stands for modules of TensorFlow 1 that no longer exist."""
