"""The chain: slots, order, where it runs, and shared calls."""

import functools
import time
from unittest import mock

import numpy as np
import optimizer_steps
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import control_flow_ops

from bert_estimator import precision
from bert_estimator.optimization import chain
from bert_estimator.optimization.chain import ChainOptimizer
from bert_estimator.optimization.optimizers import (
    OPTIMIZERS,
    LAMBOptimizer,
    create_optimizer,
)
from bert_estimator.optimization.piece import Piece
from bert_estimator.optimization.pieces import Momentum, ScaleByLearningRate

KERNEL = np.float32([[0.5, -0.25], [1.0, 2.0], [-1.5, 0.75]])
TARGET = np.float32([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])


@pytest.fixture(params=["small", "large"])
def of_any_size(request, monkeypatch):
    """Updates all variables as small ones, and as large ones, which XLA writes in place."""
    if request.param == "large":
        monkeypatch.setattr(chain, "LEAST_ELEMENTS", 1)


@pytest.mark.usefixtures("of_any_size")
def test_a_bfloat16_variable_is_updated_in_float32_and_stored_as_it_was():
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable("w", initializer=tf.constant([1.0, 2.0], tf.bfloat16))
        optimizer = ChainOptimizer([ScaleByLearningRate()], 0.5, "Descent")
        train_op = optimizer.apply_gradients([(tf.constant([1.0, 2**-8]), variable)])
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        np.testing.assert_array_equal(session.run(tf.cast(variable, tf.float32)), [0.5, 2.0])


def build_step():
    """Builds a LAMB step on ||kernel - target||^2 + bias^2, as a model_fn would build it."""
    with tf.variable_scope("layer"):
        kernel = tf.get_variable("kernel", initializer=KERNEL)
        bias = tf.get_variable("bias", initializer=np.float32([0.5, 0.5]))
    loss = tf.reduce_sum(tf.square(kernel - TARGET)) + tf.reduce_sum(tf.square(bias))
    global_step = tf.train.get_or_create_global_step()
    optimizer = LAMBOptimizer(0.01, bias_correction=True)
    train_op = optimizer.minimize(loss, global_step=global_step)
    return train_op, [kernel, bias, *optimizer.variables(), global_step]


def three_steps_in_a_session():
    """Returns the state after three plain steps."""
    with tf.Graph().as_default(), tf.Session() as session:
        train_op, state = build_step()
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(train_op)
        return session.run(state)


