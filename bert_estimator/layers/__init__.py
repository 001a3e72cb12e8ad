"""The parts that modeling.py is made of.

They are initializers, embeddings, activations, dropout, recomputation, and fused operations.
"""
