"""The parts that modeling.py is made of: embeddings, initial weights, dropout, recomputation.

`kernels/` has what a session, a program for XLA and an export compute in different ways.
"""
