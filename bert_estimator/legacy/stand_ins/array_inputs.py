"""Makes input_fns from arrays and data frames: the module `tf.estimator.inputs`."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], Any]:
    """Returns an input_fn of the rows of arrays.

    Args:
      x: an array [rows, ...], or a dict of arrays.
      y: the labels, an array or a dict of arrays, or None.
      batch_size: rows per batch; the last batch may be smaller.
      num_epochs: how often the rows are repeated; None means endlessly.
      shuffle: True or False: whether each epoch has another order.
      queue_capacity, num_threads: ignored; TensorFlow 1 used a queue, tf.data does not need one.

    Raises:
      ValueError: `shuffle` is not given, an array is empty, or the arrays differ in their rows.
    """
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
        return numbers.repeat(num_epochs).batch(batch_size).map(batch)

    return input_fn


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
    """Returns an input_fn of the rows of a DataFrame: a dict of columns, and the labels of `y`.

    Args:
      x: a `pandas.DataFrame`.
      y: a `pandas.Series`, or a DataFrame, whose columns become a dict, or None.
      batch_size, num_epochs, shuffle, queue_capacity, num_threads: see `numpy_input_fn`.
      target_column: ignored.
    """

    def arrays(frame):
        return {name: frame[name].to_numpy() for name in frame.columns}

    if y is not None:
        y = arrays(y) if hasattr(y, "columns") else y.to_numpy()
    return numpy_input_fn(
        arrays(x), y, batch_size, num_epochs, shuffle, queue_capacity, num_threads
    )
