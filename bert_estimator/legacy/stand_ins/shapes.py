"""Functions of shapes that TensorFlow's inner modules and tf.contrib had."""

import functools
from typing import Any

import tensorflow.compat.v1 as tf


def shape(*dimensions: int | None) -> tf.TensorShape:
    """Returns the shape of a number, a vector or a matrix."""
    return tf.TensorShape(dimensions)


def has_fully_defined_shape(tensor: tf.Tensor) -> bool:
    """Returns whether all dimensions of a tensor are known."""
    return tensor.shape.is_fully_defined()


def rank(tensor: Any) -> int | None:
    """Returns how many dimensions a tensor has, if it is a tensor and this is known."""
    return tensor.shape.rank if isinstance(tensor, tf.Tensor) else None


# Functions of an operation that return the shapes of its outputs, or that make one.


def no_outputs(op: tf.Operation) -> list:
    """Returns no shape."""
    return []


def scalar_shape(op: tf.Operation) -> list:
    """Returns the shape of a number."""
    return [tf.TensorShape([])]


def unchanged_shape(op: tf.Operation) -> list:
    """Returns the shape of the first input."""
    return [op.inputs[0].shape]


def unknown_shape(op: tf.Operation) -> list:
    """Returns an unknown shape for each output."""
    return [tf.TensorShape(None) for _ in op.outputs]


def _unchanged(check, rank):
    return lambda op: [getattr(op.inputs[0].shape, check)(rank)]


unchanged_shape_with_rank = functools.partial(_unchanged, "with_rank")
unchanged_shape_with_rank_at_least = functools.partial(_unchanged, "with_rank_at_least")
unchanged_shape_with_rank_at_most = functools.partial(_unchanged, "with_rank_at_most")


def with_same_shape(expected_tensor: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """Returns the second tensor, which has to have the first one's shape."""
    shape = expected_tensor.shape
    return with_shape(shape if shape.is_fully_defined() else tf.shape(expected_tensor), tensor)


def with_shape(expected_shape: Any, tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor that has to have a shape, which is checked at once if both are known, and
    otherwise when the tensor is computed."""
    if isinstance(tensor, tf.SparseTensor):
        raise ValueError("SparseTensor not supported.")
    is_known = not tf.is_tensor(expected_shape)
    if not is_known and expected_shape.dtype != tf.int32:
        raise ValueError(f"Invalid dtype {expected_shape.dtype} of the shape {expected_shape}")
    expected = tf.TensorShape(expected_shape if is_known else None)
    is_number = expected.rank == 0 and tensor.shape.is_compatible_with([1])
    if is_known and not tensor.shape.is_compatible_with(expected) and not is_number:
        raise ValueError(
            f"Invalid shape for tensor {tensor.name}, expected {expected}, got {tensor.shape}."
        )
    if is_known and tensor.shape == expected:
        return tensor
    if expected.rank == 0:
        return tf.reshape(tensor, [])
    sizes = expected.as_list() if is_known else expected_shape
    actual = tf.shape(tensor)
    fits = tf.reduce_all(tf.equal(sizes, -1) | tf.equal(sizes, actual))
    message = f"Wrong shape for {tensor.name} [expected] [actual]."
    with tf.control_dependencies([tf.Assert(fits, [message, sizes, actual])]):
        checked = tf.identity(tensor)
    checked.set_shape(expected)
    return checked
