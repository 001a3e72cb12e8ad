"""What the scripts share: flags and their checks, what is printed, the run's directory."""
