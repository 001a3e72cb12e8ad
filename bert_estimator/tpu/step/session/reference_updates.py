"""Has the updates of reference variables wait for what reads them, with `use_tpu=False`.

TensorFlow 1's variables are references: an update such as `assign_sub` writes to the memory that
reads of the variable share. The optimizers of `tf.train` wait for the gradients that need the old
value. Programs that call `tf.gradients` and then `assign_sub` by themselves, such as
mesh-tensorflow's optimizers, let the two race. TensorFlow 1.15.5 nearly always runs the reads
first; today's executor often does not. (A network of two layers by mesh-tensorflow, trained for 8
steps on two busy cores: 7 of 7 trainings of TensorFlow 1.15.5 were equal; of today's, no two of 4.)

So here a read that does not come after an update is before it, as `variable_uses` has it for the
variables of other runtimes. The global step has rules of its own: see `local_step`.
"""

import collections
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator.graph import graph_walk
from bert_estimator.tpu.step import variable_versions

SHARE_MEMORY = ("Identity", "Reshape", "ExpandDims", "Squeeze")
# The outputs of these may share memory with an input, too, which depends on shapes and dtypes.
_MAY_SHARE_MEMORY = (*SHARE_MEMORY, "Bitcast", "Cast", "CheckNumerics", "EnsureShape", "IdentityN",
                     "PreventGradient", "Slice", "Snapshot", "Split", "SplitV", "StopGradient",
                     "StridedSlice", "Transpose", "Unpack")  # fmt: skip
_REFERENCES = ("VariableV2", "Variable")


def order(fetches: Any) -> None:
    """Adds the control dependencies to the default graph.

    Only updates that depend on trained weights are ordered, and nothing waits for operations in a
    condition or a loop.

    Args:
      fetches: structure of the tensors and operations that every step runs; what else is in it does
        not matter.
    """
    run = set(graph_walk.all_before(graph_walk.operations_of(fetches)))
    global_step = tf.train.get_global_step()
    steps = {global_step.op} if global_step is not None else set()
    present = [
        operation for operation in tf.get_default_graph().get_operations() if operation in run
    ]
    framed = variable_versions.in_frames(present)
    uses = [
        _uses(operation, run, framed)
        for operation in present
        if operation.type in _REFERENCES and operation not in steps
    ]
    trained = {variable.op for variable in tf.trainable_variables()}
    sources = {operation: _sources(operation) for operation in present}
    bit_of = _bits(operation for use in uses for part in use for operation in part)
    seen = _seen(sources, bit_of, trained)
    waiting = {}  # update -> operations that it is to wait for
    for readers, updates in uses:
        for update in updates:
            if seen[update] & _TRAINED:
                waiting[update] = [
                    reader
                    for reader in readers
                    if not (seen[update] & bit_of[reader] or seen[reader] & bit_of[update])
                ]
    while True:  # Reads of two variables may each come after the update of the other one.
        contradicting = _in_circles(sources, waiting)
        narrowed = {
            update: [r for r in readers if update not in contradicting or r not in contradicting]
            for update, readers in waiting.items()
        }
        if narrowed == waiting:
            break
        waiting = narrowed
    for update, readers in waiting.items():
        update._add_control_inputs(readers)


def _uses(variable, run, framed):
    """Returns two lists of operations: the readers of a variable, and its updates."""
    readers, updates, waiting, known = [], [], list(variable.outputs), set()
    while waiting:
        tensor = waiting.pop()
        for operation in tensor.consumers():
            if operation in known or operation not in run:
                continue
            known.add(operation)
            if operation.type in _MAY_SHARE_MEMORY:
                waiting += operation.outputs
            if operation.name not in framed:
                is_update = tensor.op is variable and _takes_reference(operation, tensor)
                (updates if is_update else readers).append(operation)
    return readers, updates


def _takes_reference(operation, tensor):
    """Returns whether an operation may write to a tensor that is a reference."""
    definition = operation.op_def.input_arg
    places = [number for number, each in enumerate(operation.inputs) if each is tensor]
    if len(definition) != len(operation.inputs):  # It has lists of inputs.
        return any(argument.is_ref for argument in definition)
    return any(definition[place].is_ref for place in places)


def _sources(operation):
    """Returns the operations that an operation waits for, apart from the last turn of a loop."""
    sources = [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    return [
        source for source in sources if source.type not in ("NextIteration", "RefNextIteration")
    ]


_TRAINED = 1  # the bit that says that an operation depends on a trained weight


def _bits(operations):
    """Returns operation -> an integer with one bit, another for each."""
    numbers = enumerate(dict.fromkeys(operations), start=1)
    return {operation: 1 << number for number, operation in numbers}


def _seen(sources, bit_of, trained):
    """Returns operation -> the bits of the operations that it comes after, as one integer.

    Args:
      sources: operation -> the operations that it waits for.
      bit_of: operation -> its bit, for the operations that matter.
      trained: the operations of trained weights, which share the bit `_TRAINED`.
    """
    seen = {}
    for operation in _sorted(sources):
        bits = _TRAINED if operation in trained else 0
        for source in sources[operation]:
            bits |= seen[source] | bit_of.get(source, 0)
        seen[operation] = bits
    return seen


def _in_circles(sources, waiting):
    """Returns the operations that could not run if updates waited, too."""
    together = {o: [*before, *waiting.get(o, ())] for o, before in sources.items()}
    return together.keys() - set(_sorted(together))


def _sorted(sources):
    """Yields the operations, each of them after its sources; without operations in a circle."""
    number_left = {operation: len(set(before)) for operation, before in sources.items()}
    users = collections.defaultdict(list)
    for operation, before in sources.items():
        for source in set(before):
            users[source].append(operation)
    ready = [operation for operation, number in number_left.items() if not number]
    while ready:
        operation = ready.pop()
        yield operation
        for user in users[operation]:
            number_left[user] -= 1
            if not number_left[user]:
                ready.append(user)
