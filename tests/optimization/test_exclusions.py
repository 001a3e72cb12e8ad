"""Exclusions by name."""

import pytest

from bert_estimator.optimization.exclusions import LAYER_NORM_AND_BIAS, Exclusions


@pytest.mark.parametrize(
    ("name", "excluded"),
    [
        ("bert/embeddings/LayerNorm/gamma", True),
        ("bert/encoder/layer_0/output/layer_norm/beta", True),
        ("bert/encoder/layer_0/attention/self/query/bias", True),
        ("cls/predictions/output_bias", True),
        ("cls/seq_relationship/output_bias", True),
        ("cls/seq_relationship/output_weights", False),
        ("bert/encoder/layer_0/attention/self/query/kernel", False),
        ("bert/embeddings/word_embeddings", False),
    ],
)
def test_the_usual_list_on_bert(name, excluded):
    assert (name in Exclusions(LAYER_NORM_AND_BIAS, "exclude")) is excluded


def test_empty_list_excludes_nothing():
    assert "bias" not in Exclusions([], "exclude")


def test_patterns_are_regular_expressions_over_the_whole_name():
    exclude = Exclusions(["kernel$", "^cls/"], "exclude")
    assert "a/kernel" in exclude
    assert "a/kernel/b" not in exclude
    assert "cls/x" in exclude
    assert "a/cls/x" not in exclude


def test_refuses_a_bare_string():
    with pytest.raises(ValueError, match=r"skip='bias': must be a list .* write \['bias'\]"):
        Exclusions("bias", "skip")


def test_refuses_what_is_no_regular_expression():
    with pytest.raises(ValueError, match=r"skip: '\(' is no regular expression"):
        Exclusions(["bias", "("], "skip")
