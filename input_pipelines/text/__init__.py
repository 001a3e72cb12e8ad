"""Corpus to documents."""
