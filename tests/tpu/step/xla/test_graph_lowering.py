"""Steps that are built twice are one program; what is said if a step cannot become a program."""

import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf
import toy
from tensorflow.python.framework import function

from bert_estimator import tpu
from bert_estimator.tpu.program import lowered_step
from bert_estimator.tpu.step.xla import graph_lowering

pytestmark = pytest.mark.usefixtures("xla_runtime")


@tf.custom_gradient
def doubled(x):
    return 2 * x, lambda gradient: 2 * gradient


@tf2.function
def squashed(x):
    return tf.tanh(x)


def network(x):
    """Uses each kind of function that TensorFlow numbers."""
    x = x[:, None] * tf.get_variable("w", [1, 4], initializer=tf.ones_initializer())
    x = squashed(doubled(x))
    x = tf.cond(tf.reduce_sum(x) > 0, lambda: 2 * x, lambda: x)
    x = tf.switch_case(tf.cast(x[0, 0], tf.int32), [lambda: x, lambda: x + 1])
    x = tf.while_loop(
        lambda i, _: i < 2, lambda i, y: (i + 1, tf.tanh(y)), (0, x), maximum_iterations=2
    )[1]
    x = tf2.recompute_grad(lambda y: y * tf.sin(y))(x)
    scale = tf.get_variable("scale", [4], initializer=tf.ones_initializer())
    x = tf.map_fn(lambda row: row * scale, x)
    return tf.scan(lambda total, row: tf.tanh(total + row * scale), x)


def make_estimator(folder, rate=0.125, master="rehearse:2"):
    def model_fn(features, mode, params):
        loss = tf.reduce_mean(network(features["x"]))
        tf.summary.scalar("loss", loss)
        optimizer = tpu.CrossShardOptimizer(tf.train.AdamOptimizer(rate))
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    return toy.make_estimator(folder, model_fn, master=master)


@pytest.fixture
def compilations():
    """A list that gets an element for each program that jax compiles."""
    import jax

    seen = []

    def listener(event, *_, **__):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listener)
    return seen


def made():
    return graph_lowering.LOWERED.num_made, lowered_step.LOOPS.num_made


def test_a_second_call_does_not_compile_again(tmp_path, compilations):
    estimator = make_estimator(tmp_path / "two_calls")
    estimator.train(toy.input_fn, max_steps=2)
    estimator.evaluate(toy.input_fn, steps=1)
    assert compilations
    compilations.clear()
    before = made()
    estimator.train(toy.input_fn, max_steps=4)
    loss = estimator.evaluate(toy.input_fn, steps=1)["loss"]
    another = make_estimator(tmp_path / "one_call").train(toy.input_fn, max_steps=4)
    assert another.evaluate(toy.input_fn, steps=1)["loss"] == loss
    assert made() == before and not compilations


@pytest.mark.parametrize(
    "other", [{"rate": 0.25}, {"master": "rehearse:4"}], ids=["constant", "cores"]
)
def test_another_program_is_compiled(tmp_path, compilations, other):
    make_estimator(tmp_path / "one").train(toy.input_fn, max_steps=1)
    compilations.clear()
    loops = lowered_step.LOOPS.num_made
    make_estimator(tmp_path / "other", **other).train(toy.input_fn, max_steps=1)
    assert compilations and lowered_step.LOOPS.num_made == loops + 1


KNOWS_LINES = True  # see `around_tests`

