"""Has the updates of reference variables wait for what reads them, with `use_tpu=False`.

TensorFlow 1's variables are references: an update such as `assign_sub` writes to the memory that
reads of the variable share. The optimizers of `tf.train` wait for the gradients that need the old
value. Programs that call `tf.gradients` and then `assign_sub` by themselves, such as
mesh-tensorflow's optimizers, let the two race. TensorFlow 1.15.5 nearly always runs the reads
first; today's executor often does not. (A network of two layers by mesh-tensorflow, trained for 8
steps on two busy cores: 7 of 7 trainings of TensorFlow 1.15.5 were equal; of today's, no two of 4.)

So here an update of a trained weight that depends on the batch waits for the reads that do not come
after it. The updates of one weight run one after the other, in the order in which they usually
become ready: first what does not depend on the batch (a decay, a clipping), then the rest, the
update with fewer operations before it first. What is not trained (the moving averages of a batch
normalization, counters) is left alone; the global step has rules of its own, see `local_step`.
"""

import collections
import itertools
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator.graph import graph_walk
from bert_estimator.graph.variable_uses import READERS, in_circles, sorted_by
from bert_estimator.tpu.step import variable_versions

SHARE_MEMORY = ("Identity", "Reshape", "ExpandDims", "Squeeze")
# The outputs of these may share memory with an input, too, which depends on shapes and dtypes.
_MAY_SHARE_MEMORY = (*SHARE_MEMORY, "Bitcast", "Cast", "CheckNumerics", "EnsureShape", "IdentityN",
                     "PreventGradient", "Slice", "Snapshot", "Split", "SplitV", "StopGradient",
                     "StridedSlice", "Transpose", "Unpack")  # fmt: skip
_REFERENCES = ("VariableV2", "Variable")


def order(fetches: Any) -> None:
    """Adds the control dependencies to the default graph, for a step that runs `fetches`; nothing
    waits for operations in a condition or a loop of the old kind."""
    run = set(graph_walk.all_before(graph_walk.operations_of(fetches)))
    operations = tf.get_default_graph().get_operations()
    present = [operation for operation in operations if operation in run]
    framed = variable_versions.in_frames(present)
    weights = {v.op for v in tf.trainable_variables() if v.op.type in _REFERENCES}
    sources = {operation: _sources(operation) for operation in present}
    uses = [_uses(operation, run, framed) for operation in present if operation in weights]
    # Integers as sets of operations: a graph has thousands of them, and each is asked for all that
    # come before it.
    bit_of = _bits(operation for use in uses for part in use for operation in part)
    seen, depth = _seen(sources, bit_of)
    waiting = collections.defaultdict(list)  # update -> operations that it is to wait for

    def add(update, first):
        # One already comes after the other.
        if not (seen[update] & bit_of[first] or seen[first] & bit_of[update]):
            waiting[update].append(first)

    for readers, updates in uses:
        of_batch = [update for update in updates if seen[update] & _BATCH]
        for update in of_batch:
            for reader in readers:
                add(update, reader)
        others = [update for update in updates if update not in of_batch]
        # The order in which they usually become ready.
        in_turn = [*sorted(others, key=depth.get), *sorted(of_batch, key=depth.get)]
        for first, second in itertools.pairwise(in_turn):
            add(second, first)
    _wait(sources, waiting)


