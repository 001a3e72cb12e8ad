"""At which rate weights are trained, by their names."""

import dataclasses

import pytest

from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import network_variables
from bert_estimator.model_fns import depth
from bert_estimator.system.errors import ArgumentError

TWO_LAYERS = BertConfig(20, hidden_size=8, num_hidden_layers=2, num_attention_heads=2)
ELECTRA = dataclasses.replace(TWO_LAYERS, embedding_size=4)
ALBERT = dataclasses.replace(ELECTRA, num_hidden_groups=1)


def test_layers_that_share_weights_have_one_rate():
    rule = "the layers of the network share their weights (num_hidden_groups), "
    with pytest.raises(ArgumentError) as error:
        depth.rate_scale(0.5, ALBERT)
    assert str(error.value) == f"layerwise_lr_decay=0.5: {rule}and so have one rate; leave it out"


def test_layerwise_decay_is_electras():
    scale = depth.rate_scale(0.5, TWO_LAYERS)
    assert scale("bert/embeddings/word_embeddings") == 0.5**4
    assert scale(f"{network_variables.MAPPING}/kernel") == 0.5**4
    assert scale("bert/encoder/layer_0/output/dense/kernel") == 0.5**3
    assert scale("bert/encoder/layer_1/attention/self/query/bias") == 0.5**2
    assert scale("bert/pooler/dense/kernel") == scale("output_weights") == 1.0
    assert depth.rate_scale(1.0, TWO_LAYERS) is None
