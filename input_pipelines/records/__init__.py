"""Records to batches."""
