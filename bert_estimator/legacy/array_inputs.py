"""tf.estimator.inputs: input_fns of arrays and data frames."""

import numpy as np
import tensorflow.compat.v1 as tf


def numpy_input_fn(
    x, y=None, batch_size=128, num_epochs=1, shuffle=None, queue_capacity=1000, num_threads=1
):
    """Returns an input_fn of the rows of arrays.

    Args:
      x: an array [rows, ...], or a dict of such.
      y: the labels, as `x`; None for none.
      batch_size: rows of a batch; the last one may be smaller.
      num_epochs: how often the rows are gone through; None for without end.
      shuffle: True or False: whether each time in another order.
      queue_capacity, num_threads: of TensorFlow 1's queue, which tf.data does without.

    Raises:
      ValueError: `shuffle` is not said, or there are no rows, or not as many of each array.
    """
    if not isinstance(shuffle, bool):
        raise ValueError(f"shuffle is {shuffle!r}: say True (to train) or False (to evaluate)")
    structure = x if y is None else (x, y)
    arrays = [_encoded(np.asarray(each)) for each in tf.nest.flatten(structure)]
    sizes = {len(each) for each in arrays}
    if len(sizes) != 1 or sizes == {0}:
        raise ValueError(
            f"the arrays of x and y have {', '.join(map(str, sorted(sizes))) or 'no'} rows: give "
            "the same number in each, and at least one"
        )

    def rows(numbers):
        return [each[numbers] for each in arrays]

    def batch(numbers):
        # Not from_tensor_slices: it would write the arrays into the graph.
        found = tf.numpy_function(rows, [numbers], [tf.as_dtype(each.dtype) for each in arrays])
        for tensor, each in zip(found, arrays, strict=True):
            tensor.set_shape([None, *each.shape[1:]])
        return tf.nest.pack_sequence_as(structure, found)

    def input_fn():
        (size,) = sizes
        numbers = tf.data.Dataset.range(size)
        if shuffle:
            numbers = numbers.shuffle(size)
        return numbers.repeat(num_epochs).batch(batch_size).map(batch)

    return input_fn


def _encoded(array):
    """Text as bytes, which is what TensorFlow's strings are."""
    if array.dtype.kind not in "UO":
        return array
    return np.array([tf.compat.as_bytes(each) for each in array.flat], object).reshape(array.shape)


def pandas_input_fn(
    x,
    y=None,
    batch_size=128,
    num_epochs=1,
    shuffle=None,
    queue_capacity=1000,
    num_threads=1,
    target_column="target",
):
    """Returns an input_fn of the rows of a DataFrame: a dict of columns, and the labels of `y`.

    Args:
      x: a `pandas.DataFrame`.
      y: a `pandas.Series`; a DataFrame, whose columns become a dict; or None.
      target_column: TensorFlow 1's name for `y` within; nothing depends on it.
      batch_size, num_epochs, shuffle, queue_capacity, num_threads: as of `numpy_input_fn`.
    """

    def arrays(frame):
        return {name: frame[name].to_numpy() for name in frame.columns}

    if y is not None:
        y = arrays(y) if hasattr(y, "columns") else y.to_numpy()
    return numpy_input_fn(
        arrays(x), y, batch_size, num_epochs, shuffle, queue_capacity, num_threads
    )
