"""Scripts of TensorFlow 1 that use the tensorflow_probability package, under the runner."""

import importlib.util
import json
import subprocess

import legacy_script
import pytest

SCRIPT = """
import json, sys
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

tfd, tfb, tfpl = tfp.distributions, tfp.bijectors, tfp.layers
master = sys.argv[1]
is_local = master == "local"


def model_fn(features, labels, mode, params):
    hidden = tf.layers.dense(features, 4, kernel_initializer=tf.ones_initializer())
    loc, scale = tf.split(hidden, 2, 1)
    posterior = tfd.MultivariateNormalDiag(loc, tf.nn.softplus(scale) + 0.1)
    prior = tfd.MultivariateNormalDiag(tf.zeros(2), tf.ones(2))
    sampled = posterior.sample(seed=7)
    logits = tf.layers.dense(loc, 3, kernel_initializer=tf.ones_initializer())
    likelihood = tfd.Independent(tfd.Bernoulli(logits=logits), 1).log_prob(features)
    flow = tfd.TransformedDistribution(tfd.Normal(0.0, 1.0), tfb.Exp())
    loss = tf.reduce_mean(tfd.kl_divergence(posterior, prior) - likelihood)
    loss -= tf.reduce_mean(flow.log_prob(1 + tf.square(loc)))
    loss += 0 * tf.reduce_sum(sampled)
    optimizer = tf.train.AdamOptimizer(0.01)
    if not is_local:
        optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tf.contrib.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(params):
    x = (np.arange(96).reshape(32, 3) % 7 > 3).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x)).repeat()
    return data.batch(params["batch_size"], drop_remainder=True)


estimator = tf.contrib.tpu.TPUEstimator(
    model_fn,
    config=tf.contrib.tpu.RunConfig(model_dir="model", master="" if is_local else master),
    use_tpu=not is_local,
    train_batch_size=8,
    eval_batch_size=8,
)
estimator.train(input_fn, max_steps=10)
layers = [tfpl.VariableLayer([2]), tfpl.DistributionLambda(lambda t: tfd.Normal(t[..., 0], 1.0))]
with tf.Session() as session:
    normal = tf.keras.Sequential(layers)(tf.zeros([1, 1]))
    session.run(tf.global_variables_initializer())
    mean = float(session.run(normal.mean()))
print(json.dumps([float(estimator.evaluate(input_fn, steps=4)["loss"]), mean]))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_probability") is None,
    reason="needs tensorflow_probability",
)
def test_each_runtime_trains_with_distributions(tmp_path, xla_runtime):
    results = []
    for master in ("local", "", "rehearse:2"):
        folder = tmp_path / (master or "session")
        folder.mkdir()
        done = legacy_script.run(folder, SCRIPT, master, process=subprocess.run)
        loss, mean = json.loads(done.stdout.splitlines()[-1])
        assert mean == 0.0
        results.append(loss)
    assert results[1:] == pytest.approx(results[:1] * 2, rel=1e-5)
