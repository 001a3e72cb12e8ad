"""Tests what TensorFlow 1's variables and optimizers did, in sessions and in a step on cores."""

import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.training import optimizer
from toy import input_fn, make_estimator, weight_at

from bert_estimator import tpu
from bert_estimator.legacy import strictness


@pytest.fixture(autouse=True)
def put_back(monkeypatch):
    """Puts the methods back for a test; the rest of the process keeps TensorFlow's."""
    for cls, name in (
        (resource_variable_ops.BaseResourceVariable, "initialized_value"),
        (optimizer.Optimizer, "_get_non_slot_variable"),
    ):
        monkeypatch.setattr(cls, name, getattr(cls, name))
    strictness.put_back_variables()


def test_another_variable_starts_at_the_value_that_a_variable_has():
    with tf.Graph().as_default(), tf.Session() as session:
        first = tf.get_variable("first", initializer=tf.random.uniform([3]), use_resource=True)
        doubled = tf.get_variable("doubled", initializer=first.initialized_value() * 2)
        session.run([first.initializer, doubled.initializer])
        value = session.run(first)
        assert session.run(doubled).tolist() == (2 * value).tolist()
        session.run(first.assign([1.0, 2.0, 3.0]))
        session.run(doubled.initializer)
        assert session.run(doubled).tolist() == [2.0, 4.0, 6.0]


class WithPower(tf.train.GradientDescentOptimizer):
    """Has a variable of its own, and finds it by the default graph."""

    def _create_slots(self, var_list):
        self._create_non_slot_variable(1.0, "power", var_list[0])

    def _finish(self, update_ops, name_scope):
        power = self._get_non_slot_variable("power", graph=tf.get_default_graph())
        with tf.control_dependencies(update_ops):
            return tf.group(power.assign(power * 0.5), *update_ops, name=name_scope)


@pytest.mark.parametrize("rules", [{"use_tpu": False}, {}, {"master": "rehearse:2"}], ids=str)
def test_a_step_may_use_both(tmp_path, xla_runtime, rules):
    def model_fn(features, mode, params):
        weight = tf.get_variable("w", initializer=1.0)
        start = tf.get_variable("copy", initializer=weight.initialized_value(), trainable=False)
        loss = (weight - start) ** 2 + tf.reduce_mean(0.0 * features["x"])
        own = tpu.CrossShardOptimizer(WithPower(0.1))
        train_op = own.minimize(loss, tf.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    make_estimator(tmp_path, model_fn, **rules).train(input_fn, steps=2)
    assert [weight_at(tmp_path, 2, name) for name in ("power", "copy")] == [0.25, 1.0]
