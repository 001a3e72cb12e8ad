"""The tensors that an `input_fn` returns: their shapes and names, and batches drawn from them."""

import functools
import re
from collections.abc import Callable

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.graph import graph_walk
from bert_estimator.tpu import call
from bert_estimator.tpu.step import feeds


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
    """Returns (path, leaf) pairs of a structure, in the order of `tf.nest.flatten`; [] for None."""
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
    return [leaf for n, v in items for leaf in ([(n, v)] if v is None else named_leaves(n, v))]
