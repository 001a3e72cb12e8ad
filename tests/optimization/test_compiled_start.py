"""Updates whose start is compiled: what is compiled, and that they stay the same to rounding."""

import numpy as np
import optimizer_steps
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import control_flow_ops

from bert_estimator.optimization import clip_by_global_norm, compiled_start
from bert_estimator.optimization.chain import ChainOptimizer
from bert_estimator.optimization.optimizers import OPTIMIZERS, create_optimizer
from bert_estimator.optimization.parameter import alike

RNG = np.random.RandomState(0)
SHAPES = {"a/kernel": [4, 8], "b/kernel": [4, 8], "c/kernel": [8, 4], "a/bias": [8], "b/bias": [8]}
INITIAL = {name: RNG.normal(size=shape) for name, shape in SHAPES.items()}
GRADIENTS = [{name: RNG.normal(size=shape) for name, shape in SHAPES.items()} for _ in range(4)]

CASES = [(name, {}) for name in OPTIMIZERS] + [
    ("lamb", {"bias_correction": True, "bfloat16_first_moments": True}),
    ("adamw", {"bias_correction": True}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_compiled_updates_equal_single_operations(monkeypatch, name, options):
    def history(least_elements):
        monkeypatch.setattr(compiled_start, "_LEAST_ELEMENTS", least_elements)
        make = lambda rate: create_optimizer(name, rate, **options)  # noqa: E731
        return optimizer_steps.run(make, INITIAL, GRADIENTS, [0.1, 0.2, 0.1, 0.05])

    # The kernels' updates are compiled, and the biases' are not.
    for mine, wanted in zip(history(32), history(1 << 62), strict=True):
        assert mine["trust_ratio"].keys() == wanted["trust_ratio"].keys()
        assert mine["global_step"] == wanted["global_step"]
        for part in ("param", "trust_ratio", "m", "v"):
            for variable, value in mine[part].items():
                # A bfloat16 moment may be rounded to the other side.
                tolerance = 2**-7 if value.dtype != np.float32 else 2e-6
                np.testing.assert_allclose(
                    np.float32(value), np.float32(wanted[part][variable]), rtol=tolerance, atol=1e-6
                )


def updates(optimizer, least_elements, monkeypatch, shapes=SHAPES):
    """Builds updates; returns the operations that the train_op needs, by type."""
    monkeypatch.setattr(compiled_start, "_LEAST_ELEMENTS", least_elements)
    step = tf.train.get_or_create_global_step()
    variables = [tf.get_variable(name, shape, use_resource=True) for name, shape in shapes.items()]
    gradients = [tf.placeholder(tf.float32, shape) for shape in shapes.values()]
    train_op = optimizer.apply_gradients(zip(gradients, variables, strict=True), step)
    needed = tf.graph_util.extract_sub_graph(tf.get_default_graph().as_graph_def(), [train_op.name])
    return [node.op for node in needed.node]


# What is left for each kernel: roots of two norms, and the new value. AdamW has no norm.
@pytest.mark.parametrize(("name", "sqrt", "sub"), [("lamb", 2, 1), ("adamw", 0, 0), ("lars", 2, 1)])
def test_all_before_the_first_sum_is_one_call(monkeypatch, name, sqrt, sub):
    kernels = {name: shape for name, shape in SHAPES.items() if "kernel" in name}
    with tf.Graph().as_default():
        found = updates(create_optimizer(name, 0.1), 32, monkeypatch, kernels)
    counts = [found.count(kind) for kind in ("PartitionedCall", "Square", "Sqrt", "Sub")]
    assert counts == [3, 0, 3 * sqrt, 3 * sub]


def test_small_variables_and_programs_for_xla_keep_their_operations(monkeypatch):
    with tf.Graph().as_default():
        assert "PartitionedCall" not in updates(create_optimizer("lamb", 0.1), 33, monkeypatch)
    with tf.Graph().as_default():
        context = control_flow_ops.XLAControlFlowContext()
        context.Enter()
        found = updates(create_optimizer("lamb", 0.1), 1, monkeypatch)
        context.Exit()
        assert "PartitionedCall" not in found and "Square" in found


@pytest.mark.parametrize("least_elements", [32, 1 << 62])
def test_an_update_sees_what_it_waits_for(monkeypatch, least_elements):
    monkeypatch.setattr(compiled_start, "_LEAST_ELEMENTS", least_elements)
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        weights = [tf.get_variable(name, [4, 8], use_resource=True) for name in "ab"]
        before = [weight.assign(tf.fill([4, 8], 3.0)) for weight in weights]
        with tf.control_dependencies(before):
            optimizer = create_optimizer("adamw", 0.5, weight_decay_rate=0.5)
            train_op = optimizer.apply_gradients([(tf.zeros([4, 8]), w) for w in weights], step)
        session.run(tf.global_variables_initializer())
        for _ in range(2):
            session.run(train_op)
            np.testing.assert_allclose(session.run(weights), np.full([2, 4, 8], 2.25), rtol=1e-6)


@pytest.mark.parametrize("name", ["lamb", "adamw", "lars"])
def test_a_rate_of_unknown_shape(monkeypatch, name):
    def after(least_elements):
        monkeypatch.setattr(compiled_start, "_LEAST_ELEMENTS", least_elements)
        with tf.Graph().as_default(), tf.Session() as session:
            rate = tf.placeholder(tf.float32)
            step = tf.train.get_or_create_global_step()
            weight = tf.get_variable("w", initializer=np.float32(INITIAL["a/kernel"]))
            gradient = tf.constant(GRADIENTS[0]["a/kernel"], tf.float32)
            train_op = create_optimizer(name, rate).apply_gradients([(gradient, weight)], step)
            session.run(tf.global_variables_initializer())
            session.run(train_op, {rate: 0.1})
            return session.run(weight)

    np.testing.assert_allclose(after(32), after(1 << 62), rtol=1e-6, atol=1e-6)


def test_pieces_of_others(monkeypatch):
    """Has an operation with an argument's name, and a cast to integers that overflows."""

    def piece(update, parameter):
        with tf.name_scope(None):
            doubled = tf.multiply(update, 2.0, name="argument_0")
        whole = tf.cast(tf.cast(update * 1e20, tf.int32), tf.float32)
        return doubled + parameter.value * 0.1 + whole

    piece.kind = alike

    def after(least_elements):
        monkeypatch.setattr(compiled_start, "_LEAST_ELEMENTS", least_elements)
        make = lambda rate: ChainOptimizer([piece], "Other")  # noqa: E731
        return optimizer_steps.run(make, INITIAL, GRADIENTS[:2], [0.1, 0.1])[-1]["param"]

    found, expected = after(32), after(1 << 62)
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-5)


def test_clipped_gradients_of_large_variables(monkeypatch):
    """Updates a variable of 2^18 weights, which is the least, with a gradient that is clipped."""
    value = RNG.normal(size=[512, 512]).astype(np.float32)

    def after():
        with tf.Graph().as_default() as graph, tf.Session() as session:
            step = tf.train.get_or_create_global_step()
            weight = tf.get_variable("w", initializer=value, use_resource=True)
            (gradient,) = tf.gradients(tf.reduce_sum(tf.sin(weight)), weight)
            (clipped,), _ = clip_by_global_norm([gradient], 1.0)
            train_op = create_optimizer("lamb", 0.01).apply_gradients([(clipped, weight)], step)
            session.run(tf.global_variables_initializer())
            for _ in range(3):
                session.run(train_op)
            kinds = {op.type for op in graph.get_operations()}
            return session.run(weight), "PartitionedCall" in kinds

    mine, is_compiled = after()
    monkeypatch.setattr(compiled_start, "_LEAST_ELEMENTS", (1 << 18) + 1)
    wanted, is_other_compiled = after()
    assert is_compiled and not is_other_compiled
    np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-6)
