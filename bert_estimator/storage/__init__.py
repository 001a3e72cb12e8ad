"""Files beyond this machine."""
