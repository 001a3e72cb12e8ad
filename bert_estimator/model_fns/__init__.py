"""The model_fns, and what they share: update, metrics, reports, initial checkpoints."""
