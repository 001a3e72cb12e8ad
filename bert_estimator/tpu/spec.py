"""What a `model_fn` returns: ModeKeys, EstimatorSpec and TPUEstimatorSpec, and their metrics.

A metric is a pair of a value and an update, or an object in the style of Keras. Such an object has
methods `update_state` and `result`, a list `updates` of the operations that `update_state` made,
and a list `variables`, as a `tf.keras.metrics.Metric` has. The model_fn, or the metric function,
calls `update_state`; evaluation runs the updates in every step, and reads the result at the end.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf
from tensorflow.python.saved_model import model_utils

from bert_estimator.graph.graph_walk import is_computed_from
from bert_estimator.tpu import call
from bert_estimator.tpu.call import checked
from bert_estimator.tpu.replicas import replica

_COLLECTIONS = (tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES)


def metric_pairs(metrics: dict | None, what: str) -> dict[str, tuple]:
    """Returns metrics, a dict of name -> pair or metric object, as a dict of (value, update
    operation) pairs; `what` says in an error what they are."""
    if not isinstance(metrics, dict | None):
        raise TypeError(f"{what} must be a dict, of a metric by each name, not {metrics!r}")
    pairs = {}
    for name, metric in (metrics or {}).items():
        if hasattr(metric, "update_state") and hasattr(metric, "result"):
            pairs[name] = _pair_of(metric, f"{what}[{name!r}]")
        elif isinstance(metric, tuple) and len(metric) == 2:
            for leaf in tf.nest.flatten(metric):
                if not (tf.is_tensor(leaf) or isinstance(leaf, tf.Operation)):
                    raise TypeError(
                        f"{what}[{name!r}] has {leaf!r}, which is neither a tensor nor an operation"
                    )
            pairs[name] = metric
        else:
            raise TypeError(
                f"Values of {what} must be (metric_value, update_op) tuples as tf.metrics.* "
                f"returns them, or Keras metrics; {what}[{name!r}] is {metric!r}"
            )
    return pairs


def with_metric_pairs(pair: tuple) -> tuple:
    """Returns a (metric function, tensors) pair of a spec whose function returns `metric_pairs`."""
    function, tensors = pair

    @functools.wraps(function)
    def metric_fn(*args, **kwargs):
        return metric_pairs(function(*args, **kwargs), "eval_metrics: metric_fn's result")

    return metric_fn, tensors


def _pair_of(metric, where):
    if not hasattr(metric, "updates") or not hasattr(metric, "variables"):
        raise TypeError(
            f"{where} is {metric!r}, a metric object without the lists `updates` and `variables`: "
            "evaluation cannot know what to run in each step. Use tf.metrics.*, or a metric of "
            "tf_keras"
        )
    updates = list(metric.updates)
    if not updates:
        label = getattr(metric, "name", type(metric).__name__)
        raise ValueError(f'{where}: Please call update_state(...) on the "{label}" metric')
    # In these collections, the variables begin anew in each evaluation, and no checkpoint has them.
    for key in _COLLECTIONS:
        known = {id(variable) for variable in tf.get_collection(key)}
        for variable in metric.variables:
            if id(variable) not in known:
                tf.add_to_collection(key, variable)
    return metric.result(), tf.group(*updates)


class ModeKeys:
    """Names the modes in which a `model_fn` builds a model."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


