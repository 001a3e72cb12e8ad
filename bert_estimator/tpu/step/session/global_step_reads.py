"""Orders what a step reads of the global step and its update, if this is a reference, as in TF1.

TensorFlow 1 lets what is computed from the global step race with its update: a learning rate, or
the step of a host call. The race has an outcome that programs rely on:

1. An update that waits for the training, such as the update of
   `optimizer.apply_gradients(..., global_step)`, comes last.
2. An update that could run at once, beside the optimizer, comes first. NVIDIA's LAMB divides by
   `1 - beta**global_step`, which would be 0 before it.
3. But if TPUEstimator runs it, and it is `global_step.assign(global_step + 1)`, it comes between
   the reads: only the last read that was made before it sees the step counted. There, the global
   step is a resource in TensorFlow 1, and its executor runs the reads in this order. With
   google-research/bert's schedule the decay is of the step before, and the warm-up of the step
   after.

(TensorFlow 1.15.5 on two cores, google-research/bert's schedule in networks of five sizes: with
TPUEstimator, all steps of 14 trainings had this decay, and 93 % of the steps this warm-up; with
Estimator, 95 % of the steps of 14 trainings saw the step counted in both. With five reads or more
beside `global_step.assign(global_step + 1)`, each training of TPUEstimator has another outcome.)
"""

from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator.graph import graph_walk, variable_uses
from bert_estimator.tpu.step import variable_versions

_SHARE_MEMORY = ("Identity", "Reshape", "ExpandDims", "Squeeze")
_UPDATES = ("Assign", "AssignAdd", "AssignSub", "CountUpTo")
_VARIABLES = ("VariableV2", "VarHandleOp")
_INTO_FRAMES = ("RefEnter", "RefSwitch")  # by which an update in a condition or a loop gets it


def order(fetches: Any, is_tpu_estimator: bool) -> None:
    """Has updates of the global step wait for what reads it, or the reads for the updates.

    As in `variable_versions`, only what a step runs is ordered, and nothing waits for operations in
    a condition or a loop.

    Args:
      fetches: structure of the tensors and operations that every step runs; what else is in it does
        not matter.
      is_tpu_estimator: whether a TPUEstimator runs the step, which has rule 3.
    """
    global_step = tf.train.get_global_step()
    if hasattr(global_step, "handle"):  # a resource: `variable_versions` orders its reads
        return
    run = set(graph_walk.all_before(graph_walk.operations_of(fetches)))
    reads, updates = _uses(global_step, run)
    operations = tf.get_default_graph().get_operations()
    framed = variable_versions.in_frames([o for o in operations if o in run])
    reads = {reader: read for reader, read in reads.items() if reader.name not in framed}
    for update in updates:
        before = set(graph_walk.all_before([update]))
        if update.type in _UPDATES and update.name not in framed and _may_run_at_once(before):
            seeing = [reader for reader in reads if reader not in before]
            own = [r for r in reads if r in before and r.type not in variable_uses.CALLERS]
            if is_tpu_estimator and own:
                seeing = _last_made(seeing, reads, update, operations)
            for reader in seeing:
                reader._add_control_input(update)
        after = set(graph_walk.all_after([update]))
        update._add_control_inputs([r for r in reads if r not in after and r not in before])


def _last_made(readers, reads, update, operations):
    """Returns the readers of the last read, if it was made before an update, or an empty list.

    Operations that a library function made in a name scope of its own, such as
    `tf.train.piecewise_constant`, share a read.
    """
    number_of = {operation: number for number, operation in enumerate(operations)}
    last = max(readers, key=lambda reader: number_of[reads[reader]], default=None)
    if last is None or number_of[reads[last]] > number_of[update]:
        return []
    scope, scope_of_update = _scope(reads[last]), _scope(update)
    shares = [r for r in readers if _scope(reads[r]) == scope != scope_of_update]
    return shares or [last]


def _scope(operation):
    return operation.name.rpartition("/")[0]


def _may_run_at_once(before):
    """Returns whether operations depend on constants and counters alone, not on trained values."""
    sources = [operation for operation in before if not operation.inputs]
    trained = {variable.op for variable in tf.trainable_variables()}
    return all(
        source.type == "Const" or (source.type in _VARIABLES and source not in trained)
        for source in sources
    )


def copied(tensors: Any) -> Any:
    """Copies the tensors of a structure that share the memory of the global step.

    What a Python function gets of a tensor shares its memory, and may be kept by the function.
    """
    global_step = tf.train.get_global_step()
    if hasattr(global_step, "handle"):
        return tensors

    def copy(tensor):
        source = tensor
        while isinstance(source, tf.Tensor) and source.op.type in _SHARE_MEMORY:
            source = source.op.inputs[0]
        shares = isinstance(source, tf.Tensor | tf.Variable) and source.op is global_step.op
        return tf.raw_ops.DeepCopy(x=tensor) if shares else tensor

    return tf.nest.map_structure(copy, tensors)


def _uses(global_step, run):
    """Returns (reads, list of the operations that update the global step), of those run.

    The reads are a dict, operation that reads -> the first operation by which it gets the value.
    """
    reads, updates, seen = {}, [], set()
    (reference,) = global_step.op.outputs
    of_variable = (global_step.op, global_step.value().op)
    tensors = [(reference, None)]
    while tensors:
        tensor, first = tensors.pop()
        for operation in tensor.consumers():
            if operation in seen or operation not in run:
                continue
            seen.add(operation)
            read = first or (None if operation in of_variable else operation)
            if operation.type in _SHARE_MEMORY:
                tensors += [(output, read) for output in operation.outputs]
            elif operation.type in _UPDATES + _INTO_FRAMES and operation.inputs[0] is reference:
                updates.append(operation)
            else:
                reads[operation] = read
    return reads, updates
