"""Copies of operations, and updates that are copies: the same as what they are copied from."""

import functools
import time

import numpy as np
import optimizer_steps
import pytest
import tensorflow.compat.v1 as tf
import tensorflow.compat.v2 as tf2

from bert_estimator.optimization import copies
from bert_estimator.optimization.chain import ChainOptimizer
from bert_estimator.optimization.optimizers import OPTIMIZERS, create_optimizer
from bert_estimator.optimization.parameter import alike
from bert_estimator.optimization.scaling import ScaleByLearningRate


def copied(build, inputs, others):
    """Calls `build` with inputs; returns the operations made, the outputs, and their copies."""
    graph = tf.get_default_graph()
    before = len(graph.get_operations())
    outputs = build(*inputs)
    operations = graph.get_operations()[before:]
    return operations, outputs, copies.copy(operations, outputs, inputs, others, "copies")


def test_a_copy_computes_the_same_from_other_inputs():
    with tf.Graph().as_default(), tf.Session() as session:
        pairs = [[tf.constant([float(i), 2.0]), tf.constant(i + 0.5)] for i in range(4)]

        def build(x, y):
            middle = tf.unstack(x * y)  # an operation with two outputs
            return [middle[1] - middle[0], x + middle[1]]

        _, outputs, others = copied(build, pairs[0], pairs[1:])
        found = session.run([outputs, *others])
        for i, (difference, total) in enumerate(found):
            y = i + 0.5
            assert difference == 2.0 * y - i * y
            np.testing.assert_array_equal(total, np.float32([i, 2.0]) + 2.0 * y)
        assert [each.shape.as_list() for each in others[0]] == [[], [2]]
        assert others[0][0].op.name.startswith("copies/0/")


def test_copies_share_what_does_not_depend_on_the_inputs():
    with tf.Graph().as_default(), tf.Session() as session:
        rate = tf.placeholder(tf.float32, [], "rate")
        inputs = [[tf.constant(float(i), name=f"x{i}")] for i in range(3)]

        def build(x):
            constant = tf.sqrt(rate, name="root")
            return [x * constant, constant, x]

        _, _, others = copied(build, inputs[0], inputs[1:])
        roots = [op for op in tf.get_default_graph().get_operations() if op.type == "Sqrt"]
        assert len(roots) == 1
        for i, (product, constant, same) in enumerate(others, start=1):
            assert constant.op is roots[0]
            assert same is inputs[i][0]
            assert session.run(product, {rate: 4.0}) == 2.0 * i


def test_copies_of_nothing_are_none():
    with tf.Graph().as_default():
        _, _, others = copied(lambda x: [x + 1.0], [tf.constant(1.0)], [])
        assert others == []


def test_copies_wait_for_what_the_caller_waits_for():
    with tf.Graph().as_default(), tf.device("/cpu:0"):
        first = tf.no_op("first")
        inputs = [[tf.constant(float(i))] for i in range(2)]
        with tf.control_dependencies([first]):
            _, _, ((copy,),) = copied(lambda x: [x + 1.0], inputs[0], inputs[1:])
        assert first in copy.op.control_inputs
        assert copy.op.device == "/device:CPU:0"


def test_copies_keep_what_the_original_waits_for():
    """The check of a copy is of the copy's own input."""
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = [[tf.placeholder_with_default(float(i), [])] for i in range(3)]

        def build(x):
            check = tf.debugging.assert_less(x, 2.0, message="too large")
            with tf.control_dependencies([check]):
                return [x + 1.0]

        _, _, ((small,), (large,)) = copied(build, inputs[0], inputs[1:])
        assert session.run(small) == 2.0
        with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
            session.run(large)


def test_copies_keep_the_devices_of_their_originals():
    with tf.Graph().as_default():
        inputs = [[tf.constant(float(i))] for i in range(2)]

        def build(x):
            with tf.device("/cpu:0"):
                y = x + 1.0
            return [y, y * 2.0]

        with tf.device("/job:worker"):
            _, originals, (others,) = copied(build, inputs[0], inputs[1:])
        devices = ["/job:worker/device:CPU:0", "/job:worker"]
        assert [each.op.device for each in originals] == devices
        assert [each.op.device for each in others] == devices


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
    """Returns a function that makes an optimizer whose pieces do not say what they do alike."""

    def make(rate):
        optimizer = create_optimizer(name, rate, **options)
        pieces = [lambda update, p, piece=piece: piece(update, p) for piece in optimizer._pieces]
        return ChainOptimizer(pieces, optimizer.get_name())

    return make


