"""Initial values of variables: the session computes them, once, before the first step.

A variable that a model_fn makes in a step's own graph belongs to the session's graph around it. So
does its initial value. If the model_fn gives the initial value as a tensor, as TF1 programs do, the
operations that the tensor depends on are copied to the session's graph.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import random_seed
from tensorflow.python.trackable import base as trackable

from bert_estimator.graph import graph_walk


@contextlib.contextmanager
def copied_to_session(
    step: tf.Graph,
    outer: tf.Graph,
    inputs: list[tf.Tensor],
    random: Mapping[tf.Operation, tuple[str, dict[str, Any]]],
) -> Iterator[None]:
    """Surrounds code that builds a model in a step's graph: initial values go to `outer`, the
    session's, and must not depend on `inputs`, the step's placeholders.

    Args:
      random: operation of the step -> the type and arguments of the random operation that it stands
        for, which the session runs. It may still grow, as `inputs`.
    """

    # What stands in the session's graph for operations of the step's. Variables that are made of
    # one random tensor start with equal values.
    outer_of: dict[tf.Operation, Sequence[tf.Tensor]] = {}

    def copied(value, name):
        return _copied(value, name, step, inputs, random, outer_of)

    def creator(next_creator, **given):
        value, name = given.get("initial_value"), given.get("name") or "Variable"
        # It reads a checkpoint, and does not use tensors.
        if isinstance(value, trackable.CheckpointInitialValueCallable):
            pass
        elif callable(value):
            given["initial_value"] = lambda: copied(_called(value, step), name)
        else:
            leaves = tf.nest.flatten(value) if isinstance(value, list | tuple) else ()
            if any(isinstance(each, tf.Tensor) and each.graph is step for each in leaves):
                value = tf.convert_to_tensor(value, given.get("dtype"))
            given["initial_value"] = copied(value, name)
        # Operations without a seed of their own get the next number of their graph. The count
        # goes on from one graph to the other, so that random values equal the session runtime's.
        seeds = random_seed._graph_to_seed_dict
        seeds[outer] = seeds.get(step, 0)
        try:
            return next_creator(**given)
        finally:
            seeds[step] = seeds[outer]

    random_seed._graph_to_seed_dict[step] = random_seed._graph_to_seed_dict.get(outer, 0)
    with tf.variable_creator_scope(creator):
        yield
    random_seed._graph_to_seed_dict[outer] = random_seed._graph_to_seed_dict[step]
    _check_initializers(step, outer)


def initializer_of(variable: tf.Variable) -> tf.Operation:
    """Returns the operation that gives a variable its initial value."""
    # A warm start with a vocabulary puts what `assign` returns in its place.
    return getattr(variable.initializer, "op", variable.initializer)


def check(variables: Iterable[tf.Variable], inputs: list[tf.Tensor]) -> None:
    """Raises ValueError if the initial value of a variable depends on placeholders of a step."""
    for variable in variables:
        if graph_walk.is_computed_from(variable.initializer, inputs):
            raise _error_of_inputs(variable.op.name)


def _check_initializers(step, outer):
    """Raises ValueError if a variable got an initializer in a step's graph."""
    for graph in (step, outer):
        for variable in graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES):
            initializer = getattr(variable, "initializer", None)
            if initializer is not None and initializer.graph is step:
                raise ValueError(
                    f"model_fn gave the variable {variable.op.name} another initial value within "
                    "the step, as tf.train.init_from_checkpoint does, which a core cannot run: "
                    "call tf.train.init_from_checkpoint in TPUEstimatorSpec.scaffold_fn"
                )


def _called(function, step):
    """Returns the value of a function, which may use tensors of the step's graph."""
    try:
        return function()
    except ValueError:  # It mixes them with tensors of the session's graph, the default graph.
        with step.as_default():
            return function()


def _copied(value, variable, step, inputs, random, outer_of):
    """Returns a tensor of the session's graph for a tensor of the step's; other values stay.
    `outer_of`, operation of the step -> its outputs in the session's graph, gets the copies."""
    if not isinstance(value, tf.Tensor) or value.graph is not step:
        return value
    outer_of.update((inner.op, [outer]) for outer, inner in step.captures)
    before = set(graph_walk.all_before([value.op], {*outer_of, *random}))
    for operation in before.intersection(random) - outer_of.keys():
        kind, arguments = random[operation]
        of_session = {
            name: _copied(given, variable, step, inputs, random, outer_of)
            for name, given in arguments.items()
        }
        with tf.init_scope():
            outer_of[operation] = [getattr(tf.raw_ops, kind)(**of_session)]
    if not before.isdisjoint(tensor.op for tensor in inputs):
        raise _error_of_inputs(variable)
    with tf.init_scope():
        return graph_walk.copied(value, outer_of, "initial_value")


def _error_of_inputs(variable):
    return ValueError(
        f"model_fn: the initial value of the variable {variable} depends on a batch (features, "
        "labels), on the number of a replica, or on random numbers that a condition, a loop or a "
        "function draws. Initial values are computed once, before the first batch is drawn, and "
        "are the same on all cores: compute it from constants or random numbers, or give a function"
    )
