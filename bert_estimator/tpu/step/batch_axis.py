"""Supports `batch_axis`: inputs whose batch is not their first dimension.

The rest of the framework splits and concatenates tensors along axis 0. So the batch of each tensor
is moved to axis 0 when the input_fn returns it, and is moved back before the model_fn gets it.
"""

from collections.abc import Callable

import tensorflow.compat.v1 as tf

from bert_estimator.tpu import call


def moved_to_front(input_fn: Callable, batch_axis: list[int]) -> Callable:
    """Returns an input_fn that gives the same tensors with the batch as their first axis.

    Args:
      input_fn: the user's function.
      batch_axis: list of int, the axis of the batch in each tensor, in the order of
        `tf.nest.flatten((features, labels))`.
    """

    def moving_input_fn(mode, params, config):
        returned = call.call_input_fn(input_fn, mode, params, config)
        if not call.is_dataset(returned):
            return _moved(returned, batch_axis, _to_front)

        def move(*element):
            return _moved(element if len(element) > 1 else element[0], batch_axis, _to_front)

        return returned.map(move)

    return moving_input_fn


def moved_back(model_fn: Callable, batch_axis: list[int]) -> Callable:
    """Returns a model_fn that takes tensors whose first axis is the batch.

    Args:
      model_fn: the user's function.
      batch_axis: as for `moved_to_front`.
    """

    def moving_model_fn(features, labels, mode, params, config):
        element = features if labels is None else (features, labels)
        moved = _moved(element, batch_axis, _from_front)
        features, labels = (moved, None) if labels is None else moved
        return call.call_model_fn(model_fn, features, labels, mode, params, config)

    return moving_model_fn


def _moved(element, batch_axis, order):
    """Returns a structure of tensors with their axes in another order.

    Args:
      order: function of (axis of the batch, rank) that returns the permutation of the axes.
    """
    tensors = tf.nest.flatten(element)
    if len(tensors) != len(batch_axis):
        raise ValueError(
            f"batch_axis={list(batch_axis)} has {len(batch_axis)} axes, but input_fn gives "
            f"{len(tensors)} tensors"
        )
    moved = [
        tf.transpose(tensor, order(axis, tensor.shape.rank)) if axis else tensor
        for tensor, axis in zip(tensors, batch_axis, strict=True)
    ]
    return tf.nest.pack_sequence_as(element, moved)


def _to_front(axis, rank):
    return [axis, *(i for i in range(rank) if i != axis)]


def _from_front(axis, rank):
    return [*range(1, axis + 1), 0, *range(axis + 1, rank)]
