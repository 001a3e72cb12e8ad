"""The output side: trained models answer texts."""