@checked
class EstimatorSpec(NamedTuple):
    """Operations and tensors of a model in one mode.

    TRAIN needs loss and train_op, EVAL needs loss, PREDICT needs predictions.

    Attributes:
      mode: a `ModeKeys` value. `_replace` cannot change it.
      predictions: a tensor, or a dict of name -> tensor.
      loss: a tensor of one element; it becomes a scalar.
      train_op: the operation (or tensor) of a training step.
      eval_metric_ops: dict of name -> (value, update operation), or a metric object as in Keras,
        which becomes such a pair. The value may be a nested structure of tensors.
      export_outputs: dict of signature name -> `serving.ExportOutput`, for PREDICT. One of them
        is the default signature: the only one, or the one with TensorFlow's name for it. None: the
        predictions.
      training_chief_hooks, training_hooks, evaluation_hooks, prediction_hooks: lists of
        `tf.train.SessionRunHook`s; they become tuples.
      scaffold: a `tf.train.Scaffold`; a new one if None.

    Raises:
      ValueError, TypeError: a field that the mode needs is missing, or a field has the wrong type
        or shape, or belongs to another graph than the default one.
    """

    mode: str
    predictions: Any = None
    loss: tf.Tensor | None = None
    train_op: tf.Operation | tf.Tensor | None = None
    eval_metric_ops: dict | None = None
    export_outputs: dict | None = None
    training_chief_hooks: Sequence | None = None
    training_hooks: Sequence | None = None
    scaffold: tf.train.Scaffold | None = None
    evaluation_hooks: Sequence | None = None
    prediction_hooks: Sequence | None = None

    def _checked_values(self, replaced):
        if replaced is not None and self.mode != replaced.mode:
            raise ValueError("mode of EstimatorSpec cannot be changed: make another EstimatorSpec")
        if self.mode not in (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT):
            raise ValueError(f"EstimatorSpec: mode must be a ModeKeys value, not {self.mode!r}")
        changed = _checked_alike(self)
        metrics = metric_pairs(self.eval_metric_ops, "eval_metric_ops")
        for name, metric in metrics.items():
            _check_graph(metric, f"eval_metric_ops with {name!r}:")
        changed["eval_metric_ops"] = metrics
        if not isinstance(self.scaffold, tf.train.Scaffold | None):
            raise TypeError(f"scaffold must be tf.train.Scaffold, not {self.scaffold!r}")
        changed["scaffold"] = tf.train.Scaffold() if self.scaffold is None else self.scaffold
        return changed


@checked
class TPUEstimatorSpec(NamedTuple):
    """Holds what an `EstimatorSpec` holds, in a form that can be split between device and host.

    Attributes:
      mode, predictions, loss, train_op, export_outputs: as in an `EstimatorSpec`.
      training_hooks, evaluation_hooks, prediction_hooks: as in an `EstimatorSpec`.
      eval_metrics: (metric_fn, list or dict of tensors). The tensors of every step, concatenated
        over the cores along axis 0, are given to `metric_fn` on the host, by position or by
        keyword; it returns a dict of pairs as `tf.metrics` has them, or of Keras metrics.
      scaffold_fn: function without arguments that returns a `tf.train.Scaffold`; called on the
        host after the model is built.
      host_call: (host_fn, list or dict of tensors), as eval_metrics, called for every step (or
        every n-th, see `TPUConfig`); `host_fn` returns the operations to run.

    Raises:
      ValueError, TypeError, RuntimeError: as an `EstimatorSpec`, or for a malformed pair, or for
        tensors that do not fit the function's parameters.

    Example, with a metric of the tensors of all cores:

      >>> def metric_fn(labels, predicted):
      ...     return {"accuracy": tf.metrics.accuracy(labels, predicted)}
      >>> with tf.Graph().as_default():
      ...     loss, labels, predicted = tf.constant(0.5), tf.constant([1, 0]), tf.constant([1, 1])
      ...     spec = tpu.TPUEstimatorSpec(
      ...         tpu.ModeKeys.EVAL, loss=loss, eval_metrics=(metric_fn, [labels, predicted])
      ...     )
      ...     sorted(spec.as_estimator_spec().eval_metric_ops)
      ['accuracy']
    """

    mode: str
    predictions: Any = None
    loss: tf.Tensor | None = None
    train_op: tf.Operation | tf.Tensor | None = None
    eval_metrics: tuple | None = None
    export_outputs: dict | None = None
    scaffold_fn: Callable | None = None
    host_call: tuple | None = None
    training_hooks: Sequence | None = None
    evaluation_hooks: Sequence | None = None
    prediction_hooks: Sequence | None = None

    def _checked_values(self, replaced):
        for name in ("eval_metrics", "host_call"):
            if getattr(self, name) is not None:
                _check_host_pair(getattr(self, name), name)
        return _checked_alike(self)

    def as_estimator_spec(self):
        """Returns the equivalent `EstimatorSpec`.

        metric_fn, scaffold_fn and host_call are called here, with the tensors themselves. The
        operations of the host call become a hook that runs them in every step.
        """
        hooks = _hooks_of(self)
        if self.host_call is not None:
            operations = call_host_fn(self.host_call)
            if operations is not None:
                hooks = {k: v + (FetchEveryStep(operations),) for k, v in hooks.items()}
        return EstimatorSpec(
            mode=self.mode,
            predictions=self.predictions,
            loss=self.loss,
            train_op=self.train_op,
            eval_metric_ops=call_host_fn(self.eval_metrics) if self.eval_metrics else None,
            export_outputs=self.export_outputs,
            scaffold=self.scaffold_fn() if self.scaffold_fn else None,
            **hooks,
        )


