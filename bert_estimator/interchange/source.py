"""What every format is read as: weights under google-research/bert's names."""

import dataclasses
from collections.abc import Callable

from bert_estimator.bert_config import BertConfig

TF1, HUGGING_FACE = "tf1", "hf"


@dataclasses.dataclass(frozen=True)
class Source:
    """Weights that can be read, whatever format they are stored in.

    Attributes:
      path: what the user called it.
      format: TF1 or HUGGING_FACE.
      shapes: name -> shape, a list of ints, of each weight, under google-research/bert's names.
      read: function name -> numpy array of that shape.
      left_out: names of what is there and no weight: optimizer slots, counters, second copies.
      config: `BertConfig`, or None where none lies beside the weights.
      vocab_file: path, or None.
      labels: names of the classifier's outputs in their order; empty where they are not known.
      do_lower_case: whether text was lower-cased for it; None where nothing beside it says so.
    """

    path: str
    format: str
    shapes: dict
    read: Callable
    left_out: tuple = ()
    config: BertConfig | None = None
    vocab_file: str | None = None
    labels: tuple = ()
    do_lower_case: bool | None = None
