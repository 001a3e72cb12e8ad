"""Tests CrossShardOptimizer: MEAN divides the loss by the cores; gradients are summed over them."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.tpu.replicas.replica import Replica

MEAN, SUM = tf.losses.Reduction.MEAN, tf.losses.Reduction.SUM


def step(replica_gradients, reduction, minimize):
    """Returns the weights [3] of core 0 after one step of rate 1 from 0; the loss is sum(g * w).

    Args:
      replica_gradients: g of each core. The other cores' gradients are scaled as their losses
        would be, and added as the collective would add them.
    """
    own, *others = (np.array(g, np.float32) for g in replica_gradients)
    count = len(replica_gradients)

    def cross_replica_sum(tensor):
        share = count if minimize and reduction == MEAN else 1
        return tensor + sum(others) / share

    with tf.Graph().as_default(), Replica(count, 0, cross_replica_sum).entered():
        weights = tf.get_variable("w", [3], initializer=tf.zeros_initializer())
        unused = tf.get_variable("unused", [1])
        loss = tf.reduce_sum(own * weights)
        optimizer = tpu.CrossShardOptimizer(
            tf.train.GradientDescentOptimizer(1.0), reduction=reduction
        )
        global_step = tf.train.create_global_step()
        if minimize:
            train_op = optimizer.minimize(loss, global_step=global_step)
        else:
            (gradient,) = tf.gradients(loss, [weights])
            pairs = [(gradient, weights), (None, unused)]
            train_op = optimizer.apply_gradients(pairs, global_step=global_step)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(train_op)
            assert session.run(global_step) == 1
            return session.run(weights).tolist()


@pytest.mark.parametrize(
    ("gradients", "reduction", "minimize", "after"),
    [
        ([[1, 2, 3]], MEAN, True, [-1, -2, -3]),
        ([[1, 2, 3]], SUM, True, [-1, -2, -3]),
        ([[1, 2, 3]], MEAN, False, [-1, -2, -3]),
        ([[1, 2, 3], [3, 4, 7]], MEAN, True, [-2, -3, -5]),
        ([[1, 2, 3], [3, 4, 7]], SUM, True, [-4, -6, -10]),
        # Gradients that are computed without the wrapper are summed.
        ([[1, 2, 3], [3, 4, 7]], MEAN, False, [-4, -6, -10]),
        ([[1, 2, 3], [3, 4, 7], [2, 0, 2], [2, 2, 0]], MEAN, True, [-2, -2, -3]),
    ],
)
def test_what_is_applied(gradients, reduction, minimize, after):
    assert step(gradients, reduction, minimize) == after


def test_compute_gradients_scales_for_mean_alone():
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("w", initializer=1.0)
        session.run(tf.global_variables_initializer())
        found = {}
        for reduction in (MEAN, SUM):
            optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(1.0), reduction)
            with Replica(2, 0, None).entered():
                pairs = optimizer.compute_gradients(6.0 * weight)
            found[reduction] = session.run([gradient for gradient, _ in pairs])
        assert found == {MEAN: [3.0], SUM: [6.0]}


def test_slots_and_variables_are_the_wrapped_optimizer_s():
    with tf.Graph().as_default():
        weight = tf.get_variable("w", [2])
        adam = tf.train.AdamOptimizer()
        optimizer = tpu.CrossShardOptimizer(adam)
        optimizer.minimize(tf.reduce_sum(weight), var_list=[weight])
        assert optimizer.get_slot_names() == ["m", "v"]
        assert optimizer.get_slot(weight, "m") is adam.get_slot(weight, "m")
        names = [v.op.name for v in optimizer.variables()]
        assert sorted(names) == ["beta1_power", "beta2_power", "w/Adam", "w/Adam_1"]


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"reduction": "none"}, ValueError, "reduction must be MEAN or SUM, not 'none'"),
        ({"opt": "adam"}, TypeError, "wraps a tf.train.Optimizer, not <class 'str'>"),
    ],
)
def test_what_is_refused(keywords, error, message):
    with pytest.raises(error, match=message):
        tpu.CrossShardOptimizer(**{"opt": tf.train.GradientDescentOptimizer(1.0), **keywords})


def test_groups_that_are_not_the_replicas_are_refused():
    with tf.Graph().as_default(), Replica(4, 0, None).entered():
        weight = tf.get_variable("w", initializer=1.0)
        optimizer = tpu.CrossShardOptimizer(
            tf.train.GradientDescentOptimizer(1.0), group_assignment=[[0, 1], [2]]
        )
        with pytest.raises(ValueError, match=r"CrossShardOptimizer: group_assignment=.*4 replicas"):
            optimizer.compute_gradients(weight)
        with pytest.raises(ValueError, match=r"group_assignment=.*4 replicas"):
            optimizer.apply_gradients([(tf.constant(1.0), weight)])
