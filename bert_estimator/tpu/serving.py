"""Input receivers, which say what a served model is fed, and the functions that make them.

The names are as in `tf.compat.v1.estimator.export`. An input receiver says which tensors a
caller of the SavedModel feeds (`receiver_tensors`), and which features the model_fn gets, computed
from them.
"""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from tensorflow.python.saved_model import model_utils

from bert_estimator.tpu import call

ClassificationOutput = model_utils.ClassificationOutput
EvalOutput = model_utils.EvalOutput
ExportOutput = model_utils.ExportOutput
PredictOutput = model_utils.PredictOutput
RegressionOutput = model_utils.RegressionOutput


class ExportSavedModelApiVersion(enum.IntEnum):
    """Says who wraps a SavedModel's graph for TPUs: the estimator (V1) or the model_fn (V2)."""

    V1 = 1
    V2 = 2


# The names of tensors that are given without a name.
_FEATURE, _RECEIVER, _LABEL = "feature", "input", "label"


@call.checked
class ServingInputReceiver(NamedTuple):
    """A receiver function returns it for PREDICT.

    Args:
      features: a tensor, or a dict of name -> tensor. The model_fn gets a dict.
      receiver_tensors: a tensor, or a dict of name -> tensor. Callers feed them.
      receiver_tensors_alternatives: dict of signature name -> other receiver tensors that callers
        may feed instead, or None.

    Raises:
      ValueError: a value is not a tensor, or its name is not a string.
    """

    features: Any
    receiver_tensors: Any
    receiver_tensors_alternatives: dict | None = None

    def _checked_values(self, replaced):
        alternatives = self.receiver_tensors_alternatives
        if alternatives is not None:
            if not isinstance(alternatives, dict):
                raise ValueError(
                    f"receiver_tensors_alternatives must be a dict, not {alternatives!r}"
                )
            alternatives = {
                name: _named(tensors, _RECEIVER, f"receiver_tensors_alternatives[{name!r}]")
                for name, tensors in alternatives.items()
            }
        return {
            "features": _named(self.features, _FEATURE, "features", keys=(str, int)),
            "receiver_tensors": _named(self.receiver_tensors, _RECEIVER, "receiver_tensors"),
            "receiver_tensors_alternatives": alternatives,
        }


@call.checked
class TensorServingInputReceiver(NamedTuple):
    """A `ServingInputReceiver` for a model_fn whose features are one tensor without a name."""

    features: tf.Tensor
    receiver_tensors: Any
    receiver_tensors_alternatives: dict | None = None

    def _checked_values(self, replaced):
        if isinstance(self.features, dict):
            raise ValueError(f"features must be a tensor, not {self.features!r}")
        return {**ServingInputReceiver(*self)._asdict(), "features": self.features}


class UnsupervisedInputReceiver(ServingInputReceiver):
    """A receiver function returns it for TRAIN and EVAL of a model without labels."""

    __slots__ = ()

    def __new__(cls, features, receiver_tensors):
        return super().__new__(cls, features, receiver_tensors)


@call.checked
class SupervisedInputReceiver(NamedTuple):
    """A receiver function returns it for TRAIN and EVAL.

    Args:
      features, labels: tensors, or dicts of name -> tensor, as the model_fn gets them.
      receiver_tensors: as in a `ServingInputReceiver`.

    Raises:
      ValueError: a value is not a tensor, or its name is not a string.
    """

    features: Any
    labels: Any
    receiver_tensors: Any

    def _checked_values(self, replaced):
        _named(self.features, _FEATURE, "features", keys=(str, int))
        _named(self.labels, _LABEL, "labels", keys=(str, int))
        return {"receiver_tensors": _named(self.receiver_tensors, _RECEIVER, "receiver_tensors")}


def build_parsing_serving_input_receiver_fn(
    feature_spec: dict, default_batch_size: int | None = None
) -> Callable:
    """Returns a receiver function for serialized `tf.Example`s, fed as strings [batch].

    Args:
      feature_spec: dict of name -> `tf.io.FixedLenFeature` or a similar feature.
      default_batch_size: number of examples at a time. None means any number.
    """

    def receiver_fn():
        serialized = tf.placeholder(tf.string, [default_batch_size], "input_example_tensor")
        features = tf.io.parse_example(serialized, feature_spec)
        return ServingInputReceiver(features, {"examples": serialized})

    return receiver_fn


