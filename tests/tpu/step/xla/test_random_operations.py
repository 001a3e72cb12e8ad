"""Random operations on cores are functions of (seed, operation, step, replica)."""

import re
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from compiled_steps import compiled

from bert_estimator.tpu.program import devices, lowered_step
from bert_estimator.tpu.program.core_mesh import CoreMesh
from bert_estimator.tpu.step.xla import graph_lowering, random_operations
from bert_estimator.tpu.step.xla.step_graph import StepGraph

pytestmark = pytest.mark.usefixtures("xla_runtime")

CORES = 2


def draws(model, seed=1, raises_step=True, number=3):
    """Returns what a model draws: a list, for each step, of a list of arrays [cores, ...]."""
    with tf.Graph().as_default():
        tf.set_random_seed(seed)
        global_step = tf.train.create_global_step()
        step = StepGraph(CORES)
        with step.building():
            drawn = tf.nest.flatten(model())
            update = [global_step.assign_add(1)] if raises_step else []
            drawn = [tf.identity(tensor)[tf.newaxis] for tensor in drawn]
        lowered = step.lower(drawn, update)
    assert "stablehlo.rng " not in lowered.text
    run = compiled(lowered, CoreMesh(devices.find(f"rehearse:{CORES}")))
    state = [np.zeros(variable.shape, variable.dtype) for variable in lowered.state]
    steps = []
    for _ in range(number):
        outputs, state = run(state, [])
        steps.append([np.asarray(output) for output in outputs])
    return steps


def in_loop():
    def turn(i, drawn):
        return i + 1, tf.concat([drawn[1:], tf.random.uniform([1])], 0)

    return tf.while_loop(lambda i, _: i < 9, turn, (0, tf.zeros([9])))[1]


def in_loop_of_loops():
    def turn(i, drawn):
        return i + 1, tf.concat([drawn[9:], in_loop()], 0)

    return tf.while_loop(lambda i, _: i < 3, turn, (0, tf.zeros([27])))[1]


def in_condition():
    return tf.cond(
        tf.train.get_global_step() >= 0,
        lambda: tf.random.uniform([9]),
        lambda: tf.random.normal([9]),
    )


def in_function():
    function = tf.compat.v2.function(lambda: tf.random.uniform([9]))
    return function()


def in_function_in_loop():
    function = tf.compat.v2.function(lambda: tf.random.uniform([1]))

    def turn(i, drawn):
        return i + 1, tf.concat([drawn[1:], function()], 0)

    function()  # is traced outside of the loop
    return tf.while_loop(lambda i, _: i < 9, turn, (0, tf.zeros([9])))[1]


def gradient_in_function():
    function = tf.compat.v2.function(lambda x: tf.nn.dropout(x, rate=0.5) + tf.random.uniform([30]))
    x = tf.ones([30])
    return tf.gradients(tf.square(function(x)), [x])[0]


def gradient_of_dropped():
    x = tf.ones([30])
    return tf.gradients(tf.nn.dropout(x, rate=0.5), [x])[0]


KINDS = {
    "uniform": lambda: tf.random.uniform([9], 2, 5),
    "uniform_float16": lambda: tf.random.uniform([9], dtype=tf.float16),
    "uniform_bfloat16": lambda: tf.random.uniform([9], dtype=tf.bfloat16),
    "uniform_float64": lambda: tf.random.uniform([9], dtype=tf.float64),
    "integers": lambda: tf.random.uniform([30], 3, 9, tf.int32),
    "integers_int64": lambda: tf.random.uniform([30], -9, 9, tf.int64),
    "normal": lambda: tf.random.normal([9], dtype=tf.float32),
    "normal_bfloat16": lambda: tf.random.normal([9], dtype=tf.bfloat16),
    "truncated_normal": lambda: tf.random.truncated_normal([9]),
    "shuffle": lambda: tf.random.shuffle(tf.range(30)),
    "shuffle_rows": lambda: tf.random.shuffle(tf.reshape(tf.range(60.0), [30, 2])),
    "multinomial": lambda: tf.random.multinomial(tf.zeros([2, 5]), 30),
    "categorical": lambda: tf.random.categorical(tf.zeros([2, 5]), 30, dtype=tf.int32),
    "dropout": lambda: tf.nn.dropout(tf.ones([30]), rate=0.5),
    "gradient_of_dropout": gradient_of_dropped,
    "flipped": lambda: tf.image.random_flip_left_right(tf.reshape(tf.range(192.0), [16, 3, 4, 1])),
    "cropped": lambda: tf.image.random_crop(tf.reshape(tf.range(99.0), [33, 3]), [5, 3]),
    "brightness": lambda: tf.image.random_brightness(tf.zeros([2, 2, 3]), 0.5),
    "initializer": lambda: tf.glorot_uniform_initializer()([3, 3]),
    "loop": in_loop,
    "loop_of_loops": in_loop_of_loops,
    "condition": in_condition,
    "function": in_function,
    "function_in_loop": in_function_in_loop,
    "gradient_in_function": gradient_in_function,
    "map_fn": lambda: tf.map_fn(lambda x: x + tf.random.normal([]), tf.zeros([5])),
}


