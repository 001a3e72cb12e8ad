"""The names and shapes of BERT's variables, against the graph that makes them."""

import dataclasses
import re

import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import heads, modeling
from bert_estimator.interchange import network_variables

CONFIG = modeling.BertConfig(
    vocab_size=11,
    hidden_size=6,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=7,
    max_position_embeddings=5,
    type_vocab_size=3,
)


def shapes(*names, num_labels=4, config=CONFIG):
    """Returns the shapes of the encoder and of the named heads."""
    all_heads = network_variables.head_shapes(config, num_labels)
    found = network_variables.encoder_shapes(config)
    for name in names:
        found.update(all_heads[name])
    return found


@pytest.mark.parametrize("changes", [{}, {"embedding_size": 4, "num_hidden_groups": 1}])
def test_names_and_shapes_are_those_of_the_graph(changes):
    config = dataclasses.replace(CONFIG, **changes)
    with tf.Graph().as_default():
        model = modeling.BertModel(config, False, tf.zeros([2, 4], tf.int32))
        encoder = {v.op.name: v.shape.as_list() for v in tf.trainable_variables()}
        heads.masked_lm_logits(model, tf.zeros([2, 1], tf.int32))
        heads.next_sentence_logits(model)
        everything = {v.op.name: v.shape.as_list() for v in tf.trainable_variables()}
    assert shapes(config=config) == encoder
    assert shapes("cls/predictions", "cls/seq_relationship", config=config) == everything


@pytest.mark.parametrize(
    "heads", [(), ("cls/predictions",), ("cls/predictions", "cls/seq_relationship")]
)
def test_heads_are_found(heads):
    assert network_variables.check(CONFIG, shapes(*heads), "here") == heads


def test_a_classifier_has_any_number_of_labels():
    for labels in (1, 9):
        found = shapes("output_weights", num_labels=labels)
        assert network_variables.check(CONFIG, found, "here") == ("output_weights",)


def test_the_pooler_may_be_missing_but_not_half_of_it():
    found = {name: s for name, s in shapes().items() if not name.startswith("bert/pooler/")}
    assert network_variables.check(CONFIG, found, "here") == ()
    found["bert/pooler/dense/bias"] = [6]
    with pytest.raises(ValueError, match=r"\n  bert/pooler/dense/kernel \[6, 6\]: missing$"):
        network_variables.check(CONFIG, found, "here")


def test_all_that_is_wrong_is_named():
    found = shapes("cls/seq_relationship", "output_weights")
    found["bert/encoder/layer_2/output/dense/bias"] = [6]
    found["bert/embeddings/word_embeddings"] = [12, 6]
    found["output_bias"] = [5]
    del found["cls/seq_relationship/output_bias"]
    with pytest.raises(
        ValueError,
        match=r"^here does not hold a BERT of its configuration, with vocab_size=11, hidden_size=6"
        r", num_hidden_layers=2, .* \(a size that the file does not have is the default\):\n",
    ) as error:
        network_variables.check(CONFIG, found, "here")
    assert str(error.value).splitlines()[1:] == [
        "  bert/encoder/layer_2/output/dense/bias [6]: unknown",
        "  bert/embeddings/word_embeddings: [12, 6], but the configuration says [11, 6]",
        "  cls/seq_relationship/output_bias [2]: missing",
        "  output_bias: [5], but the configuration says [4]",
    ]


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
    return next(
        (axis for pattern, axis in network_variables.SHARDING if re.search(pattern, name)), None
    )


@pytest.mark.parametrize("name", SPLIT)
def test_where_a_variable_is_split(name):
    assert axis_of(name) == SPLIT[name]
