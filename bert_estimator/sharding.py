"""How BERT is split over the cores of a replica: attention heads, feed-forward columns, words.

A matrix that makes heads or feed-forward units is split by its columns, the one that consumes
them by its rows, so that between the two every core works on its own share alone, and one sum
over the cores closes each pair (Shoeybi et al., "Megatron-LM", 2019, section 3). Optimizer slots
have their variable's name within theirs, and go with it.
"""

# (pattern of variable names, axis that is split), for `tpu.TPUEstimator(sharding=...)`.
BERT = (
    (r"attention/self/(query|key|value)/kernel", 1),
    (r"attention/self/(query|key|value)/bias", 0),
    (r"attention/output/dense/kernel", 0),
    (r"intermediate/dense/kernel", 1),
    (r"intermediate/dense/bias", 0),
    (r"layer_\d+/output/dense/kernel", 0),
    (r"embeddings/word_embeddings", 0),
    (r"cls/predictions/output_bias", 0),
)
