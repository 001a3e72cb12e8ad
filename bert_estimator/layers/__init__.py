"""The parts that modeling.py is made of.

They are initializers, embeddings, biases, activations, dropout, recomputation, and fused
operations.
"""
