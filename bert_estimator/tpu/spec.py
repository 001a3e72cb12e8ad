"""What a `model_fn` returns: ModeKeys, EstimatorSpec and TPUEstimatorSpec."""

import collections
import inspect

import tensorflow.compat.v1 as tf
from tensorflow.python.saved_model import model_utils

from bert_estimator.tpu.graph_walk import is_computed_from


class ModeKeys:
    """What a `model_fn` is asked to build."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


class EstimatorSpec(
    collections.namedtuple(
        "EstimatorSpec",
        [
            "mode",
            "predictions",
            "loss",
            "train_op",
            "eval_metric_ops",
            "export_outputs",
            "training_chief_hooks",
            "training_hooks",
            "scaffold",
            "evaluation_hooks",
            "prediction_hooks",
        ],
    )
):
    """Operations and tensors of a model in one mode; TRAIN needs loss and train_op, EVAL loss.

    Args:
      export_outputs: dict of signature name -> `serving.ExportOutput`, for PREDICT. One of them
        is the default signature: the only one, or that of TensorFlow's name for it. None: the
        predictions.

    Raises:
      ValueError, TypeError: a field the mode needs is missing or has the wrong type or shape.
    """

    __slots__ = ()

    def __new__(
        cls,
        mode,
        predictions=None,
        loss=None,
        train_op=None,
        eval_metric_ops=None,
        export_outputs=None,
        training_chief_hooks=None,
        training_hooks=None,
        scaffold=None,
        evaluation_hooks=None,
        prediction_hooks=None,
    ):
        if mode not in (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT):
            raise ValueError(f"EstimatorSpec: mode must be a ModeKeys value, not {mode!r}")
        if mode == ModeKeys.TRAIN and train_op is None:
            raise ValueError("EstimatorSpec: mode TRAIN needs train_op")
        if mode in (ModeKeys.TRAIN, ModeKeys.EVAL) and loss is None:
            raise ValueError(f"EstimatorSpec: mode {mode!r} needs loss")
        if mode == ModeKeys.PREDICT and predictions is None:
            raise ValueError("EstimatorSpec: mode PREDICT needs predictions")
        check_metrics(eval_metric_ops, "EstimatorSpec: eval_metric_ops")
        _check_graph(loss, "loss")
        _check_graph(train_op, "train_op")
        _check_graph(predictions, "predictions")
        _check_graph(eval_metric_ops, "eval_metric_ops")
        if mode == ModeKeys.PREDICT:
            export_outputs = model_utils.get_export_outputs(export_outputs, predictions)
        return super().__new__(
            cls,
            mode=mode,
            predictions={} if predictions is None else predictions,
            loss=_scalar_loss(loss),
            train_op=train_op,
            eval_metric_ops={} if eval_metric_ops is None else eval_metric_ops,
            export_outputs=export_outputs,
            training_chief_hooks=_checked_hooks(training_chief_hooks, "training_chief_hooks"),
            training_hooks=_checked_hooks(training_hooks, "training_hooks"),
            scaffold=tf.train.Scaffold() if scaffold is None else scaffold,
            evaluation_hooks=_checked_hooks(evaluation_hooks, "evaluation_hooks"),
            prediction_hooks=_checked_hooks(prediction_hooks, "prediction_hooks"),
        )

    def _replace(self, **kwargs):
        """As namedtuple's, but the new fields are checked and `mode` cannot change."""
        if "mode" in kwargs and kwargs["mode"] != self.mode:
            raise ValueError("EstimatorSpec._replace cannot change the mode")
        return EstimatorSpec(**{**self._asdict(), **kwargs})


class TPUEstimatorSpec(
    collections.namedtuple(
        "TPUEstimatorSpec",
        [
            "mode",
            "predictions",
            "loss",
            "train_op",
            "eval_metrics",
            "export_outputs",
            "scaffold_fn",
            "host_call",
            "training_hooks",
            "evaluation_hooks",
            "prediction_hooks",
        ],
    )
):
    """As `EstimatorSpec`, in a form that can be split between a device and its host.

    Args:
      eval_metrics: (metric_fn, list or dict of tensors). The tensors of every step, concatenated
        over the cores along axis 0, are given to `metric_fn` on the host, by position or by
        keyword; it returns a dict of `tf.metrics`-like pairs.
      scaffold_fn: function without arguments that returns a `tf.train.Scaffold`; called on the
        host after the model is built.
      host_call: (host_fn, list or dict of tensors), as eval_metrics, called for every step (or
        every n-th, see `TPUConfig`); `host_fn` returns the operations to run.

    Raises:
      ValueError, TypeError, RuntimeError: a malformed pair, or tensors that do not fit the
        function's parameters.
    """

    __slots__ = ()

    def __new__(
        cls,
        mode,
        predictions=None,
        loss=None,
        train_op=None,
        eval_metrics=None,
        export_outputs=None,
        scaffold_fn=None,
        host_call=None,
        training_hooks=None,
        evaluation_hooks=None,
        prediction_hooks=None,
    ):
        for name, pair in (("eval_metrics", eval_metrics), ("host_call", host_call)):
            if pair is not None:
                _check_host_pair(pair, name)
        return super().__new__(
            cls,
            mode=mode,
            predictions=predictions,
            loss=loss,
            train_op=train_op,
            eval_metrics=eval_metrics,
            export_outputs=export_outputs,
            scaffold_fn=scaffold_fn,
            host_call=host_call,
            training_hooks=_checked_hooks(training_hooks, "training_hooks"),
            evaluation_hooks=_checked_hooks(evaluation_hooks, "evaluation_hooks"),
            prediction_hooks=_checked_hooks(prediction_hooks, "prediction_hooks"),
        )

    def as_estimator_spec(self):
        """Returns the equivalent `EstimatorSpec`: metric_fn, scaffold_fn and host_call are called
        here, on the tensors themselves, and the host call's operations become a hook that runs
        them with every step."""
        hooks = {
            "training_hooks": self.training_hooks,
            "evaluation_hooks": self.evaluation_hooks,
            "prediction_hooks": self.prediction_hooks,
        }
        if self.host_call is not None:
            operations = call_host_fn(self.host_call)
            if operations is not None:
                hooks = {k: v + (_FetchEveryStep(operations),) for k, v in hooks.items()}
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


