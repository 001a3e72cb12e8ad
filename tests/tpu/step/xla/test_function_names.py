"""Steps that are built twice are one program, which is lowered and compiled once."""

import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf
import toy

from bert_estimator import tpu
from bert_estimator.tpu.program import device_loop
from bert_estimator.tpu.step.xla import graph_lowering

pytestmark = pytest.mark.usefixtures("xla_runtime")


@tf.custom_gradient
def doubled(x):
    return 2 * x, lambda gradient: 2 * gradient


@tf2.function
def squashed(x):
    return tf.tanh(x)


def network(x):
    """Uses each kind of function that TensorFlow numbers."""
    x = x[:, None] * tf.get_variable("w", [1, 4], initializer=tf.ones_initializer())
    x = squashed(doubled(x))
    x = tf.cond(tf.reduce_sum(x) > 0, lambda: 2 * x, lambda: x)
    x = tf.switch_case(tf.cast(x[0, 0], tf.int32), [lambda: x, lambda: x + 1])
    x = tf.while_loop(
        lambda i, _: i < 2, lambda i, y: (i + 1, tf.tanh(y)), (0, x), maximum_iterations=2
    )[1]
    x = tf2.recompute_grad(lambda y: y * tf.sin(y))(x)
    scale = tf.get_variable("scale", [4], initializer=tf.ones_initializer())
    x = tf.map_fn(lambda row: row * scale, x)
    return tf.scan(lambda total, row: tf.tanh(total + row * scale), x)


def make_estimator(folder, rate=0.125, master="rehearse:2"):
    def model_fn(features, mode, params):
        loss = tf.reduce_mean(network(features["x"]))
        tf.summary.scalar("loss", loss)
        optimizer = tpu.CrossShardOptimizer(tf.train.AdamOptimizer(rate))
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return toy.make_estimator(folder, model_fn, master=master)


@pytest.fixture
def compilations():
    """A list that gets an element for each program that jax compiles."""
    import jax

    seen = []

    def listener(event, *_, **__):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    return seen


def made():
    return graph_lowering.LOWERED.num_made, device_loop.LOOPS.num_made


def test_a_second_call_does_not_compile_again(tmp_path, compilations):
    estimator = make_estimator(tmp_path / "two_calls")
    estimator.train(toy.input_fn, max_steps=2)
    estimator.evaluate(toy.input_fn, steps=1)
    assert compilations
    compilations.clear()
    before = made()
    estimator.train(toy.input_fn, max_steps=4)
    loss = estimator.evaluate(toy.input_fn, steps=1)["loss"]
    another = make_estimator(tmp_path / "one_call").train(toy.input_fn, max_steps=4)
    assert another.evaluate(toy.input_fn, steps=1)["loss"] == loss
    assert made() == before and not compilations


@pytest.mark.parametrize(
    "other", [{"rate": 0.25}, {"master": "rehearse:4"}], ids=["constant", "cores"]
)
def test_another_program_is_compiled(tmp_path, compilations, other):
    make_estimator(tmp_path / "one").train(toy.input_fn, max_steps=1)
    compilations.clear()
    loops = device_loop.LOOPS.num_made
    make_estimator(tmp_path / "other", **other).train(toy.input_fn, max_steps=1)
    assert compilations and device_loop.LOOPS.num_made == loops + 1
