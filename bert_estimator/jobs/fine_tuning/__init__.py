"""What run_classifier.py and run_squad.py run."""
