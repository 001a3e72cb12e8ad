"""Tests what stands for TensorFlow 1's functions of datasets, input_fns, CSV files and tables."""

import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.legacy.stand_ins import data
from bert_estimator.legacy.stand_ins.data import numpy_input_fn, pandas_input_fn


def elements(dataset):
    return [np.asarray(element).tolist() for element in dataset.as_numpy_iterator()]


def test_padded_batches_without_the_remainder():
    rows = tf2.data.Dataset.range(1, 6).map(lambda n: tf2.fill([n], n))
    batches = rows.apply(data.padded_batch_and_drop_remainder(2, [None]))
    assert elements(batches) == [[[1, 0], [2, 2]], [[3, 3, 3, 0], [4, 4, 4, 4]]]


def test_sloppy_interleave_gives_every_element():
    numbers = tf2.data.Dataset.range(3)
    drawn = elements(
        numbers.apply(
            data.sloppy_interleave(lambda n: tf2.data.Dataset.from_tensors(n), cycle_length=2)
        )
    )
    assert sorted(drawn) == [0, 1, 2]


class Index(list):
    def equals(self, other):
        return self == other


class Frame:
    """Has the part of a pandas.DataFrame that pandas_input_fn uses."""

    def __init__(self, index=(0, 1, 2), **columns):
        self._columns, self.columns, self.index = columns, list(columns), Index(index)

    def __getitem__(self, name):
        return Series(self._columns[name])

    def __contains__(self, name):
        return name in self._columns


class Series:
    def __init__(self, values, index=(0, 1, 2)):
        self._values, self.index = values, Index(index)

    def to_numpy(self):
        return np.array(self._values)


def batches(input_fn):
    with tf.Graph().as_default(), tf.Session() as session:
        element = tf.data.make_one_shot_iterator(input_fn()).get_next()
        drawn = []
        while True:
            try:
                drawn.append(session.run(element))
            except tf.errors.OutOfRangeError:
                return drawn


def test_rows_in_order_with_a_smaller_last_batch():
    x = {"a": np.arange(10.0).reshape(5, 2), "word": np.array(["é", "b", "c", "d", "e"])}
    drawn = batches(numpy_input_fn(x, np.arange(5), batch_size=4, num_epochs=2, shuffle=False))
    assert [len(y) for _, y in drawn] == [4, 4, 2]
    np.testing.assert_array_equal(drawn[1][0]["a"], x["a"][[4, 0, 1, 2]])
    assert drawn[0][0]["word"].tolist() == ["é".encode(), b"b", b"c", b"d"]
    np.testing.assert_array_equal(np.concatenate([y for _, y in drawn]), [*range(5), *range(5)])


def test_shuffled_rows_keep_together_and_change_their_order():
    x = np.arange(100)
    drawn = batches(numpy_input_fn(x, -x, batch_size=100, num_epochs=2, shuffle=True))
    first, second = (features.tolist() for features, _ in drawn)
    assert sorted(first) == sorted(second) == list(range(100)) and first != second
    for features, labels in drawn:
        np.testing.assert_array_equal(features, -labels)


def test_shapes_and_dtypes():
    with tf.Graph().as_default():
        data = numpy_input_fn(np.zeros([5, 2], np.float32), shuffle=False)()
        assert data.element_spec == tf.TensorSpec([None, 2], tf.float32)


def test_a_data_frame():
    frame = Frame(a=[1, 2, 3], b=["x", "y", "z"])
    ((features, labels),) = batches(pandas_input_fn(frame, Series([0.0, 1.0, 0.0]), shuffle=False))
    assert features["a"].tolist() == [1, 2, 3] and features["b"].tolist() == [b"x", b"y", b"z"]
    assert labels.tolist() == [0.0, 1.0, 0.0]
    ((features, labels),) = batches(pandas_input_fn(frame, Frame(a=[4, 5, 6]), shuffle=False))
    assert labels["a"].tolist() == [4, 5, 6]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(x=np.zeros(3)), "shuffle=None must be True"),
        (dict(x=np.zeros(3), y=np.zeros(2), shuffle=True), "have 2, 3 rows: every array must have"),
        (dict(x={}, shuffle=True), "have no rows"),
        (dict(x=np.zeros(0), shuffle=True), "have 0 rows: .* at least one"),
        (dict(x=np.zeros(3), y={}, shuffle=True), "y cannot be an empty dict"),
        (
            dict(x={"a": np.zeros(3)}, y={"a": np.zeros(3), "b": np.zeros(3)}, shuffle=True),
            r"1 duplicate keys are found in both x and y: \['a'\]",
        ),
    ],
)
def test_what_cannot_be(arguments, message):
    with pytest.raises(ValueError, match=message):
        numpy_input_fn(**arguments)


