"""BERT's weights in the formats people have them in: TF1 checkpoints, and Hugging Face's.

`open_source` reads all of them as one thing: variables under google-research/bert's names.
`python -m bert_estimator.interchange SOURCE TARGET` converts one format to the other.
"""

from bert_estimator.interchange.opening import open_source
from bert_estimator.interchange.source import Source

__all__ = ["Source", "open_source"]
