"""Which weights are trained, and at which rate, by their names."""

import dataclasses

import pytest

from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import network_variables
from bert_estimator.model_fns import depth
from bert_estimator.system.errors import ArgumentError

TWO_LAYERS = BertConfig(20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2)
ELECTRA = dataclasses.replace(TWO_LAYERS, embedding_size=4)
ALBERT = dataclasses.replace(ELECTRA, num_hidden_groups=1)


def names_of(config):
    heads = network_variables.head_shapes(config, 3).values()
    return [*network_variables.encoder_shapes(config), *(name for head in heads for name in head)]


def kinds_of(config, trainable):
    """Returns the beginnings of the names of what is trained."""
    is_trained = depth.trained(trainable, config) or (lambda name: True)
    names = [name for name in names_of(config) if is_trained(name)]
    kinds = (
        "bert/embeddings",
        "embedding_hidden",
        "layer_0",
        "layer_1",
        "pooler",
        "cls/",
        "output_",
    )
    found = [kind for kind in kinds if any(kind in name for name in names)]
    # Of what is named, all is trained.
    named = [name for name in names_of(config) if any(kind in name for kind in found)]
    assert names == named
    return found


HEADS = ["pooler", "cls/", "output_"]


@pytest.mark.parametrize(
    ("config", "trainable", "expected"),
    [
        (TWO_LAYERS, "all", ["bert/embeddings", "layer_0", "layer_1", *HEADS]),
        (TWO_LAYERS, "head", HEADS),
        (TWO_LAYERS, "last:1", ["layer_1", *HEADS]),
        (TWO_LAYERS, "last:2", ["layer_0", "layer_1", *HEADS]),
        (ELECTRA, "all", ["bert/embeddings", "embedding_hidden", "layer_0", "layer_1", *HEADS]),
        (ELECTRA, "last:2", ["layer_0", "layer_1", *HEADS]),
        (ALBERT, "all", ["bert/embeddings", "embedding_hidden", "layer_0", *HEADS]),
        (ALBERT, "head", HEADS),
    ],
)
def test_what_is_trained(config, trainable, expected):
    assert kinds_of(config, trainable) == expected


def test_layers_that_share_weights_are_trained_together():
    rule = "the layers of the network share their weights (num_hidden_groups), "
    with pytest.raises(ArgumentError) as error:
        depth.trained("last:1", ALBERT)
    assert str(error.value) == (
        f"trainable=last:1: {rule}so the last of them cannot be trained without the others; give "
        "all, or head"
    )
    with pytest.raises(ArgumentError) as error:
        depth.rate_scale(0.5, ALBERT)
    assert str(error.value) == f"layerwise_lr_decay=0.5: {rule}and so have one rate; leave it out"


def test_more_layers_than_there_are():
    with pytest.raises(ArgumentError) as error:
        depth.trained("last:3", TWO_LAYERS)
    rule = "cannot be more than the network's num_hidden_layers, which is 2; give all"
    assert str(error.value) == f"trainable=last:3: {rule}"


@pytest.mark.parametrize(
    "text", ["", "none", "last", "last:", "last:0", "last:-1", "last:1.5", "Head"]
)
def test_other_values_are_not_known(text):
    assert not depth.TRAINABLE.fullmatch(text)


def test_layerwise_decay_is_electras():
    scale = depth.rate_scale(0.5, TWO_LAYERS)
    assert scale("bert/embeddings/word_embeddings") == 0.5**4
    assert scale(f"{network_variables.MAPPING}/kernel") == 0.5**4
    assert scale("bert/encoder/layer_0/output/dense/kernel") == 0.5**3
    assert scale("bert/encoder/layer_1/attention/self/query/bias") == 0.5**2
    assert scale("bert/pooler/dense/kernel") == scale("output_weights") == 1.0
    assert depth.rate_scale(1.0, TWO_LAYERS) is None
