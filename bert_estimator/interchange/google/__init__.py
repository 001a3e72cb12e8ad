"""google-research/bert's checkpoints, and the zips that they come in."""
