"""Compares batch normalization with float64 numpy, and its variables with those in TF1."""

import json
import os
import sys

import forked
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.legacy.stand_ins.batch_normalization import (
    BatchNormalization,
    batch_normalization,
)

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

# TensorFlow's own tf.layers warn that they are old.
pytestmark = pytest.mark.filterwarnings("ignore:`(tf.layers|layer)")


def images(seed=0, shape=(4, 3, 5, 2)):
    return np.random.RandomState(seed).normal(1.0, 2.0, size=shape).astype(np.float32)


def numpy_normalized(x, mean, variance, epsilon):
    return (x.astype(np.float64) - mean) / np.sqrt(variance + epsilon)


def run(x, steps=1, training=True, feed=None, **arguments):
    """Returns the outputs of the last of some steps, and the variables after it, by name."""
    with tf.Graph().as_default(), tf.Session() as session:
        outputs = batch_normalization(
            tf.constant(x), training=training, name="bn", epsilon=1e-3, **arguments
        )
        updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        session.run(tf.global_variables_initializer())
        for _ in range(steps):
            result, _ = session.run([outputs, updates], feed)
        names = {v.op.name: session.run(v) for v in tf.global_variables()}
        trainable = [v.op.name for v in tf.trainable_variables()]
        return result, names, trainable, len(updates)


@pytest.mark.parametrize("fused", [None, False])
def test_training_normalizes_by_the_batch(fused):
    x = images()
    outputs, values, trainable, updates = run(x, steps=2, momentum=0.9, fused=fused)
    mean, variance = x.mean((0, 1, 2), np.float64), x.astype(np.float64).var((0, 1, 2))
    np.testing.assert_allclose(outputs, numpy_normalized(x, mean, variance, 1e-3), atol=2e-6)
    assert trainable == ["bn/gamma", "bn/beta"]
    assert sorted(values) == ["bn/beta", "bn/gamma", "bn/moving_mean", "bn/moving_variance"]
    assert updates == 2
    np.testing.assert_allclose(values["bn/moving_mean"], 0.19 * mean, rtol=1e-5)
    # The fused kernel puts the unbiased variance into the average.
    n = x.size / x.shape[-1]
    averaged = variance * (n / (n - 1) if fused is None else 1)
    np.testing.assert_allclose(values["bn/moving_variance"], 0.81 + 0.19 * averaged, rtol=1e-5)


@pytest.mark.parametrize("shape", [(4, 3, 5, 2), (6, 3)])
def test_inference_normalizes_by_the_moving_statistics(shape):
    x = images(shape=shape)
    outputs, values, _, updates = run(
        x,
        training=False,
        moving_mean_initializer=tf.constant_initializer(0.5),
        moving_variance_initializer=tf.constant_initializer(4.0),
    )
    np.testing.assert_allclose(outputs, numpy_normalized(x, 0.5, 4.0, 1e-3), atol=2e-6)
    assert updates == 0
    assert (values["bn/moving_mean"] == 0.5).all()


@pytest.mark.parametrize("training", [True, False])
def test_training_may_be_a_tensor(training):
    x = images(shape=(6, 3))
    with tf.Graph().as_default(), tf.Session() as session:
        is_training = tf.placeholder(tf.bool, [])
        outputs = batch_normalization(tf.constant(x), momentum=0.5, training=is_training)
        updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        session.run(tf.global_variables_initializer())
        result, _ = session.run([outputs, updates], {is_training: training})
        (moving_mean,) = [
            session.run(v) for v in tf.global_variables() if v.op.name.endswith("moving_mean")
        ]
    mean, variance = (x.mean(0), x.var(0)) if training else (0.0, 1.0)
    np.testing.assert_allclose(result, numpy_normalized(x, mean, variance, 1e-3), atol=2e-6)
    np.testing.assert_allclose(moving_mean, 0.5 * x.mean(0) * training, rtol=1e-5)


def test_the_other_axis_without_center_and_scale():
    x = images(shape=(4, 3, 5))
    outputs, values, trainable, _ = run(x, axis=1, center=False, scale=False)
    mean = x.mean((0, 2), keepdims=True)
    expected = numpy_normalized(x, mean, x.var((0, 2), keepdims=True), 1e-3)
    np.testing.assert_allclose(outputs, expected, atol=2e-6)
    assert trainable == [] and sorted(values) == ["bn/moving_mean", "bn/moving_variance"]


def test_bfloat16_has_float32_statistics_and_variables():
    x = images()
    with tf.Graph().as_default(), tf.Session() as session:
        outputs = batch_normalization(tf.cast(tf.constant(x), tf.bfloat16), training=True)
        assert outputs.dtype == tf.bfloat16
        assert {v.dtype.base_dtype for v in tf.global_variables()} == {tf.float32}
        session.run(tf.global_variables_initializer())
        result = session.run(tf.cast(outputs, tf.float32))
    expected = numpy_normalized(x, x.mean((0, 1, 2)), x.var((0, 1, 2)), 1e-3)
    np.testing.assert_allclose(result, expected, atol=0.03)