@pytest.mark.usefixtures("of_any_size")
def test_three_compiled_steps_equal_three_plain_ones():
    expected = three_steps_in_a_session()
    state = optimizer_steps.state_after_compiled_steps(build_step)
    for found, wanted in zip(state, expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_every_variable_is_assigned_after_every_gradient():
    """The loss reads `second` after its gradient by `first`; no update may come between them."""
    with tf.Graph().as_default():
        first = tf.get_variable("first", [2])
        second = tf.get_variable("second", [2])
        gradients = [tf.identity(first, name="g1"), tf.identity(second, name="g2")]
        optimizer = LAMBOptimizer(0.1)
        train_op = optimizer.apply_gradients(
            zip(gradients, [first, second], strict=True), tf.train.create_global_step()
        )
        assigns = [
            op
            for op in tf.get_default_graph().get_operations()
            if op.type == "AssignVariableOp" and op.name.startswith("LAMBOptimizer")
        ]
        assert len(assigns) == 6
        for assign in assigns:
            before = optimizer_steps.ancestors(assign)
            assert {"g1", "g2"} <= before
            assert not before & {other.name for other in assigns}
        assert {assign.name for assign in assigns} <= optimizer_steps.ancestors(train_op)


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("place", ["condition", "loop"])
def test_gradients_from_outside_are_computed_before_the_first_update(place, version):
    """A branch or a body gets them as arguments, each as soon as it is there."""
    with optimizer_steps.control_flow(version), tf.Graph().as_default(), tf.Session() as session:
        a, b = [tf.get_variable(name, initializer=1.0, use_resource=True) for name in "ab"]
        pause = tf.py_func(lambda: (time.sleep(0.3), np.float32(0))[1], [], tf.float32)
        with tf.control_dependencies([pause]):
            late = tf.ensure_shape(a.read_value(), [])
        gradients = [(tf.constant(10.0), a), (late, b)]
        optimizer = ChainOptimizer([ScaleByLearningRate()], 0.5, "Own")

        def update(turn=0):
            with tf.control_dependencies([optimizer.apply_gradients(gradients)]):
                return tf.constant(1) + turn

        if place == "loop":
            done = tf.while_loop(lambda turn: turn < 1, update, [0])
        else:
            done = tf.cond(tf.placeholder_with_default(True, []), update, lambda: tf.constant(0))
        session.run(tf.global_variables_initializer())
        session.run(done)
        assert session.run([a, b]) == [-4.0, 0.5]


def test_every_read_of_a_variable_and_its_slots_comes_before_their_assignments():
    with tf.Graph().as_default():
        weight = tf.get_variable("w", [2])
        LAMBOptimizer(0.1).apply_gradients([(tf.ones([2]), weight)])
        operations = [
            op
            for op in tf.get_default_graph().get_operations()
            if op.name.startswith("LAMBOptimizer")
        ]
        reads = {op.name for op in operations if op.type == "ReadVariableOp"}
        assigns = [op for op in operations if op.type == "AssignVariableOp"]
        assert len(reads) == 3 and len(assigns) == 3
        for assign in assigns:
            assert reads <= optimizer_steps.ancestors(assign)


def test_slots_are_float32_resources_named_after_the_variable_in_any_scope():
    """They are so under a bfloat16 scope too, which has a name and a getter of its own."""
    with tf.Graph().as_default(), tf.Session() as session:
        with precision.scope("bfloat16"), tf.variable_scope("bert"):
            read = tf.get_variable("kernel", [2, 2], dtype=tf.bfloat16)
            loss = tf.reduce_sum(tf.cast(tf.square(read), tf.float32))
            (variable,) = tf.trainable_variables()
            optimizer = LAMBOptimizer(0.1)
            train_op = optimizer.minimize(loss, var_list=[variable])
        assert read.dtype == tf.bfloat16
        assert [slot.name for slot in optimizer.variables()] == [
            "bert/kernel/adam_m:0",
            "bert/kernel/adam_v:0",
        ]
        assert optimizer.get_slot(variable, "adam_m") is optimizer.variables()[0]
        assert optimizer.get_slot(variable, "momentum") is None
        assert optimizer.get_slot_names() == ["adam_m", "adam_v"]
        for slot in optimizer.variables():
            assert slot.dtype.base_dtype == tf.float32
            assert slot.handle.dtype == tf.resource
            assert slot in tf.global_variables()
        assert tf.trainable_variables() == [variable]
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        assert np.isfinite(session.run(variable)).all()


def test_a_checkpoint_of_any_program_with_these_names_restores(tmp_path):
    """The names and shapes are google-research/bert's; what wrote the file does not matter."""
    path = str(tmp_path / "model.ckpt")
    names = ["w", "w/adam_m", "w/adam_v"]
    with tf.Graph().as_default(), tf.Session() as session:
        for number, name in enumerate(names):
            tf.get_variable(name, initializer=np.float32([number, 7.0]), use_resource=False)
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, path)
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("w", [2])
        optimizer = LAMBOptimizer(0.1)
        optimizer.apply_gradients([(tf.ones([2]), weight)])
        saver = tf.train.Saver()
        saver.restore(session, path)
        restored = session.run([weight, *optimizer.variables()])
        np.testing.assert_array_equal(restored, [[0.0, 7.0], [1.0, 7.0], [2.0, 7.0]])
        saver.save(session, path)
    assert sorted(name for name, _ in tf.train.list_variables(path)) == names


