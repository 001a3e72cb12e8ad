"""Errors that say why a step cannot become an XLA program, and which line of code is the cause."""

import importlib.util
import os
import re

import tensorflow as tf2

_NO_KERNEL = re.compile(r"(\w+) \(No registered .*?\{\{node ([^}]+)\}\}")
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
# How many rows these operations return depends on values.
_OF_UNKNOWN_LENGTH = {"DynamicPartition", "ListDiff", "Unique", "UniqueV2", "UniqueWithCounts",
                      "UniqueWithCountsV2", "Where"}  # fmt: skip
# Of TensorFlow's functions, only a lookup in several tables makes it: it joins the rows that each
# table gives, and how many these are depends on values.
_LOOKUP_IN_PARTS = "ParallelDynamicStitch"
# tf_slim is only found, not imported: that takes a second if scikit-learn is installed.
_LIBRARIES = tuple(
    os.path.dirname(importlib.util.find_spec(name).origin) + os.sep
    for name in ("tensorflow", "tf_slim", "bert_estimator.tpu")
)


def explained(error: Exception, graph: tf2.Graph) -> RuntimeError:
    """Returns a RuntimeError that explains an error of TensorFlow's bridge to XLA.

    Args:
      error: the bridge's error.
      graph: the graph that it was lowering.
    """
    text = str(error)
    without_kernel = dict.fromkeys(_NO_KERNEL.findall(text))
    imported = [name for kind, name in without_kernel if kind == "VarHandleOp"]
    if imported:
        return RuntimeError(
            f"model_fn imports a graph with variables of its own: {', '.join(imported)}. A core "
            "has the variables that tf.get_variable and layers make; tf.train.import_meta_graph "
            "and hub.Module make others. Build the network in the model_fn, and "
            "take its weights by tf.train.init_from_checkpoint; or train with use_tpu=False"
        )
    if without_kernel:
        found = ", ".join(_described(graph, name, kind) for kind, name in without_kernel)
        return RuntimeError(
            f"model_fn uses operations that XLA has no kernel for: {found}. On a TPU, Python code, "
            "strings and files belong into input_fn, host_call or eval_metrics; or into "
            "tpu.outside_compilation, if the step does not use their results. Use other "
            "operations to compute on the TPU"
        )
    nodes = dict.fromkeys(_NODE.findall(text))
    places = ", ".join(_described(graph, name) for name in nodes)
    if any(_kind(graph, name) == _LOOKUP_IN_PARTS for name in nodes):
        return RuntimeError(
            f"model_fn looks rows up in a variable of several parts: {places}. How many rows a "
            "part gives depends on values, and on a TPU all shapes must be static: make the table "
            "without a partitioner. It can be restored from the checkpoints of the parts"
        )
    return RuntimeError(f"The step of model_fn cannot be lowered to XLA ({places}): {text}")


def check_static(text: str, graph: tf2.Graph, names: list[str]) -> None:
    """Checks that the shapes in a lowered step do not depend on values.

    Args:
      text: the step as StableHLO.
      graph: the graph that it was lowered from.
      names: names of the graph's operations that are in the step.

    Raises:
      RuntimeError: a shape does; the text names the operations that are the cause.
    """
    if "#stablehlo.bounds" not in text and "tensor<?" not in text:
        return
    found = ", ".join(
        _described(graph, name, graph.get_operation_by_name(name).type)
        for name in names
        if graph.get_operation_by_name(name).type in _OF_UNKNOWN_LENGTH
    )
    raise RuntimeError(
        f"model_fn has tensors whose length depends on values: {found or 'unknown'}. "
        "On a TPU all shapes must be static: multiply by a mask of zeros and ones in place of "
        "picking rows (tf.boolean_mask, tf.where of one argument, tf.unique)"
    )


def line_of(operation: tf2.Operation) -> str:
    """Returns "FILE:LINE" of the user's code that made an operation."""
    for frame in reversed(operation.traceback or ()):
        if not frame.filename.startswith(_LIBRARIES):
            return f"{frame.filename}:{frame.lineno}"
    return "an unknown line"


def _kind(graph, name):
    """Returns the type of an operation; None if it is inside the function of another."""
    try:
        return graph.get_operation_by_name(name).type
    except KeyError:
        return None


def _described(graph, name, kind=None):
    """Returns "NAME (KIND) in FILE:LINE"; without the line if it is not known."""
    described = f"{name} ({kind})" if kind else name
    try:
        return f"{described} in {line_of(graph.get_operation_by_name(name))}"
    except KeyError:  # The operation is inside the function of a condition or a loop.
        return described
