"""Compiled programs, and the devices and hosts that run them. TensorFlow is not imported here."""
