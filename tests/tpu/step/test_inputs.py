"""What an input_fn's tensors must be under TPU rules, and how batches are drawn from them."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from toy import make_estimator

from bert_estimator import tpu
from bert_estimator.tpu.step.feeds import EndOfInput
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
    ],
)
def test_a_shape_that_is_not_static_is_refused_by_name(returned, named):
    with pytest.raises(ValueError, match=named):
        make(returned()).check_static_shapes()


def test_keys_without_an_order_train_in_local_mode_alone(tmp_path, rules):
    def input_fn(params):
        return {"x": tf.ones([params["batch_size"]]), 1: tf.zeros([params["batch_size"]])}

    estimator = make_estimator(tmp_path, **rules)
    if rules.get("use_tpu") is False:
        assert estimator.train(input_fn, steps=2).global_step() == 2
        return
    with pytest.raises(TypeError, match=r"features has keys of several types, \['x', 1\]"):
        estimator.train(input_fn, steps=2)


def test_placeholders_have_the_structure_dtypes_and_shapes_of_the_tensors():
    returned = (
        {"b": (tf.zeros([2], tf.bfloat16), {"d": tf.zeros([2, 3], tf.int32)}), "a": tf.zeros([4])},
        [tf.zeros([1]), tf.constant(["text"])],
    )
    features, labels, holders = make(returned).placeholders()
    assert [h.op.type for h in holders] == ["Placeholder"] * 5
    tf.nest.assert_same_structure((features, labels), returned)
    for holder, tensor in zip(
        tf.nest.flatten((features, labels)), tf.nest.flatten(returned), strict=True
    ):
        assert (holder.dtype, holder.shape) == (tensor.dtype, tensor.shape)
    assert features["b"][1]["d"] in holders


def test_draw_gives_arrays_in_the_order_of_the_placeholders_to_the_end():
    data = tf.data.Dataset.range(4).map(lambda i: ({"b": i, "a": 10 * i}, -i))
    inputs = make(data.batch(2, drop_remainder=True))
    with tf.Session() as session:
        session.run(inputs.initializer)
        draw = inputs.drawer(session)
        drawn = [[array.tolist() for array in draw()] for _ in range(2)]
        assert drawn == [[[0, 10], [0, 1], [0, -1]], [[20, 30], [2, 3], [-2, -3]]]
        with pytest.raises(EndOfInput):
            draw()
