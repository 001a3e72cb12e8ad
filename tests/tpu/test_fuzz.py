"""Random small models: draws follow seeds, and constants agree on every runtime.

FUZZ_EXAMPLES=1000 makes as many of each, anew each time.
"""

import functools
import tempfile

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy
from fuzzing import fuzzed
from hypothesis import example
from hypothesis import strategies as st

from bert_estimator import tpu
from bert_estimator.tpu.program import stablehlo

pytestmark = pytest.mark.slow

# Kind of a random operation -> function of its seed that draws float32 [4].
DRAWS = {
    "uniform": lambda seed: tf.random.uniform([4], seed=seed),
    "normal": lambda seed: tf.random.normal([4], seed=seed),
    "truncated_normal": lambda seed: tf.random.truncated_normal([4], seed=seed),
    "bfloat16": lambda seed: tf.to_float(tf.random.normal([4], dtype=tf.bfloat16, seed=seed)),
    "integers": lambda seed: tf.to_float(tf.random.uniform([4], 0, 10**6, tf.int32, seed)) / 1e6,
    "shuffle": lambda seed: tf.random_shuffle(tf.linspace(0.0, 1.0, 64), seed)[:4],
    "categories": lambda seed: tf.to_float(tf.multinomial(tf.zeros([4, 1000]), 1, seed)[:, 0]),
    "dropout": lambda seed: tf.reduce_sum(
        tf.reshape(tf.nn.dropout(tf.linspace(1.0, 2.0, 64), rate=0.5, seed=seed), [4, 16]), 1
    ),
}
# Place of the operation -> function of (a function that draws, a true condition). In a session, the
# turns of a loop draw in any order, unless they run one after the other.
PLACES = {
    "step": lambda drawn, condition: drawn(),
    "condition": lambda drawn, condition: tf.cond(condition, drawn, lambda: tf.zeros([4])),
    "loop": lambda drawn, condition: tf.while_loop(
        lambda i, _: i < 3,
        lambda i, total: (i + 1, total / 2 + drawn()),
        (0, tf.zeros([4])),
        parallel_iterations=1,
    )[1],
    "map": lambda drawn, condition: tf.reduce_sum(
        tf.map_fn(lambda x: x * drawn(), tf.constant([1.0, 2.0]), parallel_iterations=1), 0
    ),
}
OPERATIONS = st.tuples(
    st.sampled_from(sorted(DRAWS)),
    st.sampled_from(sorted(PLACES)),
    st.one_of(st.none(), st.integers(0, 2**31 - 1)),
)


def model_of(made_in, least_loss):
    """Returns a model_fn that adds to a weight what functions, each in its place, give."""

    def model_fn(features, mode, params):
        weight = tf.get_variable("w", [4], initializer=tf.random_normal_initializer())
        loss = tf.reduce_mean(features["x"])
        made = [PLACES[place](function, loss > least_loss) for function, place in made_in]
        mean = tpu.cross_replica_sum(tf.add_n(made)) / tpu.num_replicas()
        train_op = tf.group(
            weight.assign(weight / 2 + mean), tf.train.get_global_step().assign_add(1)
        )
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return model_fn


def trained(model_fn, seed, *parts, **rules):
    """Trains from scratch in parts; returns the weights' bytes."""
    with tempfile.TemporaryDirectory() as folder:
        for steps in parts:
            estimator = toy.make_estimator(folder, model_fn, tf_random_seed=seed, **rules)
            estimator.train(toy.input_fn, max_steps=steps)
        return estimator.get_variable_value("w").tobytes()


def check_of_draws(rules, data):
    operations, seed, first = data
    draws = [(functools.partial(DRAWS[kind], seed), place) for kind, place, seed in operations]
    model_fn = model_of(draws, 0)
    whole = trained(model_fn, seed, 4, **rules)
    assert trained(model_fn, seed + 1, 4, **rules) != whole
    # A session begins its streams anew after each start, as upstream.
    again = trained(model_fn, seed, *([first, 4] if "master" in rules else [4]), **rules)
    assert again == whole


DRAWING = st.tuples(
    st.lists(OPERATIONS, min_size=1, max_size=4), st.integers(0, 2**31 - 2), st.integers(1, 3)
)


@fuzzed(st.tuples(st.booleans(), DRAWING), examples=12)
def test_random_operations_repeat_and_differ_by_seed_in_a_session(data):
    use_tpu, drawing = data
    check_of_draws({"use_tpu": use_tpu}, drawing)


@pytest.mark.usefixtures("xla_runtime")
@fuzzed(DRAWING, examples=8)
def test_random_operations_repeat_resume_and_differ_by_seed_on_cores(data):
    check_of_draws({"master": "rehearse:2", "iterations_per_loop": 3}, data)


# MLIR writes up to 100 elements one by one, more as digits, and equal elements once. A session
# cannot cast integers of four bits.
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64", "float8_e5m2", "float8_e4m3fn"]
DTYPES = ["bool", *INTEGERS, *FLOATS, "complex64", "complex128"]
CONSTANTS = st.tuples(
    st.sampled_from(DTYPES),
    st.sampled_from([(), (0,), (9,), (101,), (3, 1, 43)]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
    st.sampled_from(sorted(PLACES)),
)


def values_of(name, shape, are_equal, seed):
    """Returns an array [shape] of any bits that the dtype may have, or of equal elements."""
    dtype, size = stablehlo.dtype(name), int(np.prod(shape))
    random = np.random.RandomState(seed)
    if name == "bool":
        values = random.randint(0, 2, size).astype(bool)
    else:
        values = np.frombuffer(random.bytes(size * dtype.itemsize), dtype)
    return (np.repeat(values[:1], size) if are_equal else values).reshape(shape)


def sums_of_constant(*of):
    """Returns four sums of a constant's elements, float32 [4], that differ if elements do."""
    values = values_of(*of)
    constant = tf.reshape(tf.constant(values), [-1])
    numbers = tf.cast(tf.abs(constant) if constant.dtype.is_complex else constant, tf.float32)
    numbers = tf.where(tf.is_finite(numbers), numbers, tf.fill([values.size], 3.0))
    factors = np.cos(np.outer(np.arange(1, 5), np.arange(values.size))).astype(np.float32)
    return tf.reduce_sum(tf.sign(numbers) * tf.log1p(tf.abs(numbers)) * factors, 1)


@pytest.mark.usefixtures("xla_runtime")
@fuzzed(
    st.tuples(st.lists(CONSTANTS, min_size=1, max_size=6), st.integers(0, 2**31 - 1)), examples=20
)
@example(data=([("bool", (101,), False, 1, place) for place in sorted(PLACES)], 1))
@example(data=([("bool", (3, 1, 43), True, 1, place) for place in sorted(PLACES)], 1))
def test_constants_in_any_place_train_cores_as_a_session(data):
    constants, seed = data
    sums = [(functools.partial(sums_of_constant, *of), place) for *of, place in constants]
    model_fn = model_of(sums, 1)
    session = np.frombuffer(trained(model_fn, seed, 3), np.float32)
    cores = np.frombuffer(trained(model_fn, seed, 3, master="rehearse:2"), np.float32)
    np.testing.assert_allclose(cores, session, rtol=1e-5, atol=1e-3)
