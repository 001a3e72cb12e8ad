"""Documents to records."""
