"""Makes the random operations of a core's step functions of (seed, operation, step, replica).

TensorFlow's operations, which tf.nn.dropout and tf.random.uniform consist of, draw from a state in
the runtime. A core does not have such a state: XLA would draw without a seed, and a resumed
training would not go on with the numbers of an uninterrupted one. So each operation becomes a call
of a function that asks for a key, by the operation's two seeds, and draws by a counter from there.
`program/random_keys.py` computes the keys.
"""

import functools
import secrets
import threading
import weakref
from collections.abc import Iterable

import numpy as np
import tensorflow.compat.v1 as tf
import tensorflow.compat.v2 as tf2
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.core.framework import function_pb2, node_def_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import random_seed

from bert_estimator.cluster import hosts
from bert_estimator.tpu.program import random_keys
from bert_estimator.tpu.step.xla import graph_lowering

_THREEFRY = 2  # the number of the algorithm, which is the same on all platforms


@functools.cache
def _seeds_of_process():
    """Returns the two seeds of operations for which nobody gave a seed."""
    # Others in each process, as in TensorFlow, but the same on all hosts, which must run the same
    # program.
    seeds = np.array([secrets.randbits(31), secrets.randbits(31)], np.int32)
    return tuple(seeds if hosts.find().number == 1 else hosts.gather(seeds)[0])


def _drawn(operation, node, key, shape):
    """Draws floats of a shape by a function of `tf.raw_ops`, for the `NodeDef` of a random
    operation and a key, uint64 [1]."""
    return operation(shape=shape, dtype=tf.as_dtype(node.attr["dtype"].type), **_start(key))


def _start(key):
    """Returns what TensorFlow's stateless operations take to draw from a key's first number on."""
    return {"key": key, "counter": tf.zeros([2], tf.uint64), "alg": _THREEFRY}


def _integers(node, key, shape, least, limit):
    return tf.raw_ops.StatelessRandomUniformIntV2(
        shape=shape, minval=least, maxval=limit, **_start(key)
    )


def _shuffled(node, key, value):
    """Returns the rows of a value in random order."""
    number = tf.shape(value)[:1]
    draw = tf.raw_ops.StatelessRandomUniformFullIntV2
    numbers = draw(shape=number, dtype=tf.uint64, **_start(key))
    _, order = gen_xla_ops.xla_key_value_sort(numbers, tf.range(number[0]))
    return tf.gather(value, order)


def _categories(node, key, logits, num_samples):
    """Returns samples [B, num_samples] of categories by their logits [B, C]: the largest sums of
    logits and Gumbel noise."""
    rows, categories = tf.unstack(tf.shape(logits), 2)
    uniform = tf.raw_ops.StatelessRandomUniformV2(
        shape=tf.stack([rows, num_samples, categories]), dtype=tf.float32, **_start(key)
    )
    noise = tf.cast(-tf.log(-tf.log(uniform)), logits.dtype)
    sums = logits[:, tf.newaxis] + noise
    return tf.argmax(sums, 2, output_type=tf.as_dtype(node.attr["output_dtype"].type))


_raw = tf.raw_ops
# Type of a random operation -> function of (`NodeDef`, key, *inputs) that draws for it.
_DRAWN = {
    "RandomUniform": functools.partial(_drawn, _raw.StatelessRandomUniformV2),
    "RandomStandardNormal": functools.partial(_drawn, _raw.StatelessRandomNormalV2),
    "TruncatedNormal": functools.partial(_drawn, _raw.StatelessTruncatedNormalV2),
    "RandomUniformInt": _integers,
    "RandomShuffle": _shuffled,
    "Multinomial": _categories,
}
# XLA has kernels for these, and they draw without a seed.
_WITHOUT_SEED = {"ParameterizedTruncatedNormal"}


def are_in(operations: Iterable[tf.Operation], graph: tf.Graph) -> bool:
    """Returns whether there are random operations in a list, or in a graph's functions."""
    types = {operation.type for operation in operations}
    if not types.isdisjoint(_DRAWN):
        return True
    library = graph.as_graph_def().library.function if types & _CALLING else ()
    return any(node.op in _DRAWN for function in library for node in function.node_def)


_CALLING = {"Case", "If", "PartitionedCall", "StatefulPartitionedCall", "StatelessCase",
            "StatelessIf", "StatelessWhile", "While"}  # fmt: skip


def replace(graph_def: tf.GraphDef) -> None:
    """Replaces the random operations of a GraphDef and of its functions, and warns if it
    cannot replace an operation, which then draws without a seed."""
    functions, unseeded = {}, []
    library = graph_def.library.function
    _Seeds(library).give_to(graph_def.node)
    for node in [*graph_def.node, *(node for each in library for node in each.node_def)]:
        if node.op in _DRAWN:
            function = _function_of(node)
            functions[function.signature.name] = function
            _call(node, function)
        elif node.op in _WITHOUT_SEED:
            unseeded.append(f"{node.name} ({node.op})")
    library.extend(functions.values())
    if unseeded:
        tf.logging.warning(
            "On cores these operations draw without a seed, so a training with them cannot be "
            "repeated: %s. Draw with tf.random.truncated_normal or tf.random.stateless_*",
            ", ".join(unseeded),
        )


