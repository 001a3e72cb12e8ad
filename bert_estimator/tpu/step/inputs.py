"""The tensors that an `input_fn` returns: batches drawn from them, their axes, their parts.

`batch_axis` is for inputs whose batch is not their first dimension. The rest of the framework
splits and concatenates tensors along axis 0. So the batch of each tensor is moved to axis 0 when
the input_fn returns it, and is moved back before the model_fn gets it.

`TPUConfig.input_partition_dims` says which inputs are split over the cores of a replica, and how.
An image may be too large for one core. Its parts then lie on the cores of a replica, and the
compiler divides the work accordingly; it exchanges the borders that convolutions need.
"""

import functools
import math
import re
from collections.abc import Callable

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.graph import graph_walk
from bert_estimator.tpu import call
from bert_estimator.tpu.spec import ModeKeys
from bert_estimator.tpu.step import feeds


def moved_to_front(input_fn: Callable, batch_axis: list[int]) -> Callable:
    """Returns an input_fn that gives the same tensors with the batch as their first axis;
    `batch_axis` is the axis in each, in the order of `tf.nest.flatten((features, labels))`."""

    def moving_input_fn(mode, params, config):
        returned = call.call_input_fn(input_fn, mode, params, config)
        if not call.is_dataset(returned):
            return _moved(returned, batch_axis, _to_front)

        def move(*element):
            return _moved(element if len(element) > 1 else element[0], batch_axis, _to_front)

        return returned.map(move)

    return moving_input_fn


def moved_back(model_fn: Callable, batch_axis: list[int]) -> Callable:
    """Returns a model_fn that takes tensors whose first axis is the batch; see `moved_to_front`."""

    def moving_model_fn(features, labels, mode, params, config):
        element = features if labels is None else (features, labels)
        moved = _moved(element, batch_axis, _from_front)
        features, labels = (moved, None) if labels is None else moved
        return call.call_model_fn(model_fn, features, labels, mode, params, config)

    return moving_model_fn


def _moved(element, batch_axis, order):
    """Returns a structure of tensors with their axes permuted by `order(batch axis, rank)`."""
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


def parts_of_inputs(job, features, labels) -> list[list[int] | None]:
    """Returns for each input of a replica, in the order of `tf.nest.flatten`, the number of parts
    of each dimension; None if every core of the replica has the whole tensor."""
    config = job.tpu_config
    whole = [None for _ in named_leaves("", features) + named_leaves("", labels)]
    if config.input_partition_dims is None:
        return whole
    if job.hosts.number > 1:
        raise ValueError(
            f"TPUConfig: input_partition_dims is not supported with {job.hosts.number} hosts, only "
            "with one"
        )
    of_features, of_labels, *_ = [*config.input_partition_dims, None]
    if job.mode == ModeKeys.PREDICT:
        of_labels = None  # predict drops the labels
    cores = config.num_cores_per_replica
    parts = _parts("features", features, of_features, cores)
    return parts + _parts("labels", labels, of_labels, cores)


def _parts(path, structure, dims, cores):
    """Returns the parts of each tensor of a structure."""
    leaves = named_leaves(path, structure)
    if dims is None:
        return [None for _ in leaves]
    if leaves == [(path, structure)]:
        return [_parts_of_tensor(path, structure, dims, cores)]
    if isinstance(structure, dict):
        fits = isinstance(dims, dict) and dims.keys() == structure.keys()
        keys = sorted(structure)
    else:
        fits = isinstance(dims, list | tuple) and len(dims) == len(structure or ())
        keys = range(len(structure or ()))
    if not fits:
        raise ValueError(
            f"TPUConfig: input_partition_dims has {dims!r} for {path}, but its structure must be "
            f"the inputs' own: {structure!r}"
        )
    each = (_parts(f"{path}[{key!r}]", structure[key], dims[key], cores) for key in keys)
    return [parts for of_key in each for parts in of_key]


def _parts_of_tensor(path, tensor, dims, cores):
    shape = tensor.shape.as_list()
    numbers = isinstance(dims, list | tuple) and all(isinstance(n, int) and n > 0 for n in dims)
    if not numbers or len(dims) != len(shape) or math.prod(dims) != cores:
        raise ValueError(
            f"TPUConfig: input_partition_dims has {dims!r} for {path} of shape {shape}: it must be "
            "None, or a list with the number of parts of each dimension, whose product is "
            f"num_cores_per_replica={cores}"
        )
    if any(size % number for size, number in zip(shape, dims, strict=True)):
        raise ValueError(
            f"TPUConfig: input_partition_dims has {dims!r} for {path}, but its shape {shape} "
            "cannot be split evenly into so many parts"
        )
    return list(dims)