@pytest.mark.usefixtures("of_any_size")
def test_the_global_step_counts_once_a_step_or_not_at_all():
    with tf.Graph().as_default(), tf.Session() as session:
        weights = [tf.get_variable(f"w{i}", initializer=[1.0]) for i in range(3)]
        step = tf.train.create_global_step()
        optimizer = LAMBOptimizer(0.1)
        pairs = [(tf.constant([1.0]), weight) for weight in weights]
        with_step = optimizer.apply_gradients(pairs, step)
        without_step = optimizer.apply_gradients(pairs)
        session.run(tf.global_variables_initializer())
        session.run(with_step)
        assert session.run(step) == 1
        session.run(without_step)
        assert session.run(step) == 1


@pytest.mark.usefixtures("of_any_size")
def test_the_learning_rate_is_read_before_the_step_is_counted():
    """A rate of 0 in step 0 must not move anything, however the session orders its work."""
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("w", initializer=[1.0])
        step = tf.train.create_global_step()
        rate = tf.cast(step, tf.float32)
        train_op = ChainOptimizer([ScaleByLearningRate()], rate, "Descent").apply_gradients(
            [(tf.constant([1.0]), weight)], step
        )
        session.run(tf.global_variables_initializer())
        seen = []
        for _ in range(3):
            session.run(train_op)
            seen.append(float(session.run(weight)[0]))
    assert seen == [1.0, 0.0, -2.0]


@pytest.mark.usefixtures("of_any_size")
def test_a_sparse_gradient_equals_the_dense_one():
    values = {}
    for kind in ("sparse", "dense"):
        with tf.Graph().as_default(), tf.Session() as session:
            table = tf.get_variable("table", initializer=KERNEL)
            gradient = tf.IndexedSlices(
                tf.ones([3, 2]), tf.constant([2, 0, 2]), tf.constant([3, 2])
            )
            if kind == "dense":
                gradient = tf.constant([[1.0, 1.0], [0.0, 0.0], [2.0, 2.0]])
            train_op = LAMBOptimizer(0.1).apply_gradients([(gradient, table)])
            session.run(tf.global_variables_initializer())
            session.run(train_op)
            values[kind] = session.run(tf.global_variables())
    for sparse, dense in zip(values["sparse"], values["dense"], strict=True):
        np.testing.assert_array_equal(sparse, dense)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_gradient_may_hide_its_shape(name):
    """Such a gradient comes from `tf.py_func`."""
    found = []
    for hides in (False, True):
        with tf.Graph().as_default(), tf.Session() as session:
            step = tf.train.create_global_step()
            kernel = tf.get_variable("kernel", initializer=tf.constant(KERNEL))
            gradient = tf.constant(TARGET)
            hidden = tf.placeholder_with_default(gradient, None) if hides else gradient
            optimizer = create_optimizer(name, 0.1)
            train_op = optimizer.apply_gradients([(hidden, kernel)], step)
            session.run(tf.global_variables_initializer())
            session.run(train_op)
            found.append(session.run(kernel))
            assert np.any(found[-1] != KERNEL)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


def test_a_variable_without_a_gradient_stays_and_gets_no_slots():
    with tf.Graph().as_default(), tf.Session() as session:
        used = tf.get_variable("used", initializer=[1.0])
        unused = tf.get_variable("unused", initializer=[1.0])
        optimizer = LAMBOptimizer(0.1)
        train_op = optimizer.minimize(tf.reduce_sum(used))
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        assert session.run(unused) == [1.0]
        assert session.run(used) < 1.0
        assert optimizer.get_slot(unused, "adam_m") is None


