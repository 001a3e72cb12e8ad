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


def make_estimator(folder, master, dims=None):
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
    tmp_path, xla_runtime, monkeypatch, cores, dims, part, all_verbs
):
    shapes = []
    put_batch = DeviceLoop.put_batch

    def spying(self, arrays):
        batch = put_batch(self, arrays)
        shapes.append([list(array.addressable_shards[0].data.shape) for array in batch])
        return batch

    monkeypatch.setattr(DeviceLoop, "put_batch", spying)
    partition = [{"image": dims, "weight": None}, None]
    found = outcome(make_estimator(tmp_path / "cores", f"rehearse:{cores}", partition), all_verbs)
    rows = [ROWS * 4 // cores]
    assert shapes and all(each[:2] == [part, rows] for each in shapes)
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
        ([[[1, 4, 1, 1], None], None], "for features, but its structure must be"),
        ([{"image": [4, 1], "weight": None}], r"for features\['image'\] of shape \[4, 8, 8, 3\]"),
        ([{"image": [1, 2, 1, 1], "weight": None}], "whose product is num_cores_per_replica=4"),
        ([{"image": [1, 1, 1, 4], "weight": None}], "cannot be split evenly"),
        ([{"image": 4, "weight": None}], "must be None, or a list"),
        ([None, {"a": [4]}], r"has \{'a': \[4\]\} for labels of shape \[4\]"),
        ([None, [[4]]], r"has \[\[4\]\] for labels of shape \[4\]"),
    ],
)
def test_refuses(tmp_path, xla_runtime, master, dims, words):
    with pytest.raises(ValueError, match=f"input_partition_dims.*{words}"):
        make_estimator(tmp_path, master, dims).train(input_fn, max_steps=1)
