"""A step as a graph in a session on this machine."""
