"""What a model may do across cores."""
