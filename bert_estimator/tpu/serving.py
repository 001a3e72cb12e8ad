"""What a served model is fed: input receivers, and the functions that make them.

As `tf.compat.v1.estimator.export`. An input receiver says which tensors a caller of the SavedModel
feeds (`receiver_tensors`) and which features the model_fn gets, computed from them.
"""

import collections

import tensorflow.compat.v1 as tf
from tensorflow.python.saved_model import model_utils

from bert_estimator.tpu import call

ClassificationOutput = model_utils.ClassificationOutput
EvalOutput = model_utils.EvalOutput
ExportOutput = model_utils.ExportOutput
PredictOutput = model_utils.PredictOutput
RegressionOutput = model_utils.RegressionOutput

# The names of tensors that are given without one.
_FEATURE, _RECEIVER, _LABEL = "feature", "input", "label"


class ServingInputReceiver(
    collections.namedtuple(
        "ServingInputReceiver", ["features", "receiver_tensors", "receiver_tensors_alternatives"]
    )
):
    """What a receiver function returns for PREDICT.

    Args:
      features: a tensor, or a dict of name -> tensor, for the model_fn, which gets a dict.
      receiver_tensors: a tensor, or a dict of name -> tensor: what callers feed.
      receiver_tensors_alternatives: dict of signature name -> receiver tensors that may be fed
        in place of these, or None.

    Raises:
      ValueError: something is no tensor, or its name is no string.
    """

    __slots__ = ()

    def __new__(cls, features, receiver_tensors, receiver_tensors_alternatives=None):
        alternatives = receiver_tensors_alternatives
        if alternatives is not None:
            if not isinstance(alternatives, dict):
                raise ValueError(
                    f"receiver_tensors_alternatives must be a dict, not {alternatives!r}"
                )
            alternatives = {
                name: _named(tensors, _RECEIVER, f"receiver_tensors_alternatives[{name!r}]")
                for name, tensors in alternatives.items()
            }
        return super().__new__(
            cls,
            _named(features, _FEATURE, "features", keys=(str, int)),
            _named(receiver_tensors, _RECEIVER, "receiver_tensors"),
            alternatives,
        )


class TensorServingInputReceiver(
    collections.namedtuple(
        "TensorServingInputReceiver",
        ["features", "receiver_tensors", "receiver_tensors_alternatives"],
    )
):
    """As `ServingInputReceiver`, for a model_fn whose features are one tensor without a name."""

    __slots__ = ()

    def __new__(cls, features, receiver_tensors, receiver_tensors_alternatives=None):
        if isinstance(features, dict):
            raise ValueError(f"features must be a tensor, not {features!r}")
        receiver = ServingInputReceiver(features, receiver_tensors, receiver_tensors_alternatives)
        return super().__new__(cls, features, *receiver[1:])


class UnsupervisedInputReceiver(ServingInputReceiver):
    """What a receiver function returns for TRAIN and EVAL of a model without labels."""

    __slots__ = ()

    def __new__(cls, features, receiver_tensors):
        return super().__new__(cls, features, receiver_tensors)


class SupervisedInputReceiver(
    collections.namedtuple("SupervisedInputReceiver", ["features", "labels", "receiver_tensors"])
):
    """What a receiver function returns for TRAIN and EVAL.

    Args:
      features, labels: a tensor each, or a dict, as the model_fn gets them.
      receiver_tensors: as those of a `ServingInputReceiver`.

    Raises:
      ValueError: something is no tensor, or its name is no string.
    """

    __slots__ = ()

    def __new__(cls, features, labels, receiver_tensors):
        _named(features, _FEATURE, "features", keys=(str, int))
        _named(labels, _LABEL, "labels", keys=(str, int))
        return super().__new__(
            cls, features, labels, _named(receiver_tensors, _RECEIVER, "receiver_tensors")
        )


def build_parsing_serving_input_receiver_fn(feature_spec, default_batch_size=None):
    """Returns a receiver function for serialized `tf.Example`s, fed as strings [batch].

    Args:
      feature_spec: dict of name -> `tf.FixedLenFeature` or the like.
      default_batch_size: number of examples at a time; None: any.
    """

    def receiver_fn():
        serialized = tf.placeholder(tf.string, [default_batch_size], "input_example_tensor")
        features = tf.io.parse_example(serialized, feature_spec)
        return ServingInputReceiver(features, {"examples": serialized})

    return receiver_fn


def build_raw_serving_input_receiver_fn(features, default_batch_size=None):
    """Returns a receiver function for the features themselves.

    Args:
      features: dict of name -> tensor, such as a placeholder, of the feature's dtype and shape
        but for the first dimension.
      default_batch_size: number of examples at a time; None: any.
    """

    def receiver_fn():
        fed = _placeholders(features, default_batch_size)
        return ServingInputReceiver(fed, fed)

    return receiver_fn


def build_raw_supervised_input_receiver_fn(features, labels, default_batch_size=None):
    """Returns a receiver function for features and labels themselves, for TRAIN and EVAL.

    Args:
      features, labels: as the model_fn gets them: a tensor each, or a dict of tensors.
      default_batch_size: number of examples at a time; None: any.

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


def build_supervised_input_receiver_fn_from_input_fn(input_fn, **input_fn_args):
    """Returns a receiver function for what an input_fn gives.

    Args:
      input_fn_args: what to call it with.
    """
    with tf.Graph().as_default():
        given = input_fn(**input_fn_args)
        if call.is_dataset(given):
            given = tf.data.make_one_shot_iterator(given).get_next()
        return build_raw_supervised_input_receiver_fn(*call.split_features_and_labels(given))


def _placeholders(tensors, batch_size):
    """Returns placeholders like tensors: for a tensor, or for each of a dict."""

    def placeholder(tensor):
        shape = tf.TensorShape([batch_size]).concatenate(tensor.shape[1:])
        operation = getattr(tensor, "op", None)  # an eager tensor has none
        return tf.placeholder(tensor.dtype, shape, None if operation is None else operation.name)

    if isinstance(tensors, dict):
        return {name: placeholder(tensor) for name, tensor in tensors.items()}
    return placeholder(tensors)


def _named(tensors, default_name, what, keys=str):
    """Returns a dict of tensors, checked; a single one gets the default name."""
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
