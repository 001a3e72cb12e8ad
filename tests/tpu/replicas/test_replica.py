"""Tests what a model_fn can learn of the other replicas."""

import threading

import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator import tpu
from bert_estimator.tpu.replicas.replica import Replica

TWO = Replica(2, 1, lambda tensor: 2 * tensor)


def asked():
    return tpu.num_replicas(), tpu.replica_id(), tpu.cross_replica_sum(5)


def test_alone_everything_is_the_identity():
    assert asked() == (1, 0, 5)


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