def device_spec(spec: EstimatorSpec | TPUEstimatorSpec) -> TPUEstimatorSpec:
    """Returns the spec of a model, built in the current graph, in the form that runs under TPU
    rules; its errors have the types of upstream's."""
    if isinstance(spec, TPUEstimatorSpec):
        return spec._replace(
            host_call=_with_tensors(spec.host_call), eval_metrics=_with_tensors(spec.eval_metrics)
        )
    if spec.mode != ModeKeys.TRAIN:
        raise RuntimeError(
            f"With use_tpu=True model_fn must return a TPUEstimatorSpec in mode {spec.mode!r}: an "
            "EstimatorSpec's metrics cannot be moved to the host. Use eval_metrics=(fn, tensors)"
        )
    if spec.training_chief_hooks:
        raise ValueError("With use_tpu=True training_chief_hooks are not supported")
    tf.logging.warning("EstimatorSpec.scaffold is ignored with use_tpu=True; use scaffold_fn")
    return TPUEstimatorSpec(
        spec.mode, loss=spec.loss, train_op=spec.train_op, training_hooks=spec.training_hooks
    )


def _with_tensors(pair):
    """Returns a spec's (function, values) pair with arrays and variables turned into tensors."""
    if pair is None:
        return None
    function, values = pair
    if isinstance(values, dict):
        return function, {key: tf.convert_to_tensor(value) for key, value in values.items()}
    return function, [tf.convert_to_tensor(value) for value in values]


def call_host_fn(pair, tensors=None):
    """Calls the function of a (function, list or dict of tensors) pair, with other tensors of the
    same structure if they are given."""
    function, own = pair
    tensors = own if tensors is None else tensors
    if isinstance(own, dict):
        # This tells keys that do not fit from a TypeError within the function.
        try:
            inspect.signature(function).bind(**tensors)
        except TypeError as error:
            raise TypeError(
                f"the keys {sorted(tensors)} of the tensors do not fit the parameters of "
                f"{_name(function)}{inspect.signature(function)}: {error}"
            ) from error
        return function(**tensors)
    return function(*tensors)


def call_scaffold_fn(scaffold_fn, placeholders):
    """Calls the `scaffold_fn` of a spec, which may be None, by the TPU's rules: it cannot use what
    is computed from the placeholders of the step's input."""
    if scaffold_fn is None:
        return None
    graph = placeholders[0].graph if placeholders else tf.get_default_graph()
    number_before = len(graph.get_operations())
    scaffold = scaffold_fn()
    if scaffold is None:
        raise ValueError("TPUEstimatorSpec.scaffold_fn must return a tf.train.Scaffold")
    given = [scaffold.init_op, scaffold.local_init_op, scaffold.ready_op, scaffold.summary_op]
    # Not only what it builds is checked: it may give operations of the step to the Scaffold too.
    for value in [*graph.get_operations()[number_before:], *given]:
        if is_computed_from(value, placeholders):
            raise ValueError(
                f"TPUEstimatorSpec.scaffold_fn uses {value.name}, which is computed from a step's "
                "input: on a TPU a Scaffold can only use the variables"
            )
    return scaffold


class FetchEveryStep(tf.train.SessionRunHook):
    """Runs operations in every step."""

    def __init__(self, operations):
        self.operations = operations

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self.operations)


def _hooks_of(spec):
    """Returns the lists of hooks of a spec of either kind, by name."""
    return {name: each for name, each in spec._asdict().items() if name.endswith("_hooks")}