LINES = {
    "python": lambda x: tf.py_func(np.sin, [x], tf.float32, name="own"),
    "print": lambda x: tf.Print(x, [x], name="own"),
    "in_cond": lambda x: tf.cond(x[0] > 0, lambda: tf.Print(x, [x], name="own"), lambda: x),
    "picked": lambda x: tf.boolean_mask(x, x > 2),
    "unique": lambda x: tf.unique(x, name="own")[0],
    "shape": lambda x: tf.reshape(x, [tf.cast(x[0], tf.int32), -1], name="own"),
    "table": lambda x: tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer([1, 2], [3, 4]), 0
    ).lookup(tf.cast(x, tf.int32), name="own"),
    "parts": lambda x: tf.nn.embedding_lookup(
        tf.get_variable("parts", [8, 1], partitioner=tf.fixed_size_partitioner(2)),
        tf.cast(x, tf.int32),
        name="own",
    ),
    "old_variable": lambda x: x * tf.Variable(2.0, use_resource=False, name="own"),
}


def line(name):
    return rf"test_graph_lowering\.py:{LINES[name].__code__.co_firstlineno}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("python", rf"no kernel for: own \(PyFunc\) in .*{line('python')}\. .*host_call"),
        ("print", rf"no kernel for: own \(Print\) in .*{line('print')}"),
        ("in_cond", r"no kernel for: .*\(Print\)"),
        ("picked", rf"length depends on values: .*\(Where\) in .*{line('picked')}\. .*mask of"),
        ("unique", rf"length depends on values: own \(Unique\) in .*{line('unique')}"),
        ("shape", rf"lowered to XLA \(own in .*{line('shape')}\): .*compile-time constant"),
        ("table", r"uses hash_table:0 in .*test_graph_lowering\.py:\d+, a tensor from outside"),
        ("parts", rf"of several parts: own in .*{line('parts')}\. .*without a partitioner"),
        ("old_variable", rf"uses own/read:0 in .*{line('old_variable')}, .*use_resource=True"),
    ],
)
def test_the_operation_and_its_line_are_named_before_step_0(tmp_path, name, message):
    def loss(weight, features):
        value = LINES[name](features["x"])
        return tf.reduce_sum(tf.cast(value, tf.float32))

    estimator = toy.make_estimator(tmp_path, toy.make_model_fn(loss=loss), master="rehearse:2")
    with pytest.raises(RuntimeError, match=message):
        estimator.train(toy.input_fn, max_steps=1)
    assert toy.checkpoint_steps(tmp_path) == []


def test_the_variables_of_an_imported_graph(tmp_path):
    with tf.Graph().as_default():
        value = tf.multiply(tf.get_variable("w", [], use_resource=True), 2.0, name="doubled")
        graph_def = value.graph.as_graph_def()

    def loss(weight, features):
        (value,) = tf.import_graph_def(graph_def, return_elements=["doubled:0"], name="module")
        return tf.reduce_sum(weight * features["x"]) * value

    estimator = toy.make_estimator(tmp_path, toy.make_model_fn(loss=loss), master="rehearse:2")
    message = r"imports a graph with variables of its own: module/w\. .*or train with use_tpu=False"
    with pytest.raises(RuntimeError, match=message):
        estimator.train(toy.input_fn, max_steps=1)


@function.Defun(tf.float32, tf.float32)
def halving(x, gradient):
    return gradient / 2


@function.Defun(tf.float32, grad_func=halving)
def same(x):
    return x + 0


@function.Defun(tf.float32)
def around(x):
    return same(x) + 0


def test_a_gradient_that_only_a_session_finds(tmp_path):
    """The compiler alone would take the gradient of `x + 0`."""

    def model_fn(features, mode, params):
        variable = tf.get_variable("v", initializer=1.0)
        (gradient,) = tf.gradients(around(variable), variable)
        train_op = tf.group(variable.assign_sub(gradient), tf.train.get_global_step().assign_add(1))
        return tpu.TPUEstimatorSpec(mode, loss=tf.reduce_sum(features["x"]), train_op=train_op)

    estimator = toy.make_estimator(tmp_path / "session", model_fn)
    estimator.train(toy.input_fn, max_steps=1)
    assert estimator.get_variable_value("v") == 0.5
    estimator = toy.make_estimator(tmp_path / "cores", model_fn, master="rehearse:1")
    with pytest.raises(RuntimeError, match=r"function around_\w+ needs the grad_func of"):
        estimator.train(toy.input_fn, max_steps=1)