def test_variables_of_the_old_kind_work_too():
    """Scripts that call disable_v2_behavior() have reference variables."""
    values = []
    for use_resource in (False, True):
        with tf.Graph().as_default(), tf.Session() as session:
            weight = tf.get_variable("w", initializer=KERNEL, use_resource=use_resource)
            optimizer = LAMBOptimizer(0.1)
            train_op = optimizer.minimize(tf.reduce_sum(tf.square(weight - TARGET)))
            session.run(tf.global_variables_initializer())
            for _ in range(3):
                session.run(train_op)
            assert all(slot.handle.dtype == tf.resource for slot in optimizer.variables())
            values.append(session.run(weight))
    np.testing.assert_array_equal(*values)


def test_two_optimizers_on_one_variable_do_not_share_slots_silently():
    with tf.Graph().as_default():
        pairs = [(tf.ones([2]), tf.get_variable("w", [2]))]
        LAMBOptimizer(0.1).apply_gradients(pairs)
        with pytest.raises(ValueError, match="w/adam_m already exists"):
            LAMBOptimizer(0.1).apply_gradients(pairs)


def test_refuses_to_apply_nothing():
    with tf.Graph().as_default():
        weight = tf.get_variable("w", [2])
        with pytest.raises(ValueError, match=r"LAMBOptimizer: no variable has a gradient"):
            LAMBOptimizer(0.1).apply_gradients([(None, weight)])


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
        optimizer.apply_gradients = functools.partial(_directly, optimizer)
        return optimizer

    return make


def _directly(optimizer, *arguments, **keywords):
    with mock.patch.object(chain, "_traced", _not_traced):
        return ChainOptimizer.apply_gradients(optimizer, *arguments, **keywords)


def _not_traced(pieces, size, slot_names, specs):
    """Stands for `chain._traced`."""

    def run(update, value, rate, number, scale, *slots):
        slots = dict(zip(slot_names, slots, strict=True))
        return chain._run(pieces, size, update, value, slots, rate, number, scale)

    return run


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


@pytest.mark.usefixtures("of_any_size")
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


def moved(pieces, initial, gradients, rate=1.0):
    """Returns the variables, as lists, after an update by a chain."""
    history = optimizer_steps.run(
        lambda rate: ChainOptimizer(pieces, rate, "Own"), initial, [gradients], [rate]
    )
    return [value.tolist() for value in history[0]["param"].values()]


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
    piece, ones = Counting(), {name: [1.0] for name in ("a", "b", "c", "ab")}
    assert moved([piece, ScaleByLearningRate()], ones, ones, 0.5) == [[0.5], [-4.0]] * 2
    assert piece.calls == [(1,)]


class DividedBySize(Piece):
    """Is elementwise, and reads the size of the variable."""

    elementwise = takes_parts = True

    def __call__(self, update, value, slots, step):
        return update / step.size, {}


@pytest.mark.parametrize("least", [1, 100])
def test_an_elementwise_piece_knows_the_size_of_the_variable(least, monkeypatch):
    monkeypatch.setattr(chain, "LEAST_ELEMENTS", least)
    pieces = [DividedBySize(), ScaleByLearningRate()]
    assert moved(pieces, {"w": [1.0, 2.0]}, {"w": [4.0, 8.0]}) == [[-1.0, -2.0]]


class DividedByTwoSums(Piece):
    """Is told that it takes parts, but its second sum depends on the first."""

    takes_parts = True

    def __call__(self, update, value, slots, step):
        first = step.total(tf.reduce_sum(value))
        return update / step.total(tf.reduce_sum(value - first)), {}


def test_a_sum_that_depends_on_another_is_not_silently_wrong(monkeypatch):
    monkeypatch.setattr(chain, "LEAST_ELEMENTS", 1)
    pieces = [DividedByTwoSums(), ScaleByLearningRate()]
    assert np.isnan(moved(pieces, {"w": [1.0, 2.0]}, {"w": [4.0, 8.0]})).all()


