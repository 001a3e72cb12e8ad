"""What produces the numbers in README.md. Each module is run as `python -m benchmarks.<name>`."""