def put_updates_first(fetches: Any, apart: Any) -> None:
    """Orders a run that does not train, which may have variables of both kinds; the arguments are
    as for `variable_versions.order`."""
    variable_versions.order(fetches, updates_first=True, apart=apart)
    # The order is rule 5 of `variable_uses`, which TensorFlow 1.15.5 usually has, too.
    run = set(graph_walk.all_before(graph_walk.operations_of(fetches)))
    may_wait = variable_versions.may_wait_in(apart)
    present = [each for each in tf.get_default_graph().get_operations() if each in run]
    framed = variable_versions.in_frames(present)
    sources = {operation: _sources(operation) for operation in present}
    waiting = collections.defaultdict(list)  # operation -> operations that it is to wait for
    pairs = []  # of an update and a reader that is to come after it
    for variable in (each for each in present if each.type in _REFERENCES):
        readers, updates = _uses(variable, run, framed)
        updates.sort(key=present.index)
        for first, second in itertools.pairwise(updates):
            if may_wait(second, first):
                waiting[second].append(first)
        for update in updates:
            before = set(graph_walk.all_before([update]))
            pairs += [(update, r) for r in readers if r not in before and may_wait(r, update)]
    together = {operation: [*before, *waiting[operation]] for operation, before in sources.items()}
    for update, reader in pairs:
        together[reader].append(update)
    # If all readers waited, some would wait for each other: in a circle, the update waits instead.
    circles = in_circles(together)
    for update, reader in pairs:
        first, second = (reader, update) if reader in circles else (update, reader)
        waiting[second].append(first)
    _wait(sources, waiting)


def _wait(sources, waiting):
    """Has operations wait for others, except where they would wait for each other in a circle;
    `sources` says what each waits for already, `waiting` what it is to wait for."""
    # Reads of two variables may each come after the update of the other one.
    circles = in_circles({o: [*before, *waiting.get(o, ())] for o, before in sources.items()})
    for operation, firsts in waiting.items():
        in_order = operation not in circles
        operation._add_control_inputs([o for o in firsts if in_order or o not in circles])


def _uses(variable, run, framed):
    """Returns two lists of operations: the readers of a variable, and its updates."""
    readers, updates, waiting, known = [], [], list(variable.outputs), set()
    while waiting:
        tensor = waiting.pop()
        for operation in tensor.consumers():
            if operation in known or operation not in run:
                continue
            known.add(operation)
            # What takes the output may read the variable's memory later than the operation itself.
            if operation.type in _MAY_SHARE_MEMORY:
                waiting += operation.outputs
            if operation.name not in framed:
                is_update = tensor.op is variable and _may_write(operation, tensor)
                (updates if is_update else readers).append(operation)
    return readers, updates


def _may_write(operation, reference):
    """Returns whether an operation may write to a variable, whose reference is an input of it."""
    if operation.type == "IsVariableInitialized" or operation.type.startswith("Ref"):
        return False
    arguments = operation.op_def.input_arg
    if len(arguments) != len(operation.inputs):  # It has lists of inputs.
        return any(argument.is_ref for argument in arguments)
    pairs = zip(arguments, operation.inputs, strict=True)
    return any(argument.is_ref and tensor is reference for argument, tensor in pairs)


def _sources(operation):
    """Returns the operations that an operation waits for, apart from the last turn of a loop."""
    sources = [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    return [
        source for source in sources if source.type not in ("NextIteration", "RefNextIteration")
    ]


_BATCH = 1  # the bit that says that an operation depends on the batch, or on random numbers


def _bits(operations):
    """Returns operation -> an integer with one bit, another for each."""
    numbers = enumerate(dict.fromkeys(operations), start=1)
    return {operation: 1 << number for number, operation in numbers}


def _seen(sources, bit_of):
    """Returns two dicts: operation -> the bits of the operations that it comes after, as one
    integer; and operation -> how many operations come before it, one after the other."""
    seen, depth = {}, {}
    for operation in sorted_by(sources):
        bits = _BATCH if _draws(operation) else 0
        for source in sources[operation]:
            bits |= seen[source] | bit_of.get(source, 0)
        seen[operation] = bits
        depth[operation] = max((depth[source] + 1 for source in sources[operation]), default=0)
    return seen, depth


def _draws(operation):
    """Returns whether an operation gives another value each time: a batch, or random numbers."""
    if operation.type.startswith("Placeholder"):
        return True
    takes_reference = any(argument.is_ref for argument in operation.op_def.input_arg)
    is_variable = operation.type in (*_REFERENCES, "VarHandleOp", *READERS)
    return operation.op_def.is_stateful and not (takes_reference or is_variable)
