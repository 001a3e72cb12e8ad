"""What TensorFlow 1 had for data, and today's has not: functions of tf.contrib.data,
tf.estimator.inputs, tf.contrib.learn.datasets.base, and the tables of tf.contrib.lookup whose
arguments have other names in tf.lookup."""

import collections
import csv
import functools
import os
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.data.ops import dataset_ops, interleave_op
from tensorflow.python.ops import lookup_ops

from bert_estimator.graph import patches
from bert_estimator.legacy.strictness import taking


def put_back() -> None:
    """Makes all datasets in graphs draw ahead only what the program asks for, as they did."""
    patches.read_on_request()
    dataset = interleave_op._ParallelInterleaveDataset
    dataset.__init__ = _reading_two_blocks(dataset.__init__)


def _reading_two_blocks(initialize):
    # `interleave` with `num_parallel_calls` read two blocks of each source of its cycle ahead, and
    # nothing of the sources after them.
    @functools.wraps(initialize)
    def initialize_dataset(self, source, function, cycle_length, block_length, *args, **kwargs):
        sizes = {"prefetch_input_elements": 0, "buffer_output_elements": 2 * block_length}
        initialize(self, source, function, cycle_length, block_length, *args, **sizes, **kwargs)

    return initialize_dataset


def batch_and_drop_remainder(batch_size: int) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """Returns a transformation that makes batches of exactly `batch_size` elements."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def padded_batch_and_drop_remainder(
    batch_size: int, padded_shapes: Any, padding_values: Any = None
) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """Returns a transformation that pads batches, and drops a smaller last batch."""
    return lambda dataset: dataset.padded_batch(
        batch_size, padded_shapes, padding_values, drop_remainder=True
    )


def sloppy_interleave(
    map_func: Callable[..., tf.data.Dataset], cycle_length: int, block_length: int = 1
) -> Callable[[tf.data.Dataset], tf.data.Dataset]:
    """Returns a transformation that interleaves datasets in the order their elements arrive."""
    return tf.data.experimental.parallel_interleave(
        map_func, cycle_length, block_length, sloppy=True
    )


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], Any]:
    """Returns an input_fn of the rows of arrays, [rows, ...] each; the last batch may be smaller,
    and with `num_epochs` None the rows repeat endlessly."""
    if isinstance(y, dict):
        if not y:
            raise ValueError("y cannot be an empty dict: give None, or a dict of arrays")
        if isinstance(x, dict) and (both := x.keys() & y.keys()):
            raise ValueError(
                f"{len(both)} duplicate keys are found in both x and y: {sorted(both)}"
            )
    # TensorFlow 1 had a queue, which tf.data does not need: its capacity and threads are ignored.
    return _input_fn(x, y, batch_size, num_epochs, shuffle)


def _input_fn(x, y, batch_size, num_epochs, shuffle):
    if not isinstance(shuffle, bool):
        raise ValueError(f"shuffle={shuffle!r} must be True (to train) or False (to evaluate)")
    structure = x if y is None else (x, y)
    arrays = [_encoded(np.asarray(array)) for array in tf.nest.flatten(structure)]
    sizes = {len(array) for array in arrays}
    if len(sizes) != 1 or sizes == {0}:
        raise ValueError(
            f"the arrays of x and y have {', '.join(map(str, sorted(sizes))) or 'no'} rows: every "
            "array must have the same number of rows, at least one"
        )

    def rows(numbers):
        return [array[numbers] for array in arrays]

    def batch(numbers):
        # from_tensor_slices would write the arrays into the graph.
        dtypes = [tf.as_dtype(array.dtype) for array in arrays]
        tensors = tf.numpy_function(rows, [numbers], dtypes)
        for tensor, array in zip(tensors, arrays, strict=True):
            tensor.set_shape([None, *array.shape[1:]])
        return tf.nest.pack_sequence_as(structure, tensors)

    def input_fn():
        (size,) = sizes
        numbers = tf.data.Dataset.range(size)
        if shuffle:
            numbers = numbers.shuffle(size)
        return _Rows(numbers.repeat(num_epochs).batch(batch_size).map(batch))

    return input_fn


class _Rows(dataset_ops.DatasetV1Adapter):
    """A dataset that a program may also take for its tensors, as these input_fns returned them."""

    @functools.cached_property
    def _tensors(self):
        # A program unpacks them (`features, labels = input_fn()`) or takes one of several features
        # by its name. The iterator is initialized as tables are, since nobody else would do it.
        iterator = tf.data.make_initializable_iterator(self)
        tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
        return iterator.get_next()

    def __iter__(self):
        return super().__iter__() if tf.executing_eagerly() else iter(self._tensors)

    def __getitem__(self, name):
        return self._tensors[name]

    def keys(self):
        return self._tensors.keys()

    def values(self):
        return self._tensors.values()

    def items(self):
        return self._tensors.items()


def _encoded(array):
    """Encodes text as bytes, the form of TensorFlow's strings."""
    if array.dtype.kind not in "UO":
        return array
    encoded = [tf.compat.as_bytes(text) for text in array.flat]
    return np.array(encoded, object).reshape(array.shape)


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> Callable[[], Any]:
    """Returns an input_fn of the rows of a DataFrame: a dict of columns, and the labels of `y`, a
    Series or a DataFrame, whose columns become a dict; see `numpy_input_fn`."""

    def arrays(frame):
        return {name: frame[name].to_numpy() for name in frame.columns}

    if y is not None:
        if not x.index.equals(y.index):
            raise ValueError(
                f"Index for x and y are mismatched.\nIndex for x: {x.index}\nIndex for y: {y.index}"
            )
        if not hasattr(y, "columns") and target_column in x:
            raise ValueError(
                f"Cannot use name {target_column} for target column: DataFrame already has a "
                "column with that name"
            )
        y = arrays(y) if hasattr(y, "columns") else y.to_numpy()
    return _input_fn(arrays(x), y, batch_size, num_epochs, shuffle)


