"""Python's own text as a corpus and as tasks."""