def as_copies(name, **options):
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
def test_copied_updates_equal_updates_one_by_one(name, options):
    names, expected, ratios = states_in_a_session(one_by_one(name, **options))
    found_names, found, found_ratios = states_in_a_session(as_copies(name, **options))
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
def test_copied_updates_in_a_while_loop(name, options, version):
    _, expected, _ = states_in_a_session(as_copies(name, **options))
    build = state_builder(as_copies(name, **options))
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
def test_copied_updates_compiled(name, options):
    """XLA may keep gradients of bfloat16 variables in float32, so a session is not compared."""
    expected, found = [
        optimizer_steps.state_after_compiled_steps(state_builder(make(name, **options)))
        for make in (one_by_one, as_copies)
    ]
    for value, wanted in zip(found, expected, strict=True):
        tolerance = 1e-2 if value.dtype == tf.bfloat16.as_numpy_dtype else 1e-6
        np.testing.assert_allclose(np.float32(value), np.float32(wanted), rtol=tolerance, atol=1e-7)


class Counting:
    """Is a piece that counts its calls, and treats variables with a "b" in their names apart."""

    def __init__(self, number):
        self.calls, self._number = [], number

    def kind(self, name):
        return "b" in name

    def __call__(self, update, parameter):
        self.calls.append(parameter.name)
        return update * (self._number if "b" in parameter.name else 1.0)


@pytest.mark.parametrize("wraps", [False, True])
def test_pieces_are_called_once_for_variables_of_a_kind(wraps):
    piece = Counting(10.0)
    given = (lambda update, parameter: piece(update, parameter)) if wraps else piece
    with tf.Graph().as_default(), tf.Session() as session:
        variables = [tf.get_variable(name, initializer=[1.0]) for name in ("a", "b", "c", "ab")]
        optimizer = ChainOptimizer([given, ScaleByLearningRate(0.5)], "Counted")
        train_op = optimizer.apply_gradients([(tf.constant([1.0]), v) for v in variables])
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        np.testing.assert_array_equal(session.run(variables), [[0.5], [-4.0], [0.5], [-4.0]])
    assert piece.calls == (["a", "b", "c", "ab"] if wraps else ["a", "b"])


def test_a_subclass_with_its_own_call_is_called_for_each_variable():
    class Twice(Counting):
        takes_parts = True  # says it again, `kind` it does not

        def __call__(self, update, parameter):
            return 2.0 * super().__call__(update, parameter)

    piece = Twice(10.0)
    with tf.Graph().as_default():
        variables = [tf.get_variable(name, initializer=[1.0]) for name in ("a", "b", "c")]
        optimizer = ChainOptimizer([piece], "Twice")
        optimizer.apply_gradients([(tf.constant([1.0]), v) for v in variables])
    assert piece.calls == ["a", "b", "c"]
    assert optimizer.takes_parts

    class Half(ScaleByLearningRate):
        def __call__(self, update, parameter):
            return 0.5 * super().__call__(update, parameter)

    assert not ChainOptimizer([Half(1.0)], "Half").takes_parts


def test_a_function_that_wraps_another_one_is_called_for_each_variable():
    def twice(update, parameter):
        return 2.0 * update

    twice.kind = alike

    @functools.wraps(twice)
    def but_not_b(update, parameter):
        return twice(update, parameter) * (parameter.name != "b")

    values, _ = after_a_step(but_not_b)
    assert values == [-1.0, 1.0, -1.0]