Dataset = collections.namedtuple("Dataset", ["data", "target"])
Datasets = collections.namedtuple("Datasets", ["train", "validation", "test"])


def load_csv_with_header(
    filename: str, target_dtype: Any, features_dtype: Any, target_column: int = -1
) -> Dataset:
    """Returns the rows of a file whose first line is the numbers of rows and of features."""
    with tf.gfile.Open(filename) as file:
        rows = csv.reader(file)
        number = int(next(rows)[0])
        dataset = _split(rows, target_dtype, features_dtype, target_column)
    if len(dataset.target) != number:
        raise ValueError(
            f"{filename}: its first line says {number} rows; it has {len(dataset.target)}"
        )
    return dataset


def load_csv_without_header(
    filename: str, target_dtype: Any, features_dtype: Any, target_column: int = -1
) -> Dataset:
    """Returns the rows of a file without a header; see `load_csv_with_header`."""
    with tf.gfile.Open(filename) as file:
        return _split(csv.reader(file), target_dtype, features_dtype, target_column)


def _split(rows, target_dtype, features_dtype, target_column):
    data, target = [], []
    for row in rows:
        target.append(row.pop(target_column))
        data.append(np.asarray(row, dtype=features_dtype))
    return Dataset(np.array(data), np.array(target, dtype=target_dtype))


def maybe_download(filename: str, work_directory: str, source_url: str) -> str:
    """Downloads a file if the directory does not have it; returns its path."""
    tf.gfile.MakeDirs(work_directory)
    path = os.path.join(work_directory, filename)
    if not tf.gfile.Exists(path):
        downloaded, _ = urllib.request.urlretrieve(source_url)
        tf.gfile.Copy(downloaded, path)
    return path


class HashTable(lookup_ops.HashTable):
    """Is a table as `tf.contrib.lookup` has it; a `shared_name` shares nothing with others."""

    def __init__(self, initializer, default_value, shared_name=None, name=None):
        super().__init__(initializer, default_value, name or shared_name)


class MutableHashTable(lookup_ops.MutableHashTable):
    """Is a table as `tf.contrib.lookup` has it; for `shared_name` see `HashTable`."""

    def __init__(
        self,
        key_dtype,
        value_dtype,
        default_value,
        shared_name=None,
        name="MutableHashTable",
        checkpoint=True,
    ):
        super().__init__(key_dtype, value_dtype, default_value, name, checkpoint)


class MutableDenseHashTable(lookup_ops.DenseHashTable):
    """Is a table as `tf.contrib.lookup` has it; for `shared_name` see `HashTable`."""

    def __init__(
        self,
        key_dtype,
        value_dtype,
        default_value,
        empty_key,
        deleted_key,
        initial_num_buckets=None,
        shared_name=None,
        name="MutableDenseHashTable",
        checkpoint=True,
    ):
        keys = empty_key, deleted_key, initial_num_buckets
        super().__init__(key_dtype, value_dtype, default_value, *keys, name, checkpoint)


index_table_from_tensor, index_to_string_table_from_tensor = (
    taking(function, "mapping", "vocabulary_list")
    for function in (
        lookup_ops.index_table_from_tensor,
        lookup_ops.index_to_string_table_from_tensor,
    )
)
