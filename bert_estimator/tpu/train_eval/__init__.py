"""Evaluations and exports while training runs."""
