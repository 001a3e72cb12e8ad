"""Tests that TensorBoard can read the events, which are written without the tensorboard package."""

import numpy as np
import pytest
import tensorflow as tf
from toy import events

from bert_estimator.tpu import summary

tf1 = tf.compat.v1


def written(folder, make):
    """Runs the operation of `make` with a default writer; returns (tag, value) by step."""
    with tf.Graph().as_default():
        writer = summary.create_file_writer(str(folder))
        with writer.as_default():
            operations = make()
        with tf1.Session() as session:
            session.run(writer.init())
            session.run(operations)
            session.run(writer.flush())
    return {tag: (step, value) for step, tag, value in events(folder)}


def histogram_twin(values, buckets):
    """Returns float64 [buckets, 3]: (left edge, right edge, count)."""
    values = np.asarray(values, np.float64).ravel()
    if not values.size:
        return np.zeros([buckets, 3])
    low, high = values.min(), values.max()
    if low == high:
        counts = np.eye(buckets)[-1] * values.size
        return np.stack([np.full(buckets, low), np.full(buckets, high), counts], axis=1)
    counts, edges = np.histogram(values, buckets)
    return np.stack([edges[:-1], edges[1:], counts], axis=1)


def test_scalar_reads_back_as_float32_under_its_plugin(tmp_path):
    values = {"float": 0.1, "int": 7, "bool": True}

    def make():
        half = summary.scalar("bfloat16", tf.constant(0.5, tf.bfloat16), step=3)
        return [half, *(summary.scalar(n, v, step=3) for n, v in values.items())]

    found = written(tmp_path, make)
    for name, expected in {**values, "bfloat16": 0.5}.items():
        step, value = found[name]
        assert step == 3
        array = tf.make_ndarray(value.tensor)
        assert (array.dtype, array.shape) == (np.float32, ())
        assert array == np.float32(expected)
        assert value.metadata.plugin_data.plugin_name == "scalars"
        assert value.metadata.data_class == 1  # scalar


@pytest.mark.parametrize("value", ["hello", ["a", "b"], [["row", "of"], ["a", "table"]]])
def test_text_reads_back(tmp_path, value):
    _, read = written(tmp_path, lambda: summary.text("note", value, 0, "what it is"))["note"]
    assert tf.make_ndarray(read.tensor).astype(str).tolist() == value
    assert read.metadata.plugin_data.plugin_name == "text"
    assert read.metadata.data_class == 2  # tensor
    assert read.metadata.summary_description == "what it is"


@pytest.mark.parametrize(
    ("values", "buckets"),
    [
        (np.random.RandomState(0).normal(size=[50, 3]), 30),
        (np.random.RandomState(1).normal(size=1000).astype(np.float32), 7),
        ([0, 1, 2, 3], 3),
        ([-5, 5], 2),
        ([1.0, 2.0, 2.0, 2.0], 1),
        ([0.25] * 6, 4),
        ([0.25], 1),
        (np.zeros([0, 3], np.float32), 4),
    ],
)
def test_histogram_equals_its_twin(tmp_path, values, buckets):
    data = tf.convert_to_tensor
    found = written(tmp_path, lambda: summary.histogram("h", data(values), 1, buckets))
    step, value = found["h"]
    table = tf.make_ndarray(value.tensor)
    twin = histogram_twin(values, buckets)
    assert step == 1
    np.testing.assert_array_equal(table[:, 2], twin[:, 2])
    np.testing.assert_allclose(table[:, :2], twin[:, :2], rtol=1e-12, atol=1e-12)
    assert value.metadata.plugin_data.plugin_name == "histograms"


def test_a_histogram_of_bad_values_does_not_fail(tmp_path):
    _, value = written(tmp_path, lambda: summary.histogram("h", [1.0, np.nan, 2.0], 0, 4))["h"]
    assert tf.make_ndarray(value.tensor)[:, 2].sum() == 3


def test_edges_are_exact_at_both_ends(tmp_path):
    values = np.float32([0.1, 0.7])
    _, value = written(tmp_path, lambda: summary.histogram("h", values, 0, 7))["h"]
    table = tf.make_ndarray(value.tensor)
    assert table[0, 0] == values[0]
    assert table[-1, 1] == values[1]
    assert table[:, 2].tolist() == [1, 0, 0, 0, 0, 0, 1]


def test_names_take_the_name_scope(tmp_path):
    def make():
        with tf1.name_scope("outer"):
            return summary.scalar("a", 1.0, step=0)

    assert list(written(tmp_path, make)) == ["outer/a"]


def test_record_if_writes_only_where_it_holds(tmp_path):
    def make():
        operations = []
        for step in range(6):
            with summary.record_if(tf.equal(tf.constant(step) % 3, 0)):
                operations.append(summary.scalar(f"a{step}", 1.0, step=step))
        return operations

    assert sorted(written(tmp_path, make)) == ["a0", "a3"]


def test_without_a_default_writer_nothing_is_written():
    with tf.Graph().as_default(), tf1.Session() as session:
        for operation in (
            summary.scalar("a", 1.0, step=0),
            summary.histogram("a", [1.0], step=0),
            summary.text("a", "b", step=0),
        ):
            assert session.run(operation) == np.False_


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: summary.scalar("a", [1.0], step=0), ValueError, "[Ee]xpected.*scalar"),
        (lambda: summary.text("a", [1.0], step=0), TypeError, "string"),
        (lambda: summary.scalar("a", 1.0), ValueError, "No step set"),
    ],
)
def test_what_is_refused(tmp_path, make, error, message):
    with pytest.raises(error, match=message):
        written(tmp_path, make)


def test_the_same_tables_as_tensorboard_s_own(tmp_path):
    pytest.importorskip("tensorboard", reason="its own tf.summary needs tensorboard")
    values = np.random.RandomState(2).normal(size=100)
    found = [
        written(tmp_path / name, lambda module=module: module.histogram("h", values, 0))["h"][1]
        for name, module in (("ours", summary), ("theirs", tf.summary))
    ]
    np.testing.assert_allclose(*(tf.make_ndarray(v.tensor) for v in found), rtol=1e-12)
    assert found[0].metadata.plugin_data.plugin_name == found[1].metadata.plugin_data.plugin_name


def test_writers_of_the_same_second_have_files_of_their_own(tmp_path):
    """TensorFlow opens a file by its name, which has the second, and empties it."""
    for number in range(3):
        with tf.Graph().as_default():
            writer = summary.event_writer(str(tmp_path))
            assert writer is tf1.summary.FileWriterCache.get(str(tmp_path))
        value = tf1.Summary.Value(tag="x", simple_value=number)
        writer.add_summary(tf1.Summary(value=[value]), number)
        tf1.summary.FileWriterCache.clear()
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 3
    read = summary.read_events(f"{tmp_path}/events.out.tfevents.*")
    assert {step: dict(values) for step, values in read.items()} == {
        number: {"x": number} for number in range(3)
    }
