"""Updates of variables that are alike are calls of one function: the same as updates one by one."""

import functools
from unittest import mock

import numpy as np
import optimizer_steps
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import control_flow_ops

from bert_estimator.optimization import chain, variable_update
from bert_estimator.optimization.chain import ChainOptimizer
from bert_estimator.optimization.optimizers import OPTIMIZERS, LAMBOptimizer, create_optimizer
from bert_estimator.optimization.piece import Piece
from bert_estimator.optimization.scaling import ScaleByLearningRate

REWRITES_GRAPHS = True  # so that operations in functions and outside are rewritten alike

# Variables that are updated alike, and others: of another shape or dtype, or excluded by their
# names from weight decay and the trust ratio.
VARIABLES = {
    "a/kernel": ([3, 2], tf.float32),
    "b/kernel": ([3, 2], tf.float32),
    "c/kernel": ([2, 3], tf.float32),
    "d/kernel": ([3, 2], tf.bfloat16),
    "e/kernel": ([3, 2], tf.bfloat16),
    "a/bias": ([2], tf.float32),
    "b/bias": ([2], tf.float32),
    "a/scale": ([2], tf.float32),
    "b/scale": ([2], tf.float32),
}


def build_updates(optimizer, rate):
    """Builds a step on a loss of VARIABLES; returns (train_op, what it leaves)."""
    with tf.variable_scope("", use_resource=True):
        step = tf.train.get_or_create_global_step()
        variables = []
        for number, (name, (shape, dtype)) in enumerate(VARIABLES.items()):
            initial = np.linspace(-1.0, 1.0 + number, np.prod(shape)).reshape(shape)
            initializer = tf.constant_initializer(initial)
            variables.append(tf.get_variable(name, shape, dtype, initializer))
    optimizer = optimizer(rate)
    losses = [tf.reduce_sum(tf.sin(tf.cast(v, tf.float32) * 3.0)) for v in variables]
    train_op = optimizer.minimize(tf.add_n(losses), step)
    ratios = {name: tf.identity(ratio) for name, ratio in optimizer.trust_ratios.items()}
    return train_op, ([*variables, *optimizer.variables(), step], ratios, optimizer)


def one_by_one(name, **options):
    """Returns a function that makes an optimizer whose updates are not functions."""

    def make(rate):
        optimizer = create_optimizer(name, rate, **options)
        optimizer._update = functools.partial(_directly, optimizer)
        return optimizer

    return make


def _directly(optimizer, *arguments):
    with mock.patch.object(chain, "call", _not_traced):
        return ChainOptimizer._update(optimizer, *arguments)


def _not_traced(pieces, update, value, slots, step):
    """Stands for `variable_update.call`."""
    return *variable_update.new_values(pieces, update, value, slots, step), step.reports


def as_functions(name, **options):
    return lambda rate: create_optimizer(name, rate, **options)


def states_in_a_session(make):
    with tf.Graph().as_default(), tf.Session() as session:
        train_op, (state, ratios, optimizer) = build_updates(
            make, tf.placeholder_with_default(0.1, [])
        )
        session.run(tf.global_variables_initializer())
        found = []
        for _ in range(3):
            _, of_step = session.run([train_op, ratios])
            found.append((of_step, session.run(state)))
        names = [v.name for v in state]
        return names, found, list(optimizer.trust_ratios)


CASES = [(name, {}) for name in OPTIMIZERS] + [
    ("lamb", {"bias_correction": True, "bfloat16_first_moments": True}),
    ("adamw", {"bias_correction": True}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_updates_by_functions_equal_updates_one_by_one(name, options):
    names, expected, ratios = states_in_a_session(one_by_one(name, **options))
    found_names, found, found_ratios = states_in_a_session(as_functions(name, **options))
    assert found_names == names
    assert found_ratios == ratios
    for (ratios, state), (wanted_ratios, wanted) in zip(found, expected, strict=True):
        assert ratios == wanted_ratios
        for value, other in zip(state, wanted, strict=True):
            np.testing.assert_array_equal(value, other)


def state_builder(make):
    def build():
        train_op, (state, _, _) = build_updates(make, 0.1)
        return train_op, state

    return build


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize(("name", "options"), CASES[:1] + CASES[-1:])
def test_updates_by_functions_in_a_while_loop(name, options, version):
    _, expected, _ = states_in_a_session(as_functions(name, **options))
    build = state_builder(as_functions(name, **options))
    found = optimizer_steps.state_after_turns(build, version)
    for value, wanted in zip(found, expected[-1][1], strict=True):
        np.testing.assert_allclose(np.float32(value), np.float32(wanted), rtol=1e-5, atol=1e-7)


# Compiling takes seconds: these have factored moments, and LAMB with a slot in bfloat16.
QUICK_TO_COMPILE = ("adafactor", {}), CASES[-2]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        case if case in QUICK_TO_COMPILE else pytest.param(*case, marks=pytest.mark.slow)
        for case in CASES
    ],
)
def test_updates_by_functions_compiled(name, options):
    """XLA may keep gradients of bfloat16 variables in float32, so a session is not compared."""
    expected, found = [
        optimizer_steps.state_after_compiled_steps(state_builder(make(name, **options)))
        for make in (one_by_one, as_functions)
    ]
    for value, wanted in zip(found, expected, strict=True):
        tolerance = 1e-2 if value.dtype == tf.bfloat16.as_numpy_dtype else 1e-6
        np.testing.assert_allclose(np.float32(value), np.float32(wanted), rtol=tolerance, atol=1e-7)