PAIRS = [[0, 1], [2, 0], [0, 1]]
# Function of a variable [3, 2] that looks at a part of it.
LOOKS = {
    "gather": lambda v: tf.gather(v, [2, 0, 2]),
    "gather_nd": lambda v: tf.gather_nd(v, PAIRS),
    "gather_nd of rows": lambda v: tf.gather_nd(v, [[2], [2]]),
    "embedding_lookup": lambda v: tf.nn.embedding_lookup(v, [1, 1]),
    "slice": lambda v: v[1:, 0],
    "shape": lambda v: v * tf.cast(tf.shape(v)[0], tf.float32),
    "in a condition": lambda v: tf.cond(
        tf.reduce_sum(v) > 0, lambda: tf.gather_nd(v, PAIRS), lambda: tf.gather(v, [0, 1, 1])[:, 0]
    ),
    "in a loop": lambda v: tf.while_loop(
        lambda i, _: i < 3,
        lambda i, total: (i + 1, total + tf.gather_nd(v, [[i, 0]])),
        (0, tf.zeros([1])),
        maximum_iterations=3,
    )[1],
    "in a function": lambda v: tf2.function(lambda: tf.gather_nd(v, PAIRS))(),
    "with its own gradient": same,
    "with its own gradient in a condition": lambda v: tf.cond(
        tf.reduce_sum(v) > 0, lambda: tf.ensure_shape(same(v), [3, 2]), lambda: v
    ),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_part_of_a_variable(tmp_path, name):
    """The value, and what the gradient makes of the variable."""

    def model_fn(features, mode, params):
        variable = tf.get_variable("v", initializer=tf.reshape(tf.range(6.0), [3, 2]) / 8)
        loss = tf.reduce_sum(tf.square(LOOKS[name](variable)))
        optimizer = tpu.CrossShardOptimizer(tf.train.MomentumOptimizer(0.125, 0.5))
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    weights = []
    for folder, rules in (("session", {}), ("cores", {"master": "rehearse:2"})):
        estimator = toy.make_estimator(tmp_path / folder, model_fn, **rules)
        estimator.train(toy.input_fn, max_steps=3)
        weights.append(estimator.get_variable_value("v"))
    np.testing.assert_allclose(*weights, rtol=1e-6)
    assert not np.allclose(weights[0], np.arange(6.0).reshape([3, 2]) / 8)


SUMMARIES = {
    "python": lambda x: tf.summary.scalar("s", tf.py_func(np.sum, [x], x.dtype, name="own")),
    "text": lambda x: tf.summary.text("s", tf.as_string(x)),
}


def of_summary(name):
    return rf"test_graph_lowering\.py:{SUMMARIES[name].__code__.co_firstlineno}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("python", rf"no kernel for: own \(PyFunc\) in .*{of_summary('python')}\. .*host_call"),
        ("text", None),
    ],
)
def test_a_summary_of_what_no_core_can_compute(tmp_path, warned, name, message):
    """It is told of as the loss is; text alone is left out, for the training's sake."""

    def w_after(weight, features):
        SUMMARIES[name](features["x"])  # the training finds it
        return weight + 1

    estimator = toy.make_estimator(
        tmp_path, toy.make_model_fn(w_after=w_after), master="rehearse:2", save_summary_steps=1
    )
    if message is None:
        estimator.train(toy.input_fn, max_steps=2)
        assert [tag for _, tag, _ in toy.events(tmp_path) if tag in ("s", "loss")] == ["loss"]
        assert any(w.startswith("The summary s is not written") for w in warned())
    else:
        with pytest.raises(RuntimeError, match=message):
            estimator.train(toy.input_fn, max_steps=2)
        assert toy.checkpoint_steps(tmp_path) == []
