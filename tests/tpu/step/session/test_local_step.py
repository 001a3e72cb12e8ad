"""With use_tpu=False, reads of reference variables come before the updates that they race with."""

import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator import tpu
from bert_estimator.tpu.step.session import local_step


def slowly(tensor):
    """Returns the tensor, after a while: the other side of a race has long been there."""

    def wait(value):
        time.sleep(0.05)
        return value

    return tf.ensure_shape(tf.py_func(wait, [tensor], tensor.dtype), tensor.shape)


UPDATES = {
    "assign_sub": lambda w, change: w.assign_sub(change),
    "assign": lambda w, change: w.assign(w - change),
    "scatter_sub": lambda w, change: tf.scatter_sub(w, [0, 1], change),
    "kernel": lambda w, change: tf.train.GradientDescentOptimizer(1.0).apply_gradients(
        [(change, w)]
    ),
    "after the first": lambda w, change: w.assign_sub(w.assign_sub(change / 2) * 0 + change / 2),
}


@pytest.mark.parametrize("kind", UPDATES)
def test_gradients_see_the_weights_before_the_update(tmp_path, kind):
    x, w1, w2 = (np.array(value, np.float32) for value in ([[1, 2]], [[1, 3], [2, 1]], [[1], [2]]))

    def model_fn(features, mode, params):
        with tf.variable_scope("", use_resource=False):
            first = tf.get_variable("w1", initializer=w1)
            second = tf.get_variable("w2", initializer=w2)
        batch = tf.constant(x) + 0 * features["x"][0]
        hidden = batch @ first
        loss = tf.reduce_sum(hidden @ second)
        update = UPDATES[kind](second, 0.25 * tf.gradients(loss, second)[0])
        # By hand, the gradient of the hidden layer reads the second weight late.
        of_hidden = slowly(tf.ones([1, 1])) @ tf.transpose(second.value())
        step = tf.group(
            update,
            first.assign_sub(0.25 * tf.transpose(batch) @ of_hidden),
            tf.train.get_global_step().assign_add(1),
        )
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=step)

    estimator = toy.make_estimator(tmp_path, model_fn, use_tpu=False)
    estimator.train(toy.input_fn, steps=3)
    for _ in range(3):
        w1, w2 = w1 - 0.25 * x.T @ w2.T, w2 - 0.25 * w1.T @ x.T
    np.testing.assert_allclose(estimator.get_variable_value("w1"), w1, rtol=1e-5)
    np.testing.assert_allclose(estimator.get_variable_value("w2"), w2, rtol=1e-5)


def test_a_decay_beside_the_optimizer_does_not_lose_the_gradient(tmp_path):
    """It does not depend on the batch, so it runs first."""

    def model_fn(features, mode, params):
        with tf.variable_scope("", use_resource=False):
            weights = [tf.get_variable(f"w{i}", initializer=tf.fill([8, 8], 0.1)) for i in range(4)]
        hidden = tf.fill([1, 8], features["x"][0])
        for weight in weights:
            hidden = tf.sin(hidden @ weight)
        loss = tf.reduce_sum(hidden)
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        decay = [weight.assign(weight * 0.5) for weight in weights]
        step = tf.group(train, *decay, tf.train.get_global_step().assign_add(1))
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=step)

    estimator = toy.make_estimator(tmp_path, model_fn, use_tpu=False)
    before = [np.full([8, 8], 0.1, np.float32)] * 4
    for _ in range(4):
        estimator.train(toy.input_fn, steps=1)
        after = [estimator.get_variable_value(f"w{i}") for i in range(4)]
        for old, new in zip(before, after, strict=True):
            assert not np.array_equal(new, old / 2)
        before = after


def variables():
    with tf.variable_scope("", use_resource=False):
        return [tf.get_variable(name, initializer=1.0) for name in ("a", "b", "c")]


def awaited(update):
    return set(update.op.control_inputs)


def test_reads_after_an_update_stay_after_it():
    with tf.Graph().as_default(), tf.Session() as session:
        a, *_ = variables()
        update = a.assign_add(2 * slowly(a.value()))
        with tf.control_dependencies([update]):
            after = a.read_value() * 10
        local_step.order_references([update, after])
        session.run(tf.global_variables_initializer())
        assert session.run([update.op, after])[1] == 30


def test_updates_of_one_weight_run_one_after_the_other():
    with tf.Graph().as_default():
        a, *_ = variables()
        batch = tf.placeholder(tf.float32, [])
        deep = a.assign_sub(tf.sin(tf.cos(tf.sin(batch))))
        shallow = a.assign_add(batch)
        of_weight = a.assign(a.value() * 0.5)
        read = a.read_value() + 0
        local_step.order_references([deep, shallow, of_weight, read])
        assert awaited(shallow) >= {read.op, of_weight.op}
        assert awaited(deep) >= {read.op, shallow.op}
        assert not awaited(of_weight)  # It does not depend on the batch.


def test_reads_that_each_come_after_the_update_of_the_other_variable():
    with tf.Graph().as_default(), tf.Session() as session:
        a, b, c = variables()
        batch = tf.random.uniform([])
        updates = [variable.assign_add(batch) for variable in (a, b)]
        reads = []
        for update, other in zip(updates, (b, a), strict=True):
            with tf.control_dependencies([update]):
                reads.append(other.read_value() + 0)
        with tf.control_dependencies(updates):
            read = c.read_value() * 3
            later = c.assign_sub(batch)
        local_step.order_references([updates, reads, read, later])
        assert awaited(updates[0]) | awaited(updates[1]) == set()  # No order has both reads first.
        assert read.op in awaited(later)  # It is not in the circle.
        session.run(tf.global_variables_initializer())
        assert session.run([updates, reads, read, later])[2] == 3


def test_what_is_not_a_trained_weight_is_left_alone():
    with tf.Graph().as_default():
        a, *_ = variables()
        batch = tf.random.uniform([])
        with tf.variable_scope("", use_resource=False):
            mean = tf.get_variable("mean", initializer=0.0, trainable=False)
            counter = tf.get_variable("counter", initializer=0, trainable=False)
        updates = [mean.assign_sub(batch), counter.assign_add(1), a.assign(0.5)]
        reads = [mean * a, tf.cast(counter, tf.float32) * a, tf.is_variable_initialized(a)]
        local_step.order_references([updates, reads])
        assert [awaited(update) for update in updates] == [set()] * 3


def test_conditions_and_loops_of_the_old_kind(old_control_flow):
    with tf.Graph().as_default(), tf.Session() as session:
        a, b, _ = variables()
        inside = tf.cond(a > 0, lambda: a + b, lambda: a - b)
        loop = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y + a), (0, 0.0))[1]
        updates = [a.assign_add(loop + inside), b.assign_sub(slowly(a.value()))]
        local_step.order_references([updates, inside, loop])
        session.run(tf.global_variables_initializer())
        assert session.run([updates, inside, loop])[1:] == [2, 3]
        assert session.run(a) == 6
