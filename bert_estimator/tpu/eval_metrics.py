"""Metrics of an evaluation: pairs of a value and an update, or objects in the style of Keras.

A metric object has methods `update_state` and `result`, a list `updates` of the operations that
`update_state` made, and a list `variables`, as a `tf.keras.metrics.Metric` has. The model_fn, or
the metric function, calls `update_state`; evaluation runs the updates in every step, and reads the
result at the end.
"""

import functools

import tensorflow.compat.v1 as tf

_COLLECTIONS = (tf.GraphKeys.LOCAL_VARIABLES, tf.GraphKeys.METRIC_VARIABLES)


def metric_pairs(metrics: dict | None, what: str) -> dict[str, tuple]:
    """Returns metrics as a dict of (value, update operation) pairs.

    The variables of metric objects are added to the graph's collections of local variables and of
    metric variables: they begin anew in each evaluation, and no checkpoint has them.

    Args:
      metrics: dict of name -> pair or metric object, or None.
      what: what they are, for the message.

    Raises:
      TypeError: they are something else.
      ValueError: `update_state` of a metric object was not called.
    """
    if not isinstance(metrics, dict | None):
        raise TypeError(f"{what} must be a dict, of a metric by each name, not {metrics!r}")
    pairs = {}
    for name, metric in (metrics or {}).items():
        if hasattr(metric, "update_state") and hasattr(metric, "result"):
            pairs[name] = _pair_of(metric, f"{what}[{name!r}]")
        elif isinstance(metric, tuple) and len(metric) == 2:
            _check_leaves(metric, f"{what}[{name!r}]")
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


def _check_leaves(pair, where):
    for leaf in tf.nest.flatten(pair):
        if not (tf.is_tensor(leaf) or isinstance(leaf, tf.Operation)):
            raise TypeError(f"{where} has {leaf!r}, which is neither a tensor nor an operation")


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
    for key in _COLLECTIONS:
        known = {id(variable) for variable in tf.get_collection(key)}
        for variable in metric.variables:
            if id(variable) not in known:
                tf.add_to_collection(key, variable)
    return metric.result(), tf.group(*updates)
