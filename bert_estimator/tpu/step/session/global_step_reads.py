"""Orders what a step reads of the global step and its update, if this is a reference, as in TF1.

A reference variable shares its memory with what reads it, so TensorFlow 1 lets what is computed
from the global step race with its update: a learning rate, or the step of a host call. The race has
an outcome that programs rely on. An update that waits for the training, such as the update of
`optimizer.apply_gradients(..., global_step)`, comes last. An update that could run at once, such as
`global_step.assign(global_step + 1)` beside the optimizer, comes first: NVIDIA's LAMB divides by
`1 - beta**global_step`, which would be 0 before it. (In TensorFlow 1.15.5 on two cores, every step
of 11 of 14 small trainings with google-research/bert's schedule had this outcome, and no training
had the other outcome throughout.)
"""

from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator.graph import graph_walk
from bert_estimator.tpu.step import variable_versions

_SHARE_MEMORY = ("Identity", "Reshape", "ExpandDims", "Squeeze")
_UPDATES = ("Assign", "AssignAdd", "AssignSub", "CountUpTo")
_VARIABLES = ("VariableV2", "VarHandleOp")
_INTO_FRAMES = ("RefEnter", "RefSwitch")  # by which an update in a condition or a loop gets it


def order(fetches: Any) -> None:
    """Has updates of the global step wait for what reads it, or the reads for the updates.

    Reads wait for an update that could run at once, unless the update depends on them. Other
    updates wait for the reads, unless these wait for the update. As in `variable_versions`, only
    what a step runs is ordered, and nothing waits for operations in a condition or a loop.

    Args:
      fetches: structure of the tensors and operations that every step runs; what else is in it does
        not matter.
    """
    global_step = tf.train.get_global_step()
    if hasattr(global_step, "handle"):  # a resource: `variable_versions` orders its reads
        return
    run = set(graph_walk.all_before(graph_walk.operations_of(fetches)))
    readers, updates = _uses(global_step, run)
    in_order = [each for each in tf.get_default_graph().get_operations() if each in run]
    framed = variable_versions.in_frames(in_order)
    for update in updates:
        before = set(graph_walk.all_before([update]))
        if update.type in _UPDATES and update.name not in framed and _may_run_at_once(before):
            for reader in readers:
                if reader not in before and reader.name not in framed:
                    reader._add_control_input(update)
            continue
        after = set(graph_walk.all_after([update]))
        waited_for = [each for each in readers if each.name not in framed and each not in after]
        update._add_control_inputs(waited_for)


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
    """Returns (operations that read the global step, operations that update it), of those run."""
    readers, updates, seen = [], [], set()
    (reference,) = global_step.op.outputs
    tensors = [reference]
    while tensors:
        for operation in tensors.pop().consumers():
            if operation in seen or operation not in run:
                continue
            seen.add(operation)
            if operation.type in _SHARE_MEMORY:
                tensors += operation.outputs
            elif operation.type in _UPDATES + _INTO_FRAMES and operation.inputs[0] is reference:
                updates.append(operation)
            else:
                readers.append(operation)
    return readers, updates
