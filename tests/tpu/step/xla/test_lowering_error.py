"""What a model's author is told where a step cannot become an XLA program."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator import tpu

KNOWS_LINES = True  # see `around_tests`
pytestmark = pytest.mark.usefixtures("xla_runtime")

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
    return rf"test_lowering_error\.py:{LINES[name].__code__.co_firstlineno}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("python", rf"no kernel for: own \(PyFunc\) in .*{line('python')}\. .*host_call"),
        ("print", rf"no kernel for: own \(Print\) in .*{line('print')}"),
        ("in_cond", r"no kernel for: .*\(Print\)"),
        ("picked", rf"length depends on values: .*\(Where\) in .*{line('picked')}\. .*mask of"),
        ("unique", rf"length depends on values: own \(Unique\) in .*{line('unique')}"),
        ("shape", rf"lowered to XLA \(own in .*{line('shape')}\): .*compile-time constant"),
        ("table", r"uses hash_table:0 in .*test_lowering_error\.py:\d+, a tensor from outside"),
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


SUMMARIES = {
    "python": lambda x: tf.summary.scalar("s", tf.py_func(np.sum, [x], x.dtype, name="own")),
    "picked": lambda x: tf.summary.histogram("s", tf.boolean_mask(x, x > 2)),
    "text": lambda x: tf.summary.text("s", tf.as_string(x)),
    "written": lambda x: tpu.summary.scalar("s", x[0], step=tf.train.get_global_step()),
}


def of_summary(name):
    return rf"test_lowering_error\.py:{SUMMARIES[name].__code__.co_firstlineno}"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("python", rf"no kernel for: own \(PyFunc\) in .*{of_summary('python')}\. .*host_call"),
        ("picked", rf"length depends on values: .*\(Where\) in .*{of_summary('picked')}\. "),
        ("written", rf"in .*{of_summary('written')}, the writer of a summary.* in host_call"),
        ("text", None),
    ],
)
def test_a_summary_of_what_no_core_can_compute(tmp_path, warned, name, message):
    """It is told of as the loss is; text alone is left out, for the training's sake."""

    def w_after(weight, features):
        with tpu.summary.create_file_writer(str(tmp_path)).as_default():
            made = SUMMARIES[name](features["x"])
        # TensorFlow 1's summaries are found by the training, the others are part of the step.
        with tf.control_dependencies([made] if name == "written" else []):
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
