"""Makes the random operations of a core's step functions of (seed, operation, step, replica).

TensorFlow's operations, which tf.nn.dropout and tf.random.uniform consist of, draw from a state in
the runtime. A core does not have such a state: XLA would draw without a seed, and a resumed
training would not go on with the numbers of an uninterrupted one. So while the model is built, each
becomes an operation without a state, which draws by a counter, from a key.

The step computes a key from the numbers of the step and of the replica. The graphs within the step
get theirs from there: a branch of a condition has the key of the graph around it, the body of a
loop has another key in each turn, and each call of a function gives it a key.
"""

import functools
import secrets
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.framework import func_graph, random_seed
from tensorflow.python.ops.control_flow_v2_func_graphs import WhileBodyFuncGraph, WhileCondFuncGraph

from bert_estimator.cluster import hosts
from bert_estimator.tpu.replicas import replica

_THREEFRY = 2  # the number of the algorithm, which is the same on all platforms

# The constants of SplitMix64 (Steele, Lea and Flood, 2014).
_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


@functools.cache
def _seeds_of_process():
    """Returns the two seeds of operations for which nobody gave a seed."""
    # Others in each process, as in TensorFlow, but the same on all hosts, which must run the same
    # program.
    seeds = np.array([secrets.randbits(31), secrets.randbits(31)], np.int32)
    return tuple(map(int, seeds if hosts.find().number == 1 else hosts.gather(seeds)[0]))


def _start(key):
    """Returns what TensorFlow's stateless operations take to draw from a key's first number on."""
    return {"key": key[tf.newaxis], "counter": tf.zeros([2], tf.uint64), "alg": _THREEFRY}


def _by(stateless):
    return lambda key, **arguments: stateless(**arguments, **_start(key))


def _shuffled(key, value):
    """Returns the rows of a value in random order."""
    value = tf.convert_to_tensor(value)
    number = tf.shape(value)[:1]
    draw = tf.raw_ops.StatelessRandomUniformFullIntV2
    numbers = draw(shape=number, dtype=tf.uint64, **_start(key))
    _, order = gen_xla_ops.xla_key_value_sort(numbers, tf.range(number[0]))
    rows = tf.gather(value, order)
    rows.set_shape(value.shape)
    return rows


def _categories(key, logits, num_samples, output_dtype=tf.int64):
    """Returns samples [B, num_samples] of categories by their logits [B, C]: the largest sums of
    logits and Gumbel noise."""
    logits = tf.convert_to_tensor(logits)
    rows, categories = tf.unstack(tf.shape(logits), 2)
    uniform = tf.raw_ops.StatelessRandomUniformV2(
        shape=tf.stack([rows, num_samples, categories]), dtype=tf.float32, **_start(key)
    )
    noise = tf.cast(-tf.log(-tf.log(uniform)), logits.dtype)
    samples = tf.argmax(logits[:, tf.newaxis] + noise, 2, output_type=tf.as_dtype(output_dtype))
    samples.set_shape([logits.shape[0], tf.get_static_value(num_samples)])
    return samples


# Type of a random operation -> function of a key and the operation's arguments that draws for it.
_DRAWN = {
    "RandomUniform": _by(tf.raw_ops.StatelessRandomUniformV2),
    "RandomStandardNormal": _by(tf.raw_ops.StatelessRandomNormalV2),
    "TruncatedNormal": _by(tf.raw_ops.StatelessTruncatedNormalV2),
    "RandomUniformInt": _by(tf.raw_ops.StatelessRandomUniformIntV2),
    "RandomShuffle": _shuffled,
    "Multinomial": _categories,
}


def warn_of_unseeded(graph_def: tf.GraphDef) -> None:
    """Warns of random operations that a step has nevertheless: XLA draws without a seed."""
    functions = graph_def.library.function
    # There is no stateless operation for the last type. Others come with a graph that the model_fn
    # imports, or with a function that was traced before.
    unseeded = [
        f"{node.name} ({node.op})"
        for node in [*graph_def.node, *(node for each in functions for node in each.node_def)]
        if node.op in {*_DRAWN, "ParameterizedTruncatedNormal"}
    ]
    if unseeded:
        tf.logging.warning(
            "On cores these operations draw without a seed, so a training with them cannot be "
            "repeated: %s. Draw with tf.random.truncated_normal or tf.random.stateless_*, in the "
            "model_fn itself",
            ", ".join(unseeded),
        )