@pytest.mark.usefixtures("of_any_size")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_update_scales_and_casts_gradients(name):
    found = []
    for by_update in (False, True):
        with tf.Graph().as_default(), tf.Session() as session:
            weight = tf.get_variable("w", initializer=tf.constant(KERNEL))
            short = tf.constant(TARGET + 0.3, tf.bfloat16)
            gradient, scale = tf.cast(short, tf.float32), tf.constant(0.25)
            keywords = {"scale": scale} if by_update else {}
            train_op = create_optimizer(name, 0.1).apply_gradients(
                [(gradient if by_update else gradient * scale, weight)],
                tf.train.create_global_step(),
                **keywords,
            )
            casts = optimizer_steps.ancestors(train_op) & {gradient.op.name}
            assert len(casts) == (not by_update)
            session.run(tf.global_variables_initializer())
            session.run(train_op)
            found.append(session.run(tf.global_variables()))
    for value, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-6, atol=1e-7)


def test_two_pieces_cannot_share_a_slot():
    with tf.Graph().as_default():
        optimizer = ChainOptimizer([Momentum(0.5), Momentum(0.9)], 1.0, "Twice")
        message = r"Momentum\(beta=0.5\), Momentum\(beta=0.9\) have a slot 'momentum'; give"
        with pytest.raises(ValueError, match=message):
            optimizer.apply_gradients([(tf.ones([2]), tf.get_variable("w", [2]))])


@pytest.mark.usefixtures("of_any_size")
def test_what_is_listed_is_computed_before_the_first_variable_changes():
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("w", initializer=1.0, use_resource=True)
        slow = tf.numpy_function(lambda: np.float32(time.sleep(0.2) or 0.0), [], tf.float32)
        with tf.control_dependencies([slow]):
            before = weight.read_value()
        train_op = ChainOptimizer([ScaleByLearningRate()], 1.0, "Own").apply_gradients(
            [(tf.constant(3.0), weight)], after=[before]
        )
        session.run(tf.global_variables_initializer())
        assert session.run([before, train_op])[0] == 1.0
        assert session.run(weight) == -2.0


def compiled(graph):
    """Returns the names of the functions of a graph that XLA compiles."""
    library = graph.as_graph_def().library.function
    return [f.signature.name for f in library if f.attr["_XlaMustCompile"].b]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_large_variables_are_updated_as_small_ones_are(name, options, monkeypatch):
    """Large variables are updated in place, by XLA computations between the sums of the pieces."""
    _, expected, _ = states_in_a_session(as_functions(name, **options))
    monkeypatch.setattr(chain, "LEAST_ELEMENTS", 6)
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
    [("lamb", [[2, 3]] * 2, 2), ("lamb", [[2, 3], [3, 2]], 4), ("lamb", [[2, 2]], 0),
     ("adamw", [[2, 3]], 1), ("adafactor", [[2, 3]], 0)],
)  # fmt: skip
def test_what_is_compiled(name, shapes, number, monkeypatch):
    """LAMB is compiled before its norms and after them; Adafactor has means over a matrix."""
    monkeypatch.setattr(chain, "LEAST_ELEMENTS", 6)
    with tf.Graph().as_default() as graph:
        variables = [tf.get_variable(f"w{i}", shape) for i, shape in enumerate(shapes)]
        optimizer = create_optimizer(name, 0.1)
        pairs = [(tf.ones(v.shape), v) for v in variables]
        optimizer.apply_gradients(pairs, tf.train.create_global_step())
        assert len(compiled(graph)) == number


def test_a_step_that_xla_compiles_as_a_whole_has_no_computation_of_its_own(monkeypatch):
    monkeypatch.setattr(chain, "LEAST_ELEMENTS", 1)
    with tf.Graph().as_default() as graph:
        weight = tf.get_variable("w", [2, 3], use_resource=True)
        control_flow_ops.XLAControlFlowContext().Enter()
        LAMBOptimizer(0.1).apply_gradients([(tf.ones([2, 3]), weight)])
        assert compiled(graph) == []
