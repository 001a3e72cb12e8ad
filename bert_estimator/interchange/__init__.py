"""BERT models in the formats that people have: TF1 checkpoints, and Hugging Face's files.

`open_source` reads all of them as a `Source`: variables under google-research/bert's names.
`python -m bert_estimator.interchange SOURCE TARGET` converts one format to the other.
"""

from bert_estimator.interchange.opening import open_source
from bert_estimator.interchange.source import Source

__all__ = ["Source", "open_source"]
