"""Compares updates with numpy: sums over cores, the report, rates by variable."""

import json

import numpy as np
import optimizer_steps
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.model_fns import update
from bert_estimator.optimization import WarmupPolynomialDecay
from bert_estimator.tpu.replicas.replica import Replica

FEATURES = np.array([[1.0], [2.0], [4.0]], np.float32)


def make_loss_fn(_):
    def loss_fn(features, first_row):
        del first_row
        with tf.variable_scope("net", use_resource=True):
            a = tf.get_variable("a", [1], tf.float32, initializer=tf.zeros_initializer())
            b = tf.get_variable("b", [1], tf.float32, initializer=tf.zeros_initializer())
            tf.get_variable("unused", [1], tf.float32, initializer=tf.ones_initializer())
        loss = tf.reduce_sum(features["x"] * 0.01 * (a + b)) / 3.0
        return loss, {"rows": tf.reduce_sum(tf.ones_like(features["x"]))}

    return loss_fn


def run_update(steps=2, **options):
    """Returns (variables by name, the report of the last step)."""
    rule = update.UpdateRule(
        "adamw",
        WarmupPolynomialDecay(0.1, 10),
        optimizer_options={"weight_decay_rate": 0.0},
        summary_dir="x",
        **options,
    )
    with tf.Graph().as_default(), tf.Session() as session:
        spec = rule.train_spec(make_loss_fn, {"x": tf.constant(FEATURES)})
        report = spec.host_call[1]
        session.run(tf.global_variables_initializer())
        for _ in range(steps):
            reported, _ = session.run([report, spec.train_op])
        names = [v.op.name for v in tf.trainable_variables()]
        values = session.run(tf.trainable_variables())
    return dict(zip(names, values, strict=True)), reported


def test_a_report_is_of_its_own_step():
    values, report = run_update()
    assert report["global_step"] == [2]
    np.testing.assert_allclose(report["learning_rate"], [0.1 * 9 / 10])
    np.testing.assert_allclose(report["gradient_norm"], [np.sqrt(2) * 0.07 / 3], rtol=1e-6)
    np.testing.assert_array_equal(report["rows"], [3])
    assert values["net/unused"] == [1.0]


@pytest.mark.parametrize("micro_batch_size", [None, 1])
def test_what_is_reported_is_computed_before_the_update(micro_batch_size):
    rule = update.UpdateRule(
        "lamb", WarmupPolynomialDecay(0.1, 10), micro_batch_size, summary_dir="x"
    )
    with tf.Graph().as_default() as graph:
        spec = rule.train_spec(make_loss_fn, {"x": tf.constant(FEATURES)})
        report = spec.host_call[1]
        reported = {report[name].op.inputs[0].op.name for name in ("loss", "rows")}
        assigns = [
            operation
            for operation in graph.get_operations()
            if operation.type.startswith("Assign") and operation.name.startswith("LAMBOptimizer")
        ]
        assert len(assigns) == 7  # two variables with two slots each, and the global step
        for assign in assigns:
            assert reported <= optimizer_steps.ancestors(assign)


def test_a_variable_may_have_a_rate_of_its_own():
    scaled, _ = run_update(rate_scale=lambda name: 0.5 if name == "net/a" else 1.0)
    plain, _ = run_update()
    np.testing.assert_allclose(scaled["net/a"], 0.5 * plain["net/a"], rtol=1e-6)
    np.testing.assert_array_equal(scaled["net/b"], plain["net/b"])


@pytest.mark.parametrize("micro_batch_size", [None, 1])
def test_what_is_not_trained_has_no_slots_and_no_part_in_the_norm(micro_batch_size):
    def is_trained(name):
        return name != "net/b"

    values, report = run_update(is_trained=is_trained, micro_batch_size=micro_batch_size)
    assert values["net/b"] == [0.0] and values["net/a"] != [0.0]
    np.testing.assert_allclose(report["gradient_norm"], [0.07 / 3], rtol=1e-6)
    rule = update.UpdateRule(
        "adamw", WarmupPolynomialDecay(0.1, 10), micro_batch_size, is_trained=is_trained
    )
    with tf.Graph().as_default():
        rule.train_spec(make_loss_fn, {"x": tf.constant(FEATURES)})
        slots = {v.op.name for v in tf.global_variables()} - {
            v.op.name for v in tf.trainable_variables()
        }
    assert slots == {"global_step", "net/a/adam_m", "net/a/adam_v"}


def test_means_are_over_the_global_batch():
    replica = Replica(2, 0, lambda tensor: tensor + tf.constant(5.0))
    with tf.Graph().as_default(), tf.Session() as session, replica.entered():
        weights = tf.constant([1.0, 0.0])
        mean = update.global_mean(tf.constant([3.0, 7.0]), weights)
        nothing = update.global_sum(tf.constant([-5.0]))
        mean, nothing = session.run([mean, nothing])
    assert mean == np.float32((3.0 + 5.0) / (1.0 + 5.0))
    assert nothing == 1.0


def test_example_weights_are_one_unless_the_batch_says_otherwise():
    with tf.Graph().as_default(), tf.Session() as session:
        features = {"input_ids": tf.ones([3, 4], tf.int32)}
        padded = {**features, "is_real_example": tf.constant([1, 1, 0])}
        weights = session.run([update.example_weights(f) for f in (features, padded)])
    np.testing.assert_array_equal(weights, [[1, 1, 1], [1, 1, 0]])


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (dict(num_warmup_steps=0), {1: 0.5}),
        (dict(num_warmup_steps=1), {1: 0.0, 2: 0.5}),
        (dict(num_warmup_steps=5), {1: 0.0, 5: 0.4, 6: 0.5}),
        # The decay runs from step 0 there: 0.5 * (20 - 5) / 20 after 5 updates.
        (dict(num_warmup_steps=5, legacy_schedule_jump=True), {1: 0.0, 5: 0.4, 6: 0.375}),
    ],
)
def test_corners_of_the_learning_rate(schedule, expected):
    corners = update.UpdateRule("adamw", WarmupPolynomialDecay(0.5, 20, **schedule)).corners()
    assert {c["step"]: c["learning_rate"] for c in corners} == pytest.approx(expected)
    json.dumps(corners)
