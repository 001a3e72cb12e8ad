"""Tests that training and the bare step take turns, and that the table has their medians."""

import pytest
import tensorflow.compat.v1 as tf

from benchmarks import loop_overhead
from bert_estimator import tpu
from bert_estimator.tpu.program import devices


def model_fn(features, mode, params):
    weight = tf.get_variable("w", [], initializer=tf.ones_initializer())
    loss = tf.reduce_mean(tf.square(features["x"] * weight - 1.0))
    optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.1))
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(params):
    return tf.data.Dataset.from_tensors({"x": tf.ones([params["batch_size"]])}).repeat()


@pytest.mark.usefixtures("xla_runtime")
def test_every_round_times_both(tmp_path, monkeypatch):
    calls = []

    class Counted(loop_overhead.BareStep):
        def secs(self, steps):
            calls.append(steps)
            return super().secs(steps)

    monkeypatch.setattr(loop_overhead, "BareStep", Counted)
    estimator = tpu.TPUEstimator(
        model_fn,
        config=tpu.RunConfig(
            master="rehearse:2",
            model_dir=str(tmp_path),
            log_step_count_steps=3,
            tpu_config=tpu.TPUConfig(iterations_per_loop=3),
        ),
        train_batch_size=4,
    )
    cores = devices.find("rehearse:2")
    rounds = loop_overhead.measure(estimator, input_fn, cores, steps=3, rounds=2)
    assert calls == [1, 3, 3]
    assert len(rounds) == 2
    assert all(each["loop_secs"] > 0 and each["bare_secs"] > 0 for each in rounds)
    assert all(0 <= each["input_wait"] <= 1 for each in rounds)
    assert estimator.global_step() == 2 * 2 * 3


def test_the_table_has_the_medians_of_a_run():
    settings = dict(
        zip(loop_overhead.SETTINGS, ("gpu", "base", 128, 32, "bfloat16", 8), strict=True)
    )
    measured = [(0.103, 0.1, 0.01), (0.9, 0.101, 0.5), (0.102, 0.09, 0.0)]
    rows = [
        {**settings, "loop_secs": loop, "bare_secs": bare, "input_wait": wait}
        for loop, bare, wait in measured
    ]
    lines = loop_overhead.table(rows).splitlines()
    assert lines[2:] == [
        "| gpu | base, 128, 32 | bfloat16 | 0.103 (0.102 to 0.9) | 0.1 (0.09 to 0.101) | +3.0% | "
        "1.0% |"
    ]
