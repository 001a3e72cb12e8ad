"""What is built into graphs that take texts: tokenizers, windows, search."""