class _Seeds:
    """Gives the random operations without seeds the process's seeds, and each a number of its own;
    copies of functions are added to `library`."""

    def __init__(self, library):
        self._library = library
        self._functions = {function.signature.name: function for function in library}
        self._known: dict[str, bool] = {}  # name of a function -> whether it is copied
        self._number = 0

    def give_to(self, nodes) -> None:
        # In the order in which a step calls them, so that the numbers are the same on all hosts and
        # in a step that is built again.
        for node in nodes:
            if _lacks_seeds(node):
                first, second = _seeds_of_process()
                self._number += 1
                node.attr["seed"].i = first
                node.attr["seed2"].i = second + self._number
            for called in self._called(node):
                called.name = self._copy(called.name)
            if self._is_copied(node.op):
                node.op = self._copy(node.op)

    def _called(self, node):
        return [each for each in graph_lowering.called_by(node) if self._is_copied(each.name)]

    def _copy(self, name):
        """Copies a function, and gives seeds to its operations; returns the copy's name."""
        # A copy for each call, since in a session each call draws other numbers.
        self._number += 1
        copy = function_pb2.FunctionDef()
        copy.CopyFrom(self._functions[name])
        copy.signature.name = f"{name}_call_{self._number}"
        self.give_to(copy.node_def)
        self._library.append(copy)
        return copy.signature.name

    def _is_copied(self, name):
        if name not in self._known:
            self._known[name] = False  # a function that calls itself
            self._known[name] = name in self._functions and any(
                _lacks_seeds(node) or self._is_copied(node.op) or self._called(node)
                for node in self._functions[name].node_def
            )
        return self._known[name]


def _lacks_seeds(node):
    return node.op in _DRAWN and not (node.attr["seed"].i or node.attr["seed2"].i)


def _function_of(node):
    """Returns a `FunctionDef` that does what a random operation does."""
    return _function(node.op, _attributes(node).SerializeToString(deterministic=True))


def _attributes(node):
    """Returns what decides what a random operation does: a `NodeDef` without names."""
    kept = node_def_pb2.NodeDef(op=node.op)
    # Attributes that begin with "_" do not decide what it does.
    for name, value in node.attr.items():
        if name[0] != "_":
            kept.attr[name].CopyFrom(value)
    return kept


@functools.cache
def _function(kind, serialized) -> function_pb2.FunctionDef:
    node = node_def_pb2.NodeDef.FromString(serialized)
    config = random_keys.config_of(node.attr["seed"].i, node.attr["seed2"].i)

    def draw(*inputs):
        (key,) = gen_xla_ops.xla_custom_call_v2(
            [],
            call_target_name=random_keys.KEY,
            backend_config=config,
            has_side_effect=False,
            result_dtypes=[tf.uint64],
            result_shapes=[tf.TensorShape([1])],
        )
        return _DRAWN[kind](node, key, *inputs)

    with context.eager_mode():
        signature = [tf.TensorSpec(None, dtype) for dtype in _input_dtypes(node)]
        concrete = tf2.function(draw, autograph=False).get_concrete_function(*signature)
        return concrete.function_def


def _input_dtypes(node):
    types = {name: value.type for name, value in node.attr.items()}
    return {
        "RandomUniformInt": lambda: [types["T"], types["Tout"], types["Tout"]],
        "Multinomial": lambda: [types["T"], tf.int32],
    }.get(node.op, lambda: [types["T"]])()


def _call(node, function):
    """Turns a random operation into a call of a function."""
    dtypes = [tf.as_dtype(dtype).as_datatype_enum for dtype in _input_dtypes(node)]
    result = function.signature.output_arg[0].type
    node.op = "PartitionedCall"
    node.attr.clear()
    node.attr["f"].func.name = function.signature.name
    node.attr["Tin"].list.type.extend(dtypes)
    node.attr["Tout"].list.type.append(result)


class _SharedCounts(weakref.WeakKeyDictionary):
    """Counts the operations without a seed of their own for a step and its functions together."""

    def __init__(self, counts):
        super().__init__(counts)
        self.steps: weakref.WeakSet[tf.Graph] = weakref.WeakSet()

    def _owner(self, graph):
        # TensorFlow counts for each graph, and the branches of conditions and the bodies of loops
        # are graphs of their own: their operations would have the seeds of the step's first
        # operations.
        outer = graph
        while outer is not None and outer not in self.steps:
            outer = getattr(outer, "outer_graph", None)
        return graph if outer is None else outer

    def setdefault(self, graph, default=None):
        return super().setdefault(self._owner(graph), default)

    def __getitem__(self, graph):
        return super().__getitem__(self._owner(graph))

    def __setitem__(self, graph, count):
        super().__setitem__(self._owner(graph), count)


_installing = threading.Lock()


def count_together(step: tf.Graph) -> None:
    """Has TensorFlow count together for a step that is not built yet: no two operations without a
    seed get the same seed."""
    with _installing:
        # Graphs that are not steps, nor functions of a step, are counted as before, so that threads
        # may build steps at once.
        if not isinstance(random_seed._graph_to_seed_dict, _SharedCounts):
            random_seed._graph_to_seed_dict = _SharedCounts(random_seed._graph_to_seed_dict)
        random_seed._graph_to_seed_dict.steps.add(step)
