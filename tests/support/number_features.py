"""Makes features of texts that are numbers, for tests without a vocabulary."""

from bert_estimator.tokenization import Casing
from input_pipelines.tasks.examples import Example
from input_pipelines.tasks.features import Features


class Numbers:
    """Turns texts of numbers into ids: "7 8" becomes [7, 8]."""

    cls_id, sep_id, unk_id = 101, 102, 100
    casing = Casing(True)

    def encode(self, text):
        return [int(word) for word in text.split()]


def features_of(*examples, length=8):
    """Returns the features of (text_a, text_b, label) tuples."""
    return Features([Example(*example) for example in examples], Numbers(), length)