def test_variables_are_reused():
    with tf.Graph().as_default():
        x = tf.constant(images())
        batch_normalization(x, name="bn", gamma_regularizer=tf.nn.l2_loss)
        batch_normalization(x, name="bn", reuse=True)
        batch_normalization(x)
        batch_normalization(x)
        scopes = {v.op.name.rsplit("/", 1)[0] for v in tf.global_variables()}
        assert scopes == {"bn", "batch_normalization", "batch_normalization_1"}
        assert len(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"renorm": True}, "renorm is not supported"),
        ({"virtual_batch_size": 2}, "virtual_batch_size is not supported"),
        ({"axis": [1, 2]}, "must be one axis"),
        ({"axis": 4}, "axis=4 is not an axis of"),
    ],
)
def test_what_cannot_work_is_refused(arguments, says):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=says):
        batch_normalization(tf.constant(images()), **arguments)


def test_channels_must_be_known():
    with tf.Graph().as_default(), pytest.raises(ValueError, match="must be known"):
        batch_normalization(tf.placeholder(tf.float32, [3, None]))


SLIM = """
import json, sys
import numpy as np
import tensorflow as tf
import tensorflow.contrib.slim as slim

x = tf.constant(np.load(sys.argv[1]))
is_training = tf.placeholder_with_default(False, [])
outputs = [
    slim.batch_norm(x, decay=0.5, scale=True, is_training=True, scope="bn"),
    slim.batch_norm(x, decay=0.5, scale=True, is_training=False, scope="bn", reuse=True),
    tf.contrib.layers.batch_norm(x, decay=0.5, is_training=is_training, scope="by_tensor"),
    slim.conv2d(x, 3, 1, normalizer_fn=slim.batch_norm, normalizer_params={"is_training": True}),
]
loss = tf.add_n([tf.reduce_mean(output) for output in outputs])
train_op = slim.learning.create_train_op(loss, tf.train.GradientDescentOptimizer(0.0))
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(2):
        session.run(train_op, {is_training: True})
    print(json.dumps({
        "outputs": [session.run(output).tolist() for output in outputs[:2]],
        "values": {v.op.name: session.run(v).tolist() for v in slim.get_model_variables()},
        "trainable": [v.op.name for v in tf.trainable_variables()],
    }))
"""


def test_slim_trains_its_moving_averages(tmp_path):
    x = images()
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "script.py").write_text(SLIM, encoding="utf-8")
    done = forked.run(
        [
            *(sys.executable, "-m", "bert_estimator.legacy"),
            *(str(tmp_path / "script.py"), str(tmp_path / "x.npy")),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    weights = {
        "bn": ["gamma", "beta", "moving_mean", "moving_variance"],
        "by_tensor": ["beta", "moving_mean", "moving_variance"],
        "Conv": ["weights"],
        "Conv/BatchNorm": ["beta", "moving_mean", "moving_variance"],
    }
    names = [f"{scope}/{name}" for scope, by_name in weights.items() for name in by_name]
    assert sorted(seen["values"]) == sorted(names)
    assert seen["trainable"] == [name for name in names if "moving" not in name]
    mean, variance = x.mean((0, 1, 2), np.float64), x.astype(np.float64).var((0, 1, 2))
    n = x.size / x.shape[-1]
    moving = 0.75 * mean, 0.25 + 0.75 * variance * n / (n - 1)
    for scope in ("bn", "by_tensor"):
        for name, value in zip(("moving_mean", "moving_variance"), moving, strict=True):
            np.testing.assert_allclose(seen["values"][f"{scope}/{name}"], value, rtol=1e-5)
    for output, statistics in zip(seen["outputs"], ((mean, variance), moving), strict=True):
        np.testing.assert_allclose(output, numpy_normalized(x, *statistics, 1e-3), atol=3e-6)


def test_a_subclass_may_override_the_moments():
    class OverCores(BatchNormalization):
        def _moments(self, inputs, reduction_axes, keep_dims):
            mean, variance = super()._moments(inputs, reduction_axes, keep_dims=keep_dims)
            return mean + 0.5, variance * 4.0

    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.reshape(tf.range(8.0), [2, 1, 2, 2])
        outputs = OverCores(fused=False)(x, training=True)
        session.run(tf.global_variables_initializer())
        values = session.run(outputs).reshape(-1)
    expected = [-0.7826, -0.7826, -0.3354, -0.3354, 0.1118, 0.1118, 0.559, 0.559]
    np.testing.assert_allclose(values, expected, atol=1e-4)
