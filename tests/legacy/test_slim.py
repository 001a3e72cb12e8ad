"""Compares batch normalization of tf.contrib.slim with float64 numpy."""

import json

import legacy_script
import numpy as np

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
    x = np.random.RandomState(0).normal(1.0, 2.0, size=[4, 3, 5, 2]).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    seen = json.loads(legacy_script.run(tmp_path, SLIM, "x.npy").stdout.splitlines()[-1])
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
        mean, variance = statistics
        expected = (x.astype(np.float64) - mean) / np.sqrt(variance + 1e-3)
        np.testing.assert_allclose(output, expected, atol=3e-6)