def after_a_step(piece):
    """Returns (the variables a, b and c after one update by 1, the error that it ended with)."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        variables = [tf.get_variable(name, initializer=1.0) for name in ("a", "b", "c")]
        train_op = ChainOptimizer([piece], "Own").apply_gradients(
            [(tf.constant(1.0), variable) for variable in variables]
        )
        session.run(tf.global_variables_initializer())
        try:
            session.run(train_op)
        except tf.errors.InvalidArgumentError as error:
            return session.run(variables), error
        return session.run(variables), None


def checked_first(update, parameter):
    late = tf.py_func(lambda: (time.sleep(0.3), np.float32(5.0))[1], [], tf.float32)
    with tf.control_dependencies([tf.debugging.assert_less(late, 1.0)]):
        return tf.identity(update)


def randomly(update, parameter):
    return update + tf.random.uniform([])


def in_a_loop(update, parameter):
    return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, x + x), [0, update])[1]


checked_first.kind = randomly.kind = in_a_loop.kind = alike


def test_what_cannot_be_copied_is_built_for_each_variable():
    values, error = after_a_step(checked_first)
    assert values == [1.0, 1.0, 1.0] and error is not None
    values, _ = after_a_step(randomly)
    assert len(set(values)) == 3
    for version in ("v1", "v2"):
        with optimizer_steps.control_flow(version):
            assert after_a_step(in_a_loop) == ([-7.0, -7.0, -7.0], None)


def test_eager_tensors_are_gradients():
    with tf.init_scope():
        variables = [tf2.Variable(1.0, name=name) for name in ("a", "b", "c")]
        optimizer = create_optimizer("adamw", 0.1)
        gradients = [tf.constant(each) for each in (1.0, -1.0, 0.0)]

        @tf2.function
        def step():
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

        step()
        assert [variable.numpy() < 1 for variable in variables] == [True, False, True]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_gradients_from_outside_of_a_condition(version):
    """An update may depend on whether gradients are finite."""
    gradients = [3.0, 5.0, 7.0]
    with optimizer_steps.control_flow(version), tf.Graph().as_default(), tf.Session() as session:
        outer = [tf.constant(each, name=f"gradient_{each:.0f}") for each in gradients]
        variables = [tf.get_variable(f"v{i}", initializer=0.0, use_resource=True) for i in range(3)]
        optimizer = ChainOptimizer([ScaleByLearningRate(0.5)], "Conditional")

        def update():
            for each in gradients:  # other tensors with the names of the gradients
                tf.constant(1000.0, name=f"gradient_{each:.0f}")
            with tf.control_dependencies(
                [optimizer.apply_gradients(zip(outer, variables, strict=True))]
            ):
                return tf.constant(1)

        finite = tf.reduce_all(tf.math.is_finite(tf.stack(outer)))
        done = tf.cond(finite, update, lambda: tf.constant(0))
        session.run(tf.global_variables_initializer())
        assert session.run(done) == 1
        assert session.run(variables) == [-1.5, -2.5, -3.5]


def test_updates_in_a_program_that_tensorflow_compiles():
    """`tf.xla.experimental.compile` marks operations, and copies are marked once."""
    with tf.Graph().as_default(), tf.Session() as session:
        variables = [tf.get_variable(f"v{i}", initializer=1.0, use_resource=True) for i in range(3)]
        optimizer = ChainOptimizer([ScaleByLearningRate(0.5)], "Compiled")

        def step():
            train_op = optimizer.minimize(tf.add_n([tf.square(v) for v in variables]))
            with tf.control_dependencies([train_op]):
                return tf.constant(1.0)

        (done,) = tf.xla.experimental.compile(step)
        session.run(tf.global_variables_initializer())
        session.run(done)
        assert session.run(variables) == [0.0, 0.0, 0.0]


def test_a_gradient_that_is_the_learning_rate_too():
    """Copies have other gradients, but the same learning rate."""
    with tf.Graph().as_default(), tf.Session() as session:
        rate = tf.constant(0.5)
        variables = [tf.get_variable(name, initializer=1.0) for name in ("a", "b")]
        optimizer = ChainOptimizer([ScaleByLearningRate(rate)], "Rate")
        train_op = optimizer.apply_gradients(zip([rate, tf.constant(4.0)], variables, strict=True))
        session.run(tf.global_variables_initializer())
        session.run(train_op)
        assert session.run(variables) == [0.75, -1.0]


def test_slots_that_start_from_one_tensor_are_apart():
    with tf.Graph().as_default(), tf.Session() as session:
        variables = [tf.get_variable(name, [40, 40]) for name in ("a", "b")]
        optimizer = create_optimizer("adamw", 0.1)
        optimizer.apply_gradients([(tf.ones([40, 40]), v) for v in variables])
        slots = optimizer.variables()
        session.run(tf.global_variables_initializer())
        session.run(slots[0].assign_add(tf.ones([40, 40])))
        session.run(slots[1].scatter_update(tf.IndexedSlices(tf.ones([1, 40]), [3])))
        totals = [value.sum() for value in session.run(slots)]
        assert totals == [1600.0, 40.0, 0.0, 0.0]