class Inputs:
    """Calls an `input_fn` in the current graph; its features and labels (or None) are the tensors
    of one batch."""

    def __init__(self, input_fn: Callable, mode: str, params, config, needs_params: bool = True):
        # The data is made on the host, whatever devices there are.
        with tf.device("/cpu:0"):
            returned = call.call_input_fn(input_fn, mode, params, config, needs_params)
            self.initializer = None  # what starts the data, or starts it again, if it is a Dataset
            if call.is_dataset(returned):
                iterator = tf.data.make_initializable_iterator(returned)
                self.initializer = iterator.initializer
                returned = iterator.get_next()
        self.features, self.labels = call.split_features_and_labels(returned)
        # tf.nest would count a None as a leaf.
        self._element = [self.features] if self.labels is None else [self.features, self.labels]

    @functools.cached_property
    def _tensors(self):
        # Local mode does not need them, and takes dicts whose keys cannot be sorted, as upstream.
        return tf.nest.flatten(self._element)

    def check_static_shapes(self) -> None:
        """Checks that the inputs are dense tensors of static shapes, as a compiled program
        needs."""
        for path, tensor in named_leaves("features", self.features) + named_leaves(
            "labels", self.labels
        ):
            if not isinstance(tensor, tf.Tensor):
                raise ValueError(
                    f"{path} is a {type(tensor).__name__}: with use_tpu=True every input must be a "
                    "dense tensor of static shape"
                )
            if not tensor.shape.is_fully_defined():
                raise ValueError(
                    f"{path} has shape {tensor.shape}: with use_tpu=True all shapes must be "
                    "static. Batch with dataset.batch(params['batch_size'], drop_remainder=True), "
                    "and give other unknown dimensions a fixed size (tf.ensure_shape, padded_batch)"
                )

    def names(self) -> list[str]:
        """Returns a name for each tensor, in order: the keys of features, if they are a dict;
        otherwise Python expressions such as "labels" or "features[0]"."""
        paths = [path for path, _ in named_leaves("features", self.features)]
        paths += [path for path, _ in named_leaves("labels", self.labels)]
        return [re.sub(r"^features\['([^']*)'\]$", r"\1", path) for path in paths]

    def placeholders(self) -> tuple:
        """Returns (features, labels, list of placeholders), with placeholders for tensors."""
        holders = []

        def placeholder(tensor):
            holders.append(tf.placeholder(tensor.dtype, tensor.shape))
            return holders[-1]

        return *self.replaced(placeholder), holders

    def replaced(self, function: Callable[[tf.Tensor], object]) -> tuple:
        """Returns (features, labels) with `function(tensor)` in place of each tensor."""
        replacements = [function(tensor) for tensor in self._tensors]
        features, *labels = tf.nest.pack_sequence_as(self._element, replacements)
        return features, labels[0] if labels else None

    def without_drawing(self, summaries: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the v1 summaries that can be written without drawing a batch; it warns of the
        others."""
        # A summary of a tensor that input_fn made would draw another batch, which the steps would
        # then miss.
        drawing = {tensor.op for tensor in self._tensors}
        drawing |= {op for op in graph_walk.all_before(drawing) if _differs_by_run(op)}
        drawing = set(graph_walk.all_after(drawing))
        kept = []
        for summary in summaries:
            if summary.op not in drawing:
                kept.append(summary)
            else:
                tf.logging.warning(
                    "The summary %s is not written: it depends on tensors of input_fn, and would "
                    "draw a batch that no step gets. Make it in model_fn, from the features",
                    summary.op.name,
                )
        return kept

    def drawer(self, session: tf.Session, elements: int = 1) -> Callable[[], list[np.ndarray]]:
        """Returns the function with which an `Infeed` draws a batch: a list of arrays, with the
        rows of `elements` elements of the input along axis 0; at the end it raises `EndOfInput`."""
        run = session.make_callable(self._tensors)

        def draw():
            try:
                # An incomplete batch is dropped: the steps take batches of one size.
                drawn = [run() for _ in range(elements)]
            except tf.errors.OutOfRangeError:
                raise feeds.EndOfInput from None
            if elements == 1:
                return drawn[0]
            return [np.concatenate(arrays) for arrays in zip(*drawn, strict=True)]

        return draw


def _differs_by_run(operation):
    """Returns whether an operation gives other data in each run: it reads an iterator, a queue or a
    file, calls Python, or is random."""
    # Reading a handle or a variable does not count.
    is_handle = any(tensor.dtype in (tf.resource, tf.variant) for tensor in operation.outputs)
    reads_variable = operation.type in ("ReadVariableOp", "VariableV2")
    return operation.op_def.is_stateful and not is_handle and not reads_variable


def named_leaves(path: str, structure) -> list[tuple]:
    """Returns (path, leaf) pairs of a nested structure, in the order of `tf.nest.flatten`."""
    if structure is None:
        return []
    if isinstance(structure, dict):
        try:
            keys = sorted(structure)
        except TypeError:
            raise TypeError(
                f"{path} has keys of several types, {[*structure]}, so its tensors have no order. "
                "Use texts alone, or use_tpu=False with tensors instead of a dataset"
            ) from None
        items = [(f"{path}[{key!r}]", structure[key]) for key in keys]
    elif isinstance(structure, tuple | list):
        items = [(f"{path}[{i}]", value) for i, value in enumerate(structure)]
    else:
        return [(path, structure)]
    return [leaf for name, value in items for leaf in named_leaves(name, value)]