def build_raw_serving_input_receiver_fn(
    features: dict[str, tf.Tensor], default_batch_size: int | None = None
) -> Callable:
    """Returns a receiver function for features that callers feed as tensors.

    Args:
      features: dict of name -> tensor, such as a placeholder, with the feature's dtype and shape.
        The first dimension of the shape does not matter.
      default_batch_size: number of examples at a time. None means any number.

    Example:

      >>> with tf.Graph().as_default():
      ...     x = tf.placeholder(tf.float32, [None, 3])
      ...     receiver_fn = tpu.serving.build_raw_serving_input_receiver_fn({"x": x})
      ...     receiver_fn().features["x"].shape.as_list()
      [None, 3]
    """

    def receiver_fn():
        fed = _placeholders(features, default_batch_size)
        return ServingInputReceiver(fed, fed)

    return receiver_fn


def build_raw_supervised_input_receiver_fn(
    features: tf.Tensor | dict[str, tf.Tensor],
    labels: tf.Tensor | dict[str, tf.Tensor],
    default_batch_size: int | None = None,
) -> Callable:
    """Returns a receiver function for features and labels that callers feed as tensors.

    Args:
      features, labels: tensors, or dicts of name -> tensor, as the model_fn gets them; callers feed
        the same dtypes, and shapes with another number of examples.
      default_batch_size: number of examples at a time. None means any number.

    Raises:
      ValueError: features and labels have a name in common.
    """
    names = set(features) if isinstance(features, dict) else {_RECEIVER}
    shared = names & (set(labels) if isinstance(labels, dict) else {_LABEL})
    if shared:
        raise ValueError(
            f"features and labels must have distinct names, but share {sorted(shared)}"
        )

    def receiver_fn():
        fed_features = _placeholders(features, default_batch_size)
        fed_labels = _placeholders(labels, default_batch_size)
        fed = {
            **(fed_features if isinstance(features, dict) else {_RECEIVER: fed_features}),
            **(fed_labels if isinstance(labels, dict) else {_LABEL: fed_labels}),
        }
        return SupervisedInputReceiver(fed_features, fed_labels, fed)

    return receiver_fn


def build_supervised_input_receiver_fn_from_input_fn(
    input_fn: Callable, **input_fn_args
) -> Callable:
    """Returns a receiver function for the features and labels of an input_fn.

    Args:
      input_fn: function that returns a Dataset, or a (features, labels) pair.
      **input_fn_args: the arguments of input_fn.
    """
    # Only the dtypes, shapes and names are needed, so what input_fn builds stays out of the
    # exported graph.
    with tf.Graph().as_default():
        given = input_fn(**input_fn_args)
        if call.is_dataset(given):
            given = tf.data.make_one_shot_iterator(given).get_next()
        return build_raw_supervised_input_receiver_fn(*call.split_features_and_labels(given))


def _placeholders(tensors, batch_size):
    """Returns placeholders for a tensor, or for each tensor of a dict."""

    def placeholder(tensor):
        shape = tf.TensorShape([batch_size]).concatenate(tensor.shape[1:])
        operation = getattr(tensor, "op", None)  # an eager tensor has no operation
        return tf.placeholder(tensor.dtype, shape, None if operation is None else operation.name)

    if isinstance(tensors, dict):
        return {name: placeholder(tensor) for name, tensor in tensors.items()}
    return placeholder(tensors)


def _named(tensors, default_name, what, keys=str):
    """Returns a checked dict of tensors; a single tensor gets the default name."""
    if tensors is None:
        raise ValueError(f"{what} must be given")
    if not isinstance(tensors, dict):
        tensors = {default_name: tensors}
    for name, tensor in tensors.items():
        if not isinstance(name, keys):
            raise ValueError(f"{what} must be named by strings, not by {name!r}")
        if not isinstance(tensor, tf.Tensor | tf.SparseTensor | tf.RaggedTensor):
            raise ValueError(
                f"{what}: {name!r} must be a Tensor, SparseTensor or RaggedTensor, not {tensor!r}"
            )
    return tensors
