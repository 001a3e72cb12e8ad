"""Inputs that are split over the cores of a replica: same numbers, and smaller parts."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator import tpu
from bert_estimator.tpu.program.device_loop import DeviceLoop

ROWS, STEPS = 4, 3


def input_fn(mode, params):
    """Gives batches of images with a weight for each row, and labels."""
    images = np.random.RandomState(0).normal(size=[ROWS, 8, 8, 3]).astype(np.float32)
    weights = np.arange(1, ROWS + 1, dtype=np.float32)
    data = tf.data.Dataset.from_tensor_slices(({"image": images, "weight": weights}, weights / 8))
    data = data.batch(params["batch_size"], drop_remainder=True)
    return data if mode == tpu.ModeKeys.PREDICT else data.repeat()


def model_fn(features, labels, mode, params):
    x = features["image"]
    for i in range(2):
        initializer = tf.random_normal_initializer(stddev=0.2, seed=i)
        filters = tf.get_variable(f"filters{i}", [3, 3, x.shape[-1], 4], initializer=initializer)
        x = tf.tanh(tf.nn.conv2d(x, filters, 1, "SAME"))
    x = tf.reshape(tf.nn.max_pool2d(x, 2, 2, "SAME"), [x.shape[0], -1])
    initializer = tf.random_normal_initializer(stddev=0.2, seed=2)
    y = tf.tensordot(x, tf.get_variable("dense", [x.shape[1]], initializer=initializer), 1)
    if mode == tpu.ModeKeys.PREDICT:
        return tpu.TPUEstimatorSpec(mode, predictions={"y": y})
    loss = tf.reduce_mean(features["weight"] * tf.square(y - labels))
    optimizer = tpu.CrossShardOptimizer(tf.train.MomentumOptimizer(0.01, 0.9))
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def nested_input_fn(params):
    """Gives batches of numbers, and nested labels."""
    rows = np.arange(1, ROWS + 1, dtype=np.float32)
    labels = {"a": rows / 8, "deep": {"b": np.outer(rows, rows[::-1]) / 16}}
    data = tf.data.Dataset.from_tensor_slices(({"x": rows}, labels))
    return data.batch(params["batch_size"], drop_remainder=True).repeat()


def nested_model_fn(features, labels, mode, params):
    weight = tf.get_variable("w", [ROWS], initializer=tf.zeros_initializer())
    wanted = labels["a"][:, tf.newaxis] + labels["deep"]["b"]
    loss = tf.reduce_mean(tf.square(features["x"][:, tf.newaxis] * weight - wanted))
    optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(1.0))
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def make_estimator(folder, master, dims=None, model_fn=model_fn):
    keywords = {"num_cores_per_replica": 4, "input_partition_dims": dims} if dims else {}
    return toy.make_estimator(
        folder, model_fn, master=master, train_batch_size=ROWS, eval_batch_size=ROWS,
        predict_batch_size=ROWS, iterations_per_loop=2,
        per_host_input_for_training=tpu.InputPipelineConfig.PER_HOST_V2, **keywords,
    )  # fmt: skip


def outcome(estimator, all_verbs):
    """Returns the weights, and with all verbs also a loss and predictions, after a resume."""
    estimator.train(input_fn, max_steps=1 if all_verbs else STEPS)
    others = []
    if all_verbs:
        estimator.train(input_fn, max_steps=STEPS)
        others.append(estimator.evaluate(input_fn, steps=1)["loss"])
        others += [each["y"] for each in estimator.predict(input_fn)]
    weights = {n: estimator.get_variable_value(n) for n in estimator.get_variable_names()}
    return weights, others


@pytest.fixture
def part_shapes(monkeypatch):
    """A list to which each batch adds the shapes of the parts that the first core gets."""
    shapes = []
    put_batch = DeviceLoop.put_batch

    def spying(self, arrays):
        batch = put_batch(self, arrays)
        shapes.append([list(array.addressable_shards[0].data.shape) for array in batch])
        return batch

    monkeypatch.setattr(DeviceLoop, "put_batch", spying)
    return shapes


@pytest.mark.parametrize(
    ("cores", "dims", "part", "all_verbs"),
    [
        (4, [1, 2, 2, 1], [4, 4, 4, 3], False),
        pytest.param(4, [1, 2, 2, 1], [4, 4, 4, 3], True, marks=pytest.mark.slow),
        pytest.param(8, [1, 4, 1, 1], [2, 2, 8, 3], True, marks=pytest.mark.slow),
        pytest.param(8, [2, 2, 1, 1], [1, 4, 8, 3], True, marks=pytest.mark.slow),
    ],
)
def test_parts_of_images_give_the_same_numbers(
    tmp_path, xla_runtime, part_shapes, cores, dims, part, all_verbs
):
    partition = [{"image": dims, "weight": None}, None]
    found = outcome(make_estimator(tmp_path / "cores", f"rehearse:{cores}", partition), all_verbs)
    rows = [ROWS * 4 // cores]
    assert part_shapes and all(each[:2] == [part, rows] for each in part_shapes)
    expected = outcome(make_estimator(tmp_path / "session", ""), all_verbs)
    assert np.abs(expected[0]["filters0/Momentum"]).max() > 1e-3
    for name, value in expected[0].items():
        np.testing.assert_allclose(found[0][name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("master", ["", "rehearse:4"])
@pytest.mark.parametrize(
    ("dims", "words"),
    [
        ([{"image": [1, 4, 1, 1]}, None], "for features, but its structure must be"),
        ([{"image": [4, 1], "weight": None}], r"for features\['image'\] of shape \[4, 8, 8, 3\]"),
        ([{"image": [1, 2, 1, 1], "weight": None}], "whose product is num_cores_per_replica=4"),
        ([{"image": [1, 1, 1, 4], "weight": None}], "cannot be split evenly"),
        ([{"image": 4, "weight": None}], "must be None, or a list"),
        ([None, {"a": [4]}], r"has \{'a': \[4\]\} for labels of shape \[4\]"),
    ],
)
def test_refuses(tmp_path, xla_runtime, master, dims, words):
    with pytest.raises(ValueError, match=f"input_partition_dims.*{words}"):
        make_estimator(tmp_path, master, dims).train(input_fn, max_steps=1)


@pytest.mark.parametrize("master", ["", "rehearse:4"])
@pytest.mark.parametrize(
    ("dims", "parts"),
    [
        ({"a": None, "deep": {"b": [1, 4]}}, [[4], [4, 1]]),
        ({"a": [4], "deep": {"b": [2, 2]}}, [[1], [2, 2]]),
        ({"a": [4], "deep": None}, [[1], [4, 4]]),
    ],
)
def test_nested_labels_are_split_as_the_nested_dims_say(
    tmp_path, xla_runtime, part_shapes, master, dims, parts
):
    estimator = make_estimator(tmp_path, master, [None, dims], nested_model_fn)
    estimator.train(nested_input_fn, max_steps=1)
    if master:
        assert part_shapes == [[[4], *parts]]
    x = np.arange(1, ROWS + 1)
    wanted = x[:, np.newaxis] / 8 + np.outer(x, x[::-1]) / 16
    expected = 2 * x @ wanted / wanted.size  # minus the gradient at 0
    np.testing.assert_allclose(estimator.get_variable_value("w"), expected, rtol=1e-5)


@pytest.mark.parametrize("master", ["", "rehearse:4"])
@pytest.mark.parametrize(
    ("dims", "words"),
    [
        ({"a": None}, r"has \{'a': None\} for labels, but its structure must be the inputs' own"),
        (
            {"a": None, "deep": [1, 4]},
            r"has \[1, 4\] for labels\['deep'\], but its structure must be the inputs' own",
        ),
        (
            {"a": {"b": [4]}, "deep": {"b": None}},
            r"has \{'b': \[4\]\} for labels\['a'\] of shape \[4\]: it must be None, or a list",
        ),
        (
            {"a": None, "deep": {"b": [1, 2]}},
            r"has \[1, 2\] for labels\['deep'\]\['b'\] of shape \[4, 4\]: .* whose product is "
            "num_cores_per_replica=4",
        ),
    ],
)
def test_refuses_dims_that_do_not_fit_nested_labels(tmp_path, xla_runtime, master, dims, words):
    estimator = make_estimator(tmp_path, master, [None, dims], nested_model_fn)
    with pytest.raises(ValueError, match=f"input_partition_dims {words}"):
        estimator.train(nested_input_fn, max_steps=1)