def _checked_alike(spec):
    """Returns what both kinds of specs hold, as it is kept, after checks."""
    if spec.mode == ModeKeys.TRAIN and spec.train_op is None:
        raise ValueError("Missing train_op: a spec of mode TRAIN needs it")
    if spec.mode in (ModeKeys.TRAIN, ModeKeys.EVAL) and spec.loss is None:
        raise ValueError(f"Missing loss: a spec of mode {spec.mode!r} needs it")
    if spec.mode == ModeKeys.PREDICT and spec.predictions is None:
        raise ValueError("Missing predictions: a spec of mode PREDICT needs them")
    if not (isinstance(spec.train_op, tf.Operation | None) or _is_tensor(spec.train_op)):
        raise TypeError(f"train_op must be Operation or Tensor, not {spec.train_op!r}")
    _check_graph(spec.train_op, "train_op with")
    _check_graph(spec.loss, "loss with")
    if isinstance(spec.predictions, dict):
        predictions = {f"predictions[{key}]": value for key, value in spec.predictions.items()}
    else:
        predictions = {} if spec.predictions is None else {"predictions": spec.predictions}
    for name, value in predictions.items():
        if not _is_tensor(value):
            raise TypeError(f"{name} must be Tensor, not {value!r}")
        _check_graph(value, f"prediction values with {name}:")
    kept = {} if spec.predictions is None else spec.predictions
    # Specs hold what is exported from the start, because a wrapper of the model_fn may add to it.
    outputs = spec.export_outputs
    if spec.mode == ModeKeys.PREDICT:
        outputs = model_utils.get_export_outputs(outputs, kept)
    return {
        "predictions": kept,
        "loss": _scalar_loss(spec.loss),
        "export_outputs": outputs,
        **{name: call.hooks(each, name) for name, each in _hooks_of(spec).items()},
    }


def _check_host_pair(pair, name):
    what = f"{name} should be a (function, tensors) pair:"
    if not isinstance(pair, tuple | list):
        raise ValueError(f"{what} {name} should be tuple or list, not {type(pair).__name__}")
    if len(pair) != 2:
        raise ValueError(f"{what} {name} should have two elements, not {len(pair)}")
    function, tensors = pair
    if not callable(function):
        raise TypeError(f"{what} {name}[0] should be callable, not {function!r}")
    if not isinstance(tensors, tuple | list | dict):
        raise ValueError(
            f"{what} {name}[1] should be tuple or list, or dict, not {type(tensors).__name__}"
        )
    if isinstance(tensors, dict):  # `call_host_fn` checks its keys.
        return
    signature = inspect.signature(function)
    try:
        signature.bind(*tensors)
    except TypeError:
        raise RuntimeError(
            f"In TPUEstimatorSpec.{name}, length of tensors {len(tensors)} does not match method "
            f"args of the function {_name(function)}{signature}"
        ) from None


def _is_tensor(value):
    """Whether a value is one dense tensor, or a variable."""
    composite = tf.SparseTensor | tf.RaggedTensor | tf.IndexedSlices
    return tf.is_tensor(value) and not isinstance(value, composite)


def _check_graph(values, what):
    if tf.executing_eagerly():  # Tests of heads make specs of eager tensors, which are in no graph.
        return
    # In a block of mesh-tensorflow these are two; see `replica.model_graph`.
    graphs = (tf.get_default_graph(), replica.model_graph())
    for value in tf.nest.flatten(values, expand_composites=True):
        if isinstance(value, tf.Tensor | tf.Operation) and value.graph not in graphs:
            raise ValueError(
                f'{what} "{value.name}" must be from the default graph, which model_fn is called '
                "in. It is of another one: build it inside of model_fn, in the same call"
            )


def _scalar_loss(loss):
    if loss is None:
        return None
    if not _is_tensor(loss):
        raise TypeError(f"loss must be Tensor, not {loss!r}")
    if loss.shape.num_elements() not in (None, 1):
        name = "it" if tf.executing_eagerly() else loss.name
        raise ValueError(f"Loss must be scalar, but {name} has shape {loss.shape}")
    if loss.shape.rank == 0:
        return loss
    with contextlib.nullcontext() if tf.executing_eagerly() else loss.graph.as_default():
        return tf.reshape(loss, [])


def _name(function):
    return getattr(function, "__name__", repr(function))
