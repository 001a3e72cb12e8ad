"""Task files to features to batches."""
