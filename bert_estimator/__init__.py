"""TPUEstimator for today's TensorFlow, and BERT with LAMB on it, in the TF1 style.

Import the parts by name: `bert_estimator.tpu` (the framework), `bert_estimator.modeling` (BERT),
`bert_estimator.optimization` (LAMB, AdamW), `bert_estimator.tokenization`. Nothing is imported
here, so that flags can be checked and text tokenized without loading TensorFlow.
"""

__version__ = "0.2.0"
