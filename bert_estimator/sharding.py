"""A table of how BERT is split over the cores of a replica: by heads, feed-forward units, words.

A matrix whose outputs are heads or feed-forward units is split by its columns; the matrix that
takes them as inputs is split by its rows. Between the two every core works on its own share, and
one sum over the cores closes each pair (Shoeybi et al., "Megatron-LM", 2019, section 3). The name
of an optimizer slot contains its variable's name, so a slot is split as its variable is (all but
the column statistics of Adafactor, which have another shape).
"""

# Pairs of (pattern of variable names, axis that is split) for `tpu.TPUEstimator(sharding=...)`. If
# the cores do not divide the size of the vocabulary (BERT's 30522 tokens for 4 cores), the
# embeddings are split along the other axis, and each core has the whole bias.
BERT = (
    (r"attention/self/(query|key|value)/kernel", 1),
    (r"attention/self/(query|key|value)/bias", 0),
    (r"attention/output/dense/kernel", 0),
    (r"intermediate/dense/kernel", 1),
    (r"intermediate/dense/bias", 0),
    (r"layer_\d+/output/dense/kernel", 0),
    (r"embeddings/word_embeddings", 0),
    (r"embeddings/word_embeddings", 1),
    (r"cls/predictions/output_bias", 0),
    (r"cls/predictions/output_bias", None),
)