def check_metrics(metrics, what):
    """Checks that metrics are a dict of pairs, or none at all.

    Args:
      what: what they are, for the message.

    Raises:
      TypeError: they are something else.
    """
    pair = "a (value tensor, update operation) pair as tf.metrics.* returns it"
    if not isinstance(metrics, dict | None):
        raise TypeError(f"{what} must be a dict of metrics, each {pair}, not {metrics!r}")
    for name, metric in (metrics or {}).items():
        if not (isinstance(metric, tuple) and len(metric) == 2):
            raise TypeError(f"{what}[{name!r}] must be {pair}, not {metric!r}")


def call_host_fn(pair, tensors=None):
    """Calls the function of a (function, list or dict of tensors) pair.

    Args:
      tensors: list or dict to use in place of the pair's own (the same structure), or None.

    Raises:
      TypeError: the keys of a dict do not fit the function's parameters.
    """
    function, own = pair
    tensors = own if tensors is None else tensors
    if isinstance(own, dict):
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
    """Calls a `scaffold_fn` by the TPU's rules: a step's tensors are out of its reach.

    Args:
      scaffold_fn: a spec's, or None.
      placeholders: of the step's input.

    Returns:
      A `tf.train.Scaffold`, or None.

    Raises:
      ValueError: it gives none, or uses what is computed from the step's input.
    """
    if scaffold_fn is None:
        return None
    graph = placeholders[0].graph if placeholders else tf.get_default_graph()
    number_before = len(graph.get_operations())
    scaffold = scaffold_fn()
    if scaffold is None:
        raise ValueError("TPUEstimatorSpec.scaffold_fn must return a tf.train.Scaffold")
    given = [scaffold.init_op, scaffold.local_init_op, scaffold.ready_op, scaffold.summary_op]
    for value in [*graph.get_operations()[number_before:], *given]:
        if is_computed_from(value, placeholders):
            raise ValueError(
                f"TPUEstimatorSpec.scaffold_fn uses {value.name}, which is computed from a step's "
                "input: on a TPU a Scaffold has the variables alone"
            )
    return scaffold


class _FetchEveryStep(tf.train.SessionRunHook):
    def __init__(self, operations):
        self._operations = operations

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(self._operations)


def _check_host_pair(pair, name):
    if not isinstance(pair, (tuple, list)):
        raise ValueError(f"{name} must be a (function, tensors) pair, not {type(pair).__name__}")
    if len(pair) != 2:
        raise ValueError(f"{name} must be a (function, tensors) pair, not {len(pair)} elements")
    function, tensors = pair
    if not callable(function):
        raise TypeError(f"{name}[0] must be a function, not {function!r}")
    if not isinstance(tensors, (tuple, list, dict)):
        raise ValueError(
            f"{name}[1] must be a list, tuple or dict of tensors, not {type(tensors).__name__}"
        )
    if isinstance(tensors, (tuple, list)):
        parameters = inspect.signature(function).parameters.values()
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            return
        accepted = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
        required = [p for p in accepted if p.default is p.empty]
        if not len(required) <= len(tensors) <= len(accepted):
            raise RuntimeError(
                f"{name}[1] has {len(tensors)} tensors, but {_name(function)}"
                f"{inspect.signature(function)} takes {len(accepted)}"
            )


def _checked_hooks(hooks, name):
    hooks = tuple(hooks or ())
    for hook in hooks:
        if not isinstance(hook, tf.train.SessionRunHook):
            raise TypeError(f"{name} must be tf.train.SessionRunHook objects, not {hook!r}")
    return hooks


def _check_graph(values, name):
    graph = tf.get_default_graph()
    for value in tf.nest.flatten(values, expand_composites=True):
        if isinstance(value, tf.Tensor | tf.Operation) and value.graph is not graph:
            raise ValueError(
                f"EstimatorSpec: {name} has {value.name}, which is of another graph than the one "
                "that model_fn is called in"
            )


def _scalar_loss(loss):
    if loss is None:
        return None
    if not tf.is_tensor(loss):
        raise TypeError(f"EstimatorSpec: loss must be a tensor, not {loss!r}")
    if loss.shape.num_elements() not in (None, 1):
        raise ValueError(f"EstimatorSpec: loss must be a scalar, but has shape {loss.shape}")
    return loss if loss.shape.rank == 0 else tf.reshape(loss, [])


def _name(function):
    return getattr(function, "__name__", repr(function))
