"""Features of texts that are numbers, for tests that need no vocabulary."""

from input_pipelines.examples import Example
from input_pipelines.features import Features


class Numbers:
    """A tokenizer of numbers: "7 8" is [7, 8]."""

    cls_id, sep_id = 101, 102
    do_lower_case = True

    def encode(self, text):
        return [int(word) for word in text.split()]


def features_of(*examples, length=8):
    """Features of (text_a, text_b, label) tuples."""
    return Features([Example(*example) for example in examples], Numbers(), length)
