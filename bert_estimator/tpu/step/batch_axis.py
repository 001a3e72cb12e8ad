"""batch_axis: inputs whose batch is not their first dimension.

Everything else of the framework splits and concatenates along axis 0. So the batch is moved there
as the input_fn's tensors come out, and back before the model_fn sees them.
"""

import tensorflow.compat.v1 as tf

from bert_estimator.tpu import call


def moved_to_front(input_fn, batch_axis):
    """Returns an input_fn whose tensors have the batch first.

    Args:
      batch_axis: the batch's axis of each tensor (a list of int), in the order of
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


def moved_back(model_fn, batch_axis):
    """Returns the model_fn, but for inputs that have the batch first."""

    def moving_model_fn(features, labels, mode, params, config):
        element = features if labels is None else (features, labels)
        moved = _moved(element, batch_axis, _from_front)
        features, labels = (moved, None) if labels is None else moved
        return call.call_model_fn(model_fn, features, labels, mode, params, config)

    return moving_model_fn


def _moved(element, batch_axis, order):
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