class Counting(Piece):
    """Counts its calls, and treats variables with a "b" in their names apart."""

    elementwise = takes_parts = True

    def __init__(self):
        self.calls = []

    def of(self, name):
        return self if "b" in name else None

    def __call__(self, update, value, slots, step):
        self.calls.append(tuple(value.shape.as_list()))
        return update * 10.0, {}


def test_a_piece_is_called_once_for_variables_that_are_alike():
    piece = Counting()
    with tf.Graph().as_default(), tf.Session() as session:
        variables = [tf.get_variable(name, initializer=[1.0]) for name in ("a", "b", "c", "ab")]
        optimizer = ChainOptimizer([piece, ScaleByLearningRate()], 0.5, "Counted")
        train_op = optimizer.apply_gradients([(tf.constant([1.0]), v) for v in variables])
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        assert session.run(variables) == [0.5, -4.0, 0.5, -4.0]
    assert piece.calls == [(1,)]


def compiled(graph):
    """Returns the names of the functions of a graph that XLA compiles."""
    library = graph.as_graph_def().library.function
    return [f.signature.name for f in library if f.attr["_XlaMustCompile"].b]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_large_variables_are_updated_as_small_ones_are(name, options, monkeypatch):
    """The first elementwise pieces of an update are one XLA computation if a variable is large."""
    _, expected, _ = states_in_a_session(as_functions(name, **options))
    monkeypatch.setattr(variable_update, "_LEAST_ELEMENTS", 6)
    names, found, _ = states_in_a_session(as_functions(name, **options))
    for (_, state), (_, wanted) in zip(found, expected, strict=True):
        for place, (value, other) in enumerate(zip(state, wanted, strict=True)):
            tolerance = 1e-2 if value.dtype == tf.bfloat16.as_numpy_dtype else 1e-6
            np.testing.assert_allclose(
                np.float32(value),
                np.float32(other),
                rtol=tolerance,
                atol=1e-7,
                err_msg=names[place],
            )


@pytest.mark.parametrize(
    ("name", "shapes", "number"),
    [("lamb", [[2, 3]] * 2, 1), ("lamb", [[2, 3], [3, 2]], 2), ("lamb", [[2, 2]], 0),
     ("adafactor", [[2, 3]], 0)],
)  # fmt: skip
def test_what_is_compiled(name, shapes, number, monkeypatch):
    """Adafactor begins with means over a matrix, so nothing comes before them."""
    monkeypatch.setattr(variable_update, "_LEAST_ELEMENTS", 6)
    with tf.Graph().as_default() as graph:
        variables = [tf.get_variable(f"w{i}", shape) for i, shape in enumerate(shapes)]
        optimizer = create_optimizer(name, 0.1)
        pairs = [(tf.ones(v.shape), v) for v in variables]
        optimizer.apply_gradients(pairs, tf.train.create_global_step())
        assert len(compiled(graph)) == number


def test_a_step_that_xla_compiles_as_a_whole_has_no_computation_of_its_own(monkeypatch):
    monkeypatch.setattr(variable_update, "_LEAST_ELEMENTS", 1)
    with tf.Graph().as_default() as graph:
        weight = tf.get_variable("w", [2, 3], use_resource=True)
        control_flow_ops.XLAControlFlowContext().Enter()
        LAMBOptimizer(0.1).apply_gradients([(tf.ones([2, 3]), weight)])
        assert compiled(graph) == []
