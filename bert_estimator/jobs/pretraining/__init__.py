"""What run_pretraining.py runs."""