def equal(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_draws_repeat_and_differ_by_seed_step_and_replica():
    def model():
        return [function() for function in KINDS.values()]

    first, again, other = (draws(model, seed) for seed in (1, 1, 2))
    for step in range(3):
        assert equal(first[step], again[step])
        for n, kind in enumerate(KINDS):
            assert not np.array_equal(first[step][n], other[step][n]), kind
            assert not np.array_equal(first[step][n], first[step - 1][n]), kind
            assert not np.array_equal(*first[step][n]), kind


@pytest.mark.parametrize("seed", [1, None])
def test_each_turn_and_each_operation_draws_other_numbers(seed):
    def model():
        return [tf.random.uniform([9]), tf.random.uniform([9]), in_condition(), in_condition(),
                in_loop(), in_loop(), in_function(), in_function_in_loop(),
                in_loop_of_loops()]  # fmt: skip

    numbers = np.concatenate([drawn.ravel() for step in draws(model, seed) for drawn in step])
    assert len(numbers) == 3 * CORES * (8 * 9 + 27)
    # Two of so many numbers of 23 bits are equal in 2 of 100 runs; a draw that repeats another one
    # repeats nine of them.
    assert len(np.unique(numbers)) > len(numbers) - 3


@pytest.mark.parametrize("kind", KINDS)
def test_without_any_seed_two_operations_draw_other_numbers(kind):
    for one, other in draws(lambda: [KINDS[kind](), KINDS[kind]()], None):
        assert not np.array_equal(one, other)


def functions_of_functions():
    """Returns what two calls of a function draw, which calls another function in a condition."""
    inner = tf.compat.v2.function(lambda: tf.random.uniform([9]))
    is_true = tf.train.get_global_step() >= 0
    outer = tf.compat.v2.function(lambda: tf.cond(is_true, inner, lambda: tf.zeros([9])) + inner())
    return [outer(), outer(), inner()]


def test_each_call_of_a_function_draws_other_numbers_as_in_a_session():
    numbers = [np.concatenate(step) for step in draws(functions_of_functions, None, number=2)]
    assert len(np.unique(numbers)) == 2 * CORES * 27
    (step,) = draws(functions_of_functions, 1, number=1)  # with seeds, a call has its own
    assert np.array_equal(step[0], step[1])


def test_a_step_that_is_built_again_draws_the_same_numbers():
    """It is not compiled again; and all hosts build the same step."""

    def model():
        return [functions_of_functions(), in_condition(), in_loop(), tf.random.uniform([9])]

    first, again = draws(model, None), draws(model, None)
    assert all(map(equal, first, again))


def test_threads_build_steps_at_once(monkeypatch):
    """Each counts its operations, and none removes the functions that another lowers."""
    expected = draws(lambda: [in_condition(), tf.random.uniform([9])], 3)[0]
    found, barrier = [], threading.Barrier(4)

    def model():
        drawn = [in_condition()]
        barrier.wait(60)  # another thread is building, too
        return [*drawn, tf.random.uniform([9])]

    def build():
        found.append(draws(model, 3)[0])

    for _ in range(3):
        monkeypatch.setattr(graph_lowering, "LOWERED", lowered_step.KeptPrograms())
        threads = [threading.Thread(target=build) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 12 and all(equal(each, expected) for each in found)
    assert not np.array_equal(*expected)


def test_operations_with_equal_seeds_draw_equal_numbers_as_in_a_session():
    def model():
        x = tf.range(30)
        return [tf.random.shuffle(x, seed=7), tf.random.shuffle(x, seed=7)]

    for seed in (1, None):
        for one, other in draws(model, seed):
            assert np.array_equal(one, other)


def test_the_seed_of_an_operation_alone_decides_without_a_seed_of_the_graph():
    first, again, other = (
        draws(lambda seed=seed: tf.random.uniform([9], seed=seed), None) for seed in (1, 1, 2)
    )
    assert equal(first[0], again[0]) and not equal(first[0], other[0])


def test_without_any_seed_each_process_draws_other_numbers(monkeypatch):
    found = []
    for seeds in ((1, 2), (3, 4)):
        monkeypatch.setattr(random_operations, "_seeds_of_process", lambda seeds=seeds: seeds)
        found.append(draws(lambda: tf.random.uniform([9]), None))
    assert not equal(found[0][0], found[1][0])
    assert not equal(found[0][0], found[0][1])


def test_steps_with_the_same_global_step_draw_other_numbers():
    """An evaluation does not raise the global step, nor does each step that sums up gradients."""
    steps = draws(KINDS["uniform"], raises_step=False)
    assert not equal(steps[0], steps[1]) and not equal(steps[1], steps[2])


def test_the_draws_have_their_distributions():
    number = 20000
    uniform, normal, truncated, integers, categories, kept = draws(
        lambda: [
            tf.random.uniform([number]),
            tf.random.normal([number], 1.0, 2.0),
            tf.random.truncated_normal([number]),
            tf.random.uniform([number], 2, 6, tf.int32),
            tf.random.categorical(tf.log([[0.1, 0.2, 0.7]]), number),
            tf.nn.dropout(tf.ones([number]), rate=0.25),
        ],
        number=1,
    )[0]
    np.testing.assert_allclose(np.mean(uniform), 0.5, atol=0.01)
    np.testing.assert_allclose([np.mean(normal), np.std(normal)], [1, 2], atol=0.05)
    assert np.abs(truncated).max() <= 2
    np.testing.assert_allclose(np.std(truncated), 0.88, atol=0.01)
    np.testing.assert_allclose(
        np.bincount(integers.ravel()) / integers.size, [0, 0] + [0.25] * 4, atol=0.01
    )
    np.testing.assert_allclose(
        np.bincount(categories.ravel()) / categories.size, [0.1, 0.2, 0.7], atol=0.01
    )
    np.testing.assert_allclose(np.mean(kept > 0), 0.75, atol=0.01)
    assert np.unique(kept).tolist() == [0, np.float32(1 / 0.75)]


def test_a_shuffle_keeps_the_rows():
    for step in draws(KINDS["shuffle"]):
        assert np.sort(step[0], 1).tolist() == [list(range(30))] * CORES


def test_an_operation_that_draws_without_a_seed_is_named(warned):
    with tf.Graph().as_default():
        step = StepGraph(1)
        with step.building():
            drawn = tf.raw_ops.ParameterizedTruncatedNormal(
                shape=[5], means=0.0, stdevs=1.0, minvals=-1.0, maxvals=1.0, name="odd"
            )
        step.lower([drawn], None)
    assert any("odd (ParameterizedTruncatedNormal)" in message for message in warned())


def test_an_operation_of_an_imported_graph_draws_without_a_seed(warned):
    with tf.Graph().as_default() as graph:
        tf.random.uniform([5], name="imported")
    with tf.Graph().as_default():
        step = StepGraph(1)
        with step.building():
            name = "imported/RandomUniform:0"
            (drawn,) = tf.import_graph_def(graph.as_graph_def(), {}, [name], "")
        step.lower([drawn], None)
    assert any("imported/RandomUniform (RandomUniform)" in message for message in warned())


def test_a_function_of_the_session_and_of_the_step_draws_in_both():
    function = tf.compat.v2.function(lambda: tf.random.uniform([9]))
    with tf.Graph().as_default(), tf.Session() as session:
        step = StepGraph(1)
        before = function()
        with step.building():
            drawn = function()
        text = step.lower([drawn], None).text
        assert len(np.unique(session.run([before, function()]))) == 18
    assert "stablehlo.rng " not in text and "rng_bit_generator" in text


def test_an_initial_value_that_a_condition_draws():
    with tf.Graph().as_default():
        tf.train.create_global_step()
        step = StepGraph(1)
        with step.building(), pytest.raises(ValueError, match="random numbers that a condition"):
            tf.Variable(in_condition())


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (lambda: tf.random.gamma([3], 1.0), "RandomGamma"),
        (lambda: tf.random.poisson(1.0, [3]), "RandomPoissonV2"),
    ],
)
def test_what_no_core_can_draw_is_an_error(draw, name):
    with tf.Graph().as_default():
        step = StepGraph(1)
        with step.building():
            drawn = draw()
        with pytest.raises(RuntimeError, match=rf"no kernel for: .*{name}"):
            step.lower([drawn], None)


