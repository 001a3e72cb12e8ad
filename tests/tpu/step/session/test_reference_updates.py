"""With use_tpu=False, reads of reference variables come before the updates that they race with."""

import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator import tpu
from bert_estimator.tpu.step.session import reference_updates


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
        hidden = tf.constant(x) @ first
        loss = tf.reduce_sum(hidden @ second)
        update = UPDATES[kind](second, 0.25 * tf.gradients(loss, second)[0])
        # By hand, the gradient of the hidden layer reads the second weight late.
        of_hidden = slowly(tf.ones([1, 1])) @ tf.transpose(second.value())
        step = tf.group(
            update,
            first.assign_sub(0.25 * tf.transpose(tf.constant(x)) @ of_hidden),
            tf.train.get_global_step().assign_add(1),
        )
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=step)

    estimator = toy.make_estimator(tmp_path, model_fn, use_tpu=False)
    estimator.train(toy.input_fn, steps=3)
    for _ in range(3):
        w1, w2 = w1 - 0.25 * x.T @ w2.T, w2 - 0.25 * w1.T @ x.T
    np.testing.assert_allclose(estimator.get_variable_value("w1"), w1, rtol=1e-5)
    np.testing.assert_allclose(estimator.get_variable_value("w2"), w2, rtol=1e-5)


def variables():
    with tf.variable_scope("", use_resource=False):
        return [tf.get_variable(name, initializer=1.0) for name in ("a", "b")]


def test_reads_after_an_update_stay_after_it():
    with tf.Graph().as_default(), tf.Session() as session:
        a, _ = variables()
        update = a.assign_add(2 * slowly(a.value()))
        with tf.control_dependencies([update]):
            after = a.read_value() * 10
        reference_updates.order([update, after])
        session.run(tf.global_variables_initializer())
        assert session.run([update.op, after])[1] == 30


def test_reads_that_each_come_after_the_update_of_the_other_variable():
    with tf.Graph().as_default(), tf.Session() as session:
        a, b = variables()
        updates = [variable.assign_add(tf.sin(variable.value())) for variable in (a, b)]
        reads = []
        for update, other in zip(updates, (b, a), strict=True):
            with tf.control_dependencies([update]):
                reads.append(other.read_value() + 0)
        reference_updates.order([updates, reads])
        session.run(tf.global_variables_initializer())
        values = session.run([updates, reads])[1]
    # No order has both reads first.
    for value in values:
        assert np.isclose([1, 1 + np.sin(1)], value).any()


def test_updates_that_do_not_depend_on_the_training_are_left_alone():
    with tf.Graph().as_default():
        a, _ = variables()
        counter = tf.get_variable("counter", initializer=0, trainable=False, use_resource=False)
        count = counter.assign_add(1)
        read = tf.cast(counter, tf.float32) * a
        reference_updates.order([count, read])
        assert not count.op.control_inputs


def test_conditions_and_loops_of_the_old_kind(monkeypatch):
    tf.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), tf.Session() as session:
            a, b = variables()
            inside = tf.cond(a > 0, lambda: a + b, lambda: a - b)
            loop = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, y + a), (0, 0.0))[1]
            updates = [a.assign_add(loop + inside), b.assign_sub(slowly(a.value()))]
            reference_updates.order([updates, inside, loop])
            session.run(tf.global_variables_initializer())
            assert session.run([updates, inside, loop])[1:] == [2, 3]
            assert session.run([a, b]) == [6, 0]
    finally:
        tf.enable_control_flow_v2()