def test_what_a_program_s_own_input_fn_makes_of_the_tensors(tmp_path):
    """Programs unpack what these input_fns return, and add features."""
    base = numpy_input_fn({"x": np.arange(4.0)}, np.arange(4.0), batch_size=2, shuffle=False)
    alone = numpy_input_fn({"x": np.arange(4.0)}, batch_size=2, shuffle=False)
    only = numpy_input_fn(np.arange(4.0), batch_size=2, shuffle=False)

    def with_squares():
        features, labels = base()
        features["square"] = features["x"] ** 2
        return features, labels

    def model_fn(features, labels, mode):
        weight = tf.get_variable("weight", [], tf.float64, tf.zeros_initializer())
        predicted = weight * features["square"]
        loss = tf.reduce_sum(labels - predicted)
        train_op = tf.group(
            weight.assign_add(1.0 + 0 * loss), tf.train.get_global_step().assign_add(1)
        )
        return tpu.EstimatorSpec(mode, {"y": predicted}, loss, train_op)

    estimator = tpu.Estimator(model_fn, str(tmp_path))
    estimator.train(with_squares)
    assert estimator.get_variable_value("weight") == 2
    loss = estimator.evaluate(with_squares)["loss"]
    assert loss == np.mean([1 - 2 * 1, 5 - 2 * (4 + 9)])
    with tf.Graph().as_default(), tf.Session() as session:
        features = alone()
        tensors = [features["x"], *features.values(), dict(features)["x"]]
        assert list(features.keys()) == ["x"] and len(features.items()) == 1
        session.run(tf.tables_initializer())
        assert [value.tolist() for value in session.run(tensors)] == [[0, 1]] * 3
        assert session.run(tensors[0]).tolist() == [2, 3]
        assert isinstance(only(), tf.data.Dataset)
    (batch, _) = batches(only)
    assert batch.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (Frame(a=[1, 2, 3]), Series([1, 2, 3], (2, 0, 1)), "Index for x and y are mismatched"),
        (Frame(a=[1, 2, 3]), Frame((2, 0, 1), b=[1, 2, 3]), "Index for x and y are mismatched"),
        (Frame(target=[1, 2, 3]), Series([1, 2, 3]), "Cannot use name target for target column"),
    ],
)
def test_rows_that_do_not_belong_together(x, y, message):
    """A frame that was shuffled without its labels has another order of the same rows."""
    with pytest.raises(ValueError, match=message):
        pandas_input_fn(x, y, shuffle=False)


def test_with_and_without_a_header(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("2,2,a,b\n1.5,2,1\n3,4.5,0\n")
    dataset = data.load_csv_with_header(str(path), np.int64, np.float32)
    np.testing.assert_array_equal(dataset.data, np.array([[1.5, 2], [3, 4.5]], np.float32))
    assert dataset.data.dtype == np.float32 and dataset.target.tolist() == [1, 0]
    path.write_text("7,1.5\n8,2.5\n")
    dataset = data.load_csv_without_header(str(path), np.int64, np.float32, target_column=0)
    assert dataset.target.tolist() == [7, 8] and dataset.data.tolist() == [[1.5], [2.5]]


def test_a_header_that_does_not_fit(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("3,1,a\n1,2\n")
    with pytest.raises(ValueError, match="its first line says 3 rows; it has 1"):
        data.load_csv_with_header(str(path), np.int64, np.float32)


def test_a_file_is_downloaded_once(tmp_path):
    source = tmp_path / "source.csv"
    source.write_text("1,2\n")
    for _ in range(2):
        path = data.maybe_download("t.csv", str(tmp_path / "data"), source.as_uri())
        source.unlink(missing_ok=True)
        with open(path) as file:
            assert file.read() == "1,2\n"


def test_there_and_back():
    with tf.Graph().as_default(), tf.Session() as session:
        words = tf.constant(["a", "b"])
        there = data.index_table_from_tensor(mapping=words, num_oov_buckets=1)
        back = data.index_to_string_table_from_tensor(mapping=words, default_value="?")
        ids = there.lookup(tf.constant(["b", "a", "z"]))
        words = back.lookup(ids)
        session.run(tf.tables_initializer())
        assert session.run(ids).tolist() == [1, 0, 2]
        assert session.run(words).tolist() == [b"b", b"a", b"?"]
