"""What produces the numbers of the docs. Run a module as `python -m benchmarks.<name>`."""
