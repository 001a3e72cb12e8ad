"""What is built into graphs that take texts: WordPiece, and the inputs and outputs around it."""
