"""Tests which of BERT's variables are split over the cores of a replica."""

import re

import pytest

from bert_estimator.interchange.network_variables import SHARDING

LAYER = "bert/encoder/layer_1/"
SPLIT = {
    LAYER + "attention/self/query/kernel": 1,
    LAYER + "attention/self/query/bias": 0,
    LAYER + "attention/self/key/kernel": 1,
    LAYER + "attention/self/value/kernel": 1,
    LAYER + "attention/output/dense/kernel": 0,
    LAYER + "attention/output/dense/kernel/adam_m": 0,
    LAYER + "intermediate/dense/kernel": 1,
    LAYER + "intermediate/dense/bias": 0,
    LAYER + "output/dense/kernel": 0,
    "bert/embeddings/word_embeddings": 0,
    "cls/predictions/output_bias": 0,
    LAYER + "attention/output/dense/bias": None,
    LAYER + "attention/output/LayerNorm/gamma": None,
    LAYER + "output/dense/bias": None,
    "bert/embeddings/position_embeddings": None,
    "bert/pooler/dense/kernel": None,
    "cls/predictions/transform/dense/kernel": None,
    "global_step": None,
}


def axis_of(name):
    return next((axis for pattern, axis in SHARDING if re.search(pattern, name)), None)


@pytest.mark.parametrize("name", SPLIT)
def test_where_a_variable_is_split(name):
    assert axis_of(name) == SPLIT[name]
