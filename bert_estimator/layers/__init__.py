"""What modeling.py is made of: activations, dropout, recomputation, fused operations."""
