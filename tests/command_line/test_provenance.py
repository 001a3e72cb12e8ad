"""Sources of values, as text and back."""

import pytest

from bert_estimator.command_line import provenance
from bert_estimator.command_line.provenance import Origin, Source

TEXTS = {
    "flag": provenance.FLAG,
    "default": provenance.DEFAULT,
    "embedded default": provenance.EMBEDDED,
    "google-research/bert": Source(Origin.GOOGLE),
    "lamb_76min: paper": Source(Origin.PAPER, "lamb_76min"),
    "nvidia: NVIDIA": Source(Origin.NVIDIA, "nvidia"),
    "lamb_8k: assumed, scaled from 65536": Source(Origin.ASSUMED, "lamb_8k", scaled_from=65536),
    "lamb_8k: paper, scaled from 0.00353553": Source(
        Origin.PAPER, "lamb_8k", scaled_from=0.00353553
    ),
    "lamb_1k: paper, scaled from 9e-05": Source(Origin.PAPER, "lamb_1k", scaled_from=9e-5),
    "lamb_76min: scaled": Source(Origin.SCALED, "lamb_76min"),
    "lamb_76min: stage 1": Source(Origin.STAGE, "lamb_76min", stage=1),
}


@pytest.mark.parametrize("text", TEXTS)
def test_text_and_back(text):
    assert str(TEXTS[text]) == text
    assert Source.parse(text) == TEXTS[text]


def test_a_value_scaled_from_many_digits_keeps_six():
    source = Source(Origin.PAPER, "lamb_16k", scaled_from=0.0035355339)
    assert Source.parse(str(source)) == Source(Origin.PAPER, "lamb_16k", scaled_from=0.00353553)


@pytest.mark.parametrize("text", ["", "flags", "a flag", "paper, scaled", "lamb_76min: stage one"])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match="does not say where a value came from"):
        Source.parse(text)