def test_the_seeds_of_raw_operations():
    def model():
        raw = tf.raw_ops
        return [
            raw.RandomUniform(shape=[9], dtype=tf.float32, seed=3),
            raw.RandomStandardNormal(shape=[9], dtype=tf.float32, seed2=4),
            raw.TruncatedNormal(shape=[9], dtype=tf.float64, seed=5, seed2=-6),
        ]

    first, again = draws(model, 1), draws(model, 2)  # The graph's seed is not theirs.
    assert all(map(equal, first, again)) and not equal(first[0], first[1])


def test_stateless_operations_stay_as_they_are():
    steps = draws(lambda: tf.random.stateless_uniform([4], [1, 2]))
    with tf.Session(graph=tf.Graph()) as session:
        expected = session.run(tf.random.stateless_uniform([4], [1, 2]))
    for (drawn,) in steps:
        np.testing.assert_array_equal(drawn[0], drawn[1])
        assert drawn.shape[1:] == expected.shape


SAMPLES = {
    "multinomial": lambda: tf.multinomial(tf.zeros([4, 1000]), 1)[:, 0],
    "argmax": lambda: tf.argmax(tf.random.uniform([4, 1000]), 1),
    "argmax of log": lambda: tf.argmax(-tf.log(-tf.log(tf.random.uniform([4, 1000]))), 1),
    "argmin": lambda: tf.argmin(tf.random.uniform([4, 1000], dtype=tf.float64), 1),
    "stateless": lambda: tf.argmax(
        tf.random.stateless_uniform([4, 1000], [1, tf.train.get_global_step()]), 1
    ),
}


def test_samples_are_compiled_and_have_their_distribution():
    """jax does not end compiling an argmax of 4 x 1000 bits that are drawn as a matrix."""

    def in_loop(sample):
        start = tf.zeros([4], tf.int64)
        return tf.while_loop(lambda i, _: i < 3, lambda i, _: (i + 1, sample()), (0, start))[1]

    def model():
        return [[sample(), in_loop(sample)] for sample in SAMPLES.values()]

    with tf.Graph().as_default():
        tf.train.create_global_step()
        step = StepGraph(CORES)
        with step.building():
            outputs = [tf.reshape(tensor, [1, -1]) for tensor in tf.nest.flatten(model())]
        text = step.lower(outputs, None).text
    bits = [line for line in text.splitlines() if "stablehlo.rng_bit_generator" in line]
    assert len(bits) >= 2 * len(SAMPLES)
    assert all(re.search(r"tensor<\d+xui\d+>\)$", line) for line in bits)
    samples = np.stack([sample for step in draws(model, number=20) for sample in step])
    assert 0 <= samples.min() < 100 and 900 < samples.max() < 1000
    assert samples.mean() == pytest.approx(499.5, abs=50)
    assert len(np.unique(samples)) > 400
