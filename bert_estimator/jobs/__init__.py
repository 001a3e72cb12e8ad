"""What a script runs: a checked configuration, and a job for each script."""
