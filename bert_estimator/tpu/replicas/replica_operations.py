"""Gives TensorFlow's own operations between replicas their meaning while a model is built.

TF1 models also talk across replicas by TensorFlow's operations: `xla.replica_id`,
`tf.raw_ops.CrossReplicaSum`, `tpu_ops.all_to_all` and `collective_permute`. TensorFlow runs them on
its own TPU devices alone. Each becomes what the function of `replica` builds; the gradients that
TensorFlow has for them do, too. The others, and `tf.distribute`'s, are errors that name ours.
"""

import contextlib
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn

import tensorflow.compat.v1 as tf
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.eager import record
from tensorflow.python.framework import op_def_library

from bert_estimator.tpu.replicas import replica

_OURS = (
    "use bert_estimator.tpu.cross_replica_sum, num_replicas and replica_id, which know the "
    "replicas of a TPUEstimator"
)
# What the types of the other operations between replicas begin with.
_REFUSED = ("Collective", "Nccl", "TPUPartitioned", "TPUReplicated")
_KERAS_OPTIMIZER = re.compile(r"(tf_keras|tensorflow\.python\.keras)\..*optimizer")
_build = op_def_library._apply_op_helper
_thread = threading.local()


@contextlib.contextmanager
def replaced(others: Mapping[str, Callable[..., tf.Tensor | None]] | None = None) -> Iterator[None]:
    """Surrounds code that builds a replica's model, inside of `Replica.entered`; types of operation
    have the meanings of `_MEANINGS` and `others`, which return None to leave an operation as it is,
    and an operation between replicas without a meaning is a ValueError."""
    outer = getattr(_thread, "meanings", None)
    _thread.meanings = {**(outer or _MEANINGS), **(others or {})}
    modes = tf.get_default_graph()._distribution_strategy_stack
    number = len(modes)
    if replica.num_replicas() > 1:
        # So that Keras and others who ask `tf.distribute` for the replica are told of this one.
        modes.append(_ReplicaContext()._thread_context)
    try:
        yield
    finally:
        _thread.meanings = outer
        # The model_fn may have failed within strategies that it entered.
        del modes[number:]


def _build_or_replace(op_type_name, name=None, **keywords):
    """Does what TensorFlow's function does, which all functions for operations call in a graph."""
    meanings = getattr(_thread, "meanings", None)
    if meanings is not None:
        if op_type_name in meanings:
            # The operation itself is not created: a session wants kernels for all operations in
            # its graph, whether it runs them or not.
            replacement = _replacement(meanings[op_type_name], op_type_name, name, keywords)
            if replacement is not None:
                return replacement
        elif op_type_name.startswith(_REFUSED):
            raise ValueError(
                f"{name or 'an operation'} ({op_type_name}), an operation of TensorFlow's own TPU "
                f"runtime, does not know the cores that run this model: {_OURS}"
            )
    return _build(op_type_name, name, **keywords)


def check(graph_def: tf.GraphDef) -> None:
    """Raises RuntimeError if a step has operations between replicas, which it imports with a graph,
    or has in a function that was traced before the model was built."""
    functions = graph_def.library.function
    for node in [*graph_def.node, *(node for each in functions for node in each.node_def)]:
        if node.op in _MEANINGS or node.op.startswith(_REFUSED):
            raise RuntimeError(
                f"model_fn imports {node.name} ({node.op}) with a graph or a function, which does "
                f"not know the cores that run this model: {_OURS}"
            )


# All threads share TensorFlow's function. Ours replaces only in threads that build a model.
op_def_library._apply_op_helper = _build_or_replace


def _replacement(meaning, op_type, name, arguments):
    """Returns what TensorFlow's function returns, for what an operation means, if anything."""
    operation = _Operation(arguments)
    with record.stop_recording():  # A GradientTape gets the operation itself, from the caller.
        result = meaning(**operation.arguments)
        if result is None:
            return None
        with result.graph.as_default():
            result = tf.identity(result, name or op_type)
    return op_type, False, operation, [result]


class _Operation:
    """What a caller may ask of an operation that was not created, to record its gradient."""

    def __init__(self, arguments):
        # The operation's inputs, as tensors, and its attributes.
        self.arguments = {
            name: tf.convert_to_tensor(value, _DTYPES.get(name)) if name in _INPUTS else value
            for name, value in arguments.items()
        }
        self.inputs = [self.arguments[name] for name in _INPUTS if name in arguments]

    def _get_attr_int(self, name):
        return self.arguments[name]

    def _get_attr_type(self, name):
        return self.inputs[0].dtype if name == "T" and self.inputs else self.arguments.get(name)


_DTYPES = {"group_assignment": tf.int32, "source_target_pairs": tf.int32}
_INPUTS = ("input", *_DTYPES)

# Type of an operation -> function of its arguments that builds what it means.
_MEANINGS = {
    "XlaReplicaId": lambda: tf.convert_to_tensor(replica.replica_id(), tf.int32),
    "CrossReplicaSum": lambda input, **groups: replica.cross_replica_sum(input, **groups),
    "CollectivePermute": lambda input, **pairs: replica.collective_permute(input, **pairs),
    "AllToAll": lambda input, **others: replica.all_to_all(input, **others),
    "TPUReplicatedInput": lambda inputs, **_: replica.of_this_replica(inputs),
}


class _ReplicaContext(distribute_lib.ReplicaContext):
    """What `tf.distribute.get_replica_context()` returns in a model that several replicas run; its
    strategy is TensorFlow's default one, of one replica, as upstream."""

    def __init__(self):
        super().__init__(distribute_lib.get_strategy(), 0)

    @property
    def replica_id_in_sync_group(self):
        return replica.replica_id()

    def all_reduce(self, reduce_op, value, options=None):
        # Keras's optimizers hand in their gradients. As upstream, it depends on the model_fn
        # whether these are sums over the replicas.
        if _KERAS_OPTIMIZER.match(sys._getframe(1).f_globals["__name__"]):
            return value
        _refuse("all_reduce")

    def all_gather(self, value, axis, options=None) -> NoReturn:
        _refuse("all_gather")


def _refuse(method):
    raise ValueError(
        f"tf.distribute.get_replica_context().{method} is for a tf.distribute.Strategy, and would "
        f"do nothing across the {replica.num_replicas()} replicas of this model: {_OURS}"
    )
