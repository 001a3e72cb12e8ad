"""The dropout of the head of each kind of task is what the network says."""

import dataclasses

import pytest

from bert_estimator import tpu
from tests.model_fns import test_packed_rows as batches

CONFIG = dataclasses.replace(batches.CONFIG, num_hidden_layers=1, hidden_act="relu")


def loss_of(kind, is_packed, seed=1, **rates):
    """Returns the loss of the first step of training, which starts from the same weights."""
    config = dataclasses.replace(CONFIG, **rates)
    model_fn = batches.model_fn_of(kind, config=config, random_seed=seed)
    features = batches.features_of(kind, is_packed)
    return batches.run(kind, tpu.ModeKeys.TRAIN, features, model_fn)["loss"]


@pytest.mark.parametrize(
    ("kind", "is_packed"),
    [
        ("classification", False),
        ("classification", True),
        ("multi_label", False),
        ("regression", True),
        ("tagging", False),
        ("tagging", True),
    ],
)
def test_the_head_has_the_dropout_of_the_network(kind, is_packed):
    without = loss_of(kind, is_packed, classifier_dropout=0.0)
    assert loss_of(kind, is_packed, seed=2, classifier_dropout=0.0) == without
    usual, much = loss_of(kind, is_packed), loss_of(kind, is_packed, classifier_dropout=0.9)
    assert len({without, usual, much}) == 3


def test_without_saying_so_it_is_a_tenth():
    assert loss_of("regression", False) == loss_of("regression", False, classifier_dropout=0.1)


def test_the_head_of_answers_has_none():
    """So it is in google-research/bert and in transformers."""
    without = loss_of("answers", False, classifier_dropout=0.0)
    assert loss_of("answers", False, seed=2, classifier_dropout=0.9) == without
