"""What an input_fn's tensors must be under TPU rules; `test_estimator` has what the model gets."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from toy import make_estimator, make_model_fn

from bert_estimator import tpu
from bert_estimator.tpu.step.inputs import Inputs


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default():
        yield


def make(returned):
    return Inputs(lambda params: returned, tpu.ModeKeys.TRAIN, {}, None)


def unknown(*shape):
    return tf.placeholder(tf.float32, shape)


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        (lambda: {"x": unknown(None, 4)}, r"^features\['x'\] has shape \(None, 4\)"),
        (lambda: (tf.zeros([2]), unknown(2, None)), r"^labels has shape"),
        (lambda: (unknown(None), {"y": unknown(None)}), r"^features has shape"),
        (lambda: {"b": unknown(None), "a": unknown(None)}, r"^features\['a'\] has shape"),
        (
            lambda: {"x": (tf.zeros([2]), {"z": unknown(None)})},
            r"^features\['x'\]\[1\]\['z'\] has shape",
        ),
        (lambda: {"x": tf.placeholder(tf.int32)}, r"features\['x'\] has shape <unknown>"),
        (
            lambda: tf.data.Dataset.range(10).batch(4),
            r"^features has shape .*static.*drop_remainder=True",
        ),
        (
            lambda: {"x": tf.sparse.from_dense(tf.eye(2))},
            r"^features\['x'\] is a SparseTensor: .*dense tensor",
        ),
        (lambda: {"x": np.zeros([2])}, r"^features\['x'\] is a ndarray"),
        (lambda: {"x": tf.zeros([2]), "y": [None]}, r"^features\['y'\]\[0\] is a NoneType"),
        (lambda: (tf.zeros([2]), {"y": None}), r"^labels\['y'\] is a NoneType"),
    ],
)
def test_a_shape_that_is_not_static_is_refused_by_name(returned, named):
    with pytest.raises(ValueError, match=named):
        make(returned()).check_static_shapes()


def test_keys_without_an_order_train_in_local_mode_alone(tmp_path, rules):
    def input_fn(params):
        rows = [params["batch_size"]]
        return {"x": tf.ones(rows), 1: tf.zeros(rows), ("a", 2): tf.ones(rows)}

    def model_fn(features, mode, params):
        assert list(features) == ["x", 1, ("a", 2)]
        return make_model_fn()(features, mode, params)

    estimator = make_estimator(tmp_path, model_fn, **rules)
    if rules.get("use_tpu") is False:
        assert estimator.train(input_fn, steps=2).global_step() == 2
        assert estimator.evaluate(input_fn, steps=1)["loss"] == 1
        return
    with pytest.raises(TypeError, match=r"features has keys of several types, \['x', 1, "):
        estimator.train(input_fn, steps=2)