class RandomOperations:
    """Draws for the random operations of a step, and of the graphs within it."""

    def __init__(self, step: tf.Graph, outer: tf.Graph, replica_id: tf.Tensor):
        # Type of a random operation -> function of its arguments that builds what it becomes.
        self.meanings = {kind: functools.partial(self._draw, kind) for kind in _DRAWN}
        # Operation of the step itself -> the type and arguments of what it stands for.
        self.replaced: dict[tf.Operation, tuple[str, dict[str, Any]]] = {}
        # How many steps had this global step before, in this session; None if nothing was drawn.
        self.turn = None
        self._step, self._outer, self._replica_id = step, outer, replica_id
        self._now = None  # the value of `turn` at the step's start
        self._keys = {}  # (graph, whether each call of a function has a key of its own) -> key
        self._number = 0

    def _draw(self, kind, seed=0, seed2=0, **arguments):
        """Returns what an operation draws, or None if it remains as it is."""
        graph = tf.get_default_graph()
        # An initial value is drawn by the session, and so is what runs on the host.
        if replica.builds_for_host() or not self._has(graph):
            return None
        given = {"seed": seed, "seed2": seed2, **arguments}
        seed, seed2 = self._seeds(graph, seed, seed2)
        # In a session, each call of a function draws other numbers, unless they have a seed.
        is_unseeded = not (seed or seed2)
        if is_unseeded:
            first, second = _seeds_of_process()
            seed, seed2 = first, second + self._next_number()
        key = _mixed(_mixed(self._key(graph, is_unseeded), seed), seed2)
        drawn = tf.identity(_DRAWN[kind](key, **arguments))
        if graph is self._step:
            self.replaced[drawn.op] = kind, given
        return drawn

    def _has(self, graph):
        """Returns whether a graph is the step's, or within it."""
        while graph is not None and graph is not self._step:
            graph = getattr(graph, "outer_graph", None)
        return graph is not None

    def _seeds(self, graph, seed, seed2):
        """Returns the seeds of an operation that TensorFlow gave these seeds."""
        # TensorFlow counts the operations without a seed of their own for each graph: those within
        # the step would have the seeds of the step's first operations.
        counts = random_seed._graph_to_seed_dict
        taken = 0 if graph is self._step else counts.pop(graph, 0)
        if taken and seed2 in (taken - 1, tf.int32.max):  # it has no seed of its own
            counts[self._step] = counts.get(self._step, 0) + taken
            # Of two zeros, TensorFlow's rule makes this, since zeros mean that there is no seed.
            seed2 = counts[self._step] - 1 or (0 if seed else tf.int32.max)
        return seed, seed2

    def _key(self, graph, is_of_call):
        """Returns the key of a graph, uint64 [], which is built once."""
        if (graph, is_of_call) not in self._keys:
            with graph.as_default(), tf.control_dependencies(None):
                self._keys[graph, is_of_call] = self._new_key(graph, is_of_call)
        return self._keys[graph, is_of_call]

    def _new_key(self, graph, is_of_call):
        if graph is self._step:
            return self._key_of_step() if is_of_call else self._key(graph, True)
        if isinstance(graph, func_graph.FuncGraph) and not graph.is_control_flow_graph:
            # A function that is called from several graphs cannot use a tensor of one of them.
            return graph._experimental_capture_side_input_by_ref(
                f"random_key_{is_of_call}", lambda: self._key_of_call(graph, is_of_call)
            )
        key = self._key(graph.outer_graph, is_of_call)
        if isinstance(graph, WhileBodyFuncGraph | WhileCondFuncGraph):
            # The first input of both counts the turns.
            key = _mixed(key, 1) + tf.cast(graph.inputs[0], tf.uint64) * _constant(_GAMMA)
        return key

    def _key_of_step(self):
        with self._outer.as_default(), tf.control_dependencies(None):
            self.turn = tf.Variable(
                np.int64(0),
                trainable=False,
                collections=[],  # Neither checkpoints nor an own local_init_op know it.
                use_resource=True,
                name="steps_at_this_global_step",
            )
        step = tf.train.get_global_step(self._outer)
        self._now = self.turn.read_value()
        numbers = [tf.reshape(self._replica_id, [])]
        numbers += [self._now] if step is None else [step.read_value(), self._now]
        key = _constant(_GAMMA)
        for number in numbers:
            key = _mixed(key, tf.cast(number, tf.uint64))
        return key

    def _key_of_call(self, function, is_of_call):
        """Returns the key for a call of a function, in the graph that calls it."""
        graph = tf.get_default_graph()
        if graph is function:
            return _constant(0)  # While the function is traced, only the dtype counts.
        key = self._key(graph, is_of_call)
        return _mixed(key, self._next_number()) if is_of_call else key

    def _next_number(self):
        # In the order of construction, which is the same on all hosts, and in a step that is built
        # again.
        self._number += 1
        return self._number

    def are_in(self, operations: set[tf.Operation]) -> bool:
        """Returns whether operations of the step depend on random ones."""
        return self.turn is not None and self._key(self._step, True).op in operations

    def next_turn(self, after: list[tf.Operation]) -> tf.Operation:
        """Returns the operation that counts the step in `turn`, after what each step does."""
        step = tf.train.get_global_step(self._outer)
        with self._step.as_default():
            following = self._now + 1
            if step is not None:
                before = step.read_value()
                with tf.control_dependencies(after):
                    # Back to 0 when the step raises the global step.
                    following *= tf.cast(tf.equal(before, step.read_value()), tf.int64)
            return self.turn.assign(following, read_value=False)


def _mixed(key, value):
    """Returns a key that depends on a key and a value, uint64 or a Python integer, by SplitMix64's
    finalizer."""
    value = value if isinstance(value, tf.Tensor) else _constant(value)
    mixed = tf.bitwise.bitwise_xor(key, value) + _constant(_GAMMA)
    for shift, multiplier in zip((30, 27), _MULTIPLIERS, strict=True):
        mixed = _with_shifted(mixed, shift) * _constant(multiplier)
    return _with_shifted(mixed, 31)


def _with_shifted(value, places):
    return tf.bitwise.bitwise_xor(value, tf.bitwise.right_shift(value, _constant(places)))


def _constant(number):
    return tf.constant(number % 2**64, tf.uint64)
