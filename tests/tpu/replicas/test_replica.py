"""Tests what a model_fn can learn of the other replicas, and CrossShardOptimizer."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator import tpu
from bert_estimator.tpu.replicas.replica import Replica

TWO = Replica(2, 1, lambda tensor: 2 * tensor)


def asked():
    return tpu.num_replicas(), tpu.replica_id(), tpu.cross_replica_sum(5)


def test_a_replica_is_entered_and_left_also_by_an_error():
    with TWO.entered():
        assert asked() == (2, 1, 10)
        with Replica(4, 3, lambda tensor: 4 * tensor).entered():
            assert asked() == (4, 3, 20)
        assert asked() == (2, 1, 10)
    with pytest.raises(KeyError), TWO.entered():
        raise KeyError
    assert asked() == (1, 0, 5)


def test_another_thread_is_not_in_it():
    seen = []
    with TWO.entered():
        thread = threading.Thread(target=lambda: seen.append(asked()))
        thread.start()
        thread.join()
    assert seen == [(1, 0, 5)]


def on_core(core):
    def model_fn(features, mode, params):
        with tf.device(tf.tpu.core(core)):
            weight = tf.get_variable("w", [4], initializer=tf.ones_initializer())
            y = tf.cond(
                weight[0] > 0, lambda: weight[0] * features["x"], lambda: features["x"], "branch"
            )
        loss = tf.reduce_mean(y)
        optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.25))
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, {"y": y}, loss, train_op)

    return model_fn


@pytest.mark.parametrize("core", [0, 1])
def test_a_device_of_one_core_has_no_effect(tmp_path, cores, core):
    estimator = toy.make_estimator(tmp_path, on_core(core), predict_batch_size=4)
    estimator.train(toy.input_fn, max_steps=2)
    assert estimator.get_variable_value("w").tolist() == [0.25, 1, 1, 1]  # 1 - (1 + 2) / 4
    assert estimator.evaluate(toy.input_fn, steps=1)["loss"] == 0.75
    assert next(estimator.predict(toy.input_fn))["y"] == 0.75


def test_an_assignment_to_one_of_several_cores_is_an_error(tmp_path, xla_runtime):
    estimator = toy.make_estimator(
        tmp_path, on_core(1), master="rehearse:4", num_cores_per_replica=2, sharding=[("w", 0)]
    )
    with pytest.raises(ValueError, match=r"tf\.tpu\.core\(1\).*num_cores_per_replica=2.*sharding"):
        estimator.train(toy.input_fn, max_steps=1)


def test_each_core_has_its_own_copy_until_a_training_resumes(tmp_path, xla_runtime):
    """A checkpoint has the first core's copy, and a resumed training gives it to all cores."""

    def after_steps(folder, *parts):
        for steps in parts:

            def model_fn(features, mode, params):
                own = tf.get_variable("own", initializer=0.0, trainable=False)
                total = tf.get_variable("total", initializer=0.0, trainable=False)
                own = own.assign_add(tf.cast(tpu.replica_id(), tf.float32) + 1)
                updates = [
                    total.assign(tpu.cross_replica_sum(own)),
                    tf.train.get_global_step().assign_add(1),
                ]
                loss = tf.reduce_mean(features["x"])
                return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=tf.group(updates))

            estimator = toy.make_estimator(
                folder, model_fn, master="rehearse:2", save_checkpoints_steps=1
            )
            estimator.train(toy.input_fn, steps=steps)
        return [estimator.get_variable_value(name) for name in ("own", "total")]

    # The first core adds 1 in each step, and the second adds 2. To save does not change a copy.
    assert after_steps(tmp_path / "whole", 3) == [3, 3 + 6]
    # After step 2 the first core has 2, and the second core gets it, too.
    assert after_steps(tmp_path / "resumed", 2, 1) == [3, 3 + 4]


MEAN, SUM = tf.losses.Reduction.MEAN, tf.losses.Reduction.SUM


def step(replica_gradients, reduction, minimize):
    """Returns the weights of core 0 after a step of rate 1 on sum(g * w), from each core's g."""
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
