"""What a model has the host run: `tf.tpu.outside_compilation`, and writers of `tf.summary`.

A core cannot run Python, prints and summaries, and does not wait for the host within a step. So the
outfeed sends the tensors that they take, and the host runs them after the step: an outside
compilation once for each core, and a summary once, for core 0. The latter need no word from the
model, as in upstream.
"""

from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from bert_estimator.graph import graph_walk
from bert_estimator.graph.variable_uses import CALLERS, READERS, Functions, functions_of

# What only leads to a summary and cannot be computed on a core: texts, such as encoded images, and
# the lists that a loop makes of them.
_OF_THE_HOST = (tf.string, tf.variant)


def effects(operations: Iterable[tf.Operation]) -> list[tf.Operation]:
    """Returns those operations of an outside compilation that run for what they do, such as prints:
    nothing outside of `operations` takes their results."""
    operations = set(operations)
    return [
        operation
        for operation in sorted(operations, key=lambda each: each._id)
        if operation.op_def.is_stateful
        # It is not in a condition or a loop of the old kind.
        and (operation.graph.is_fetchable(operation) or operation.type in CALLERS)
        and operation.type not in {"VarHandleOp", *READERS}
        and not operation.type.startswith(("Random", "Truncated", "Multinomial"))
        and {c for t in operation.outputs for c in t.consumers()} <= operations
    ]


def summary_writes(step: tf.Graph, results: list[tf.Operation]) -> list[tf.Operation]:
    """Returns the operations of a step that write summaries of `tf.summary` before `results`, with
    the operations that make texts for them, and all that take their results."""
    writers = [inner for outer, inner in step.captures if outer.op.type == "SummaryWriter"]
    writing = {operation for writer in writers for operation in writer.consumers()}
    if not writing:
        return []
    # A summary that no result waits for is not written, as in a session.
    written = [operation for operation in graph_walk.all_before(results) if operation in writing]
    found = graph_walk.reached(
        written,
        lambda operation: [
            *(c for tensor in operation.outputs for c in tensor.consumers()),
            *(t.op for t in operation.inputs if t.dtype.base_dtype in _OF_THE_HOST),
        ],
    )
    return sorted(found, key=lambda operation: operation._id)


class HostComputation:
    """Holds a copy of a step's operations in the host's graph, the current graph, which runs them
    with the tensors of the first `num_runs` cores."""

    name = "outside_compilation"

    def __init__(self, step: tf.Graph, operations: list[tf.Operation], num_runs: int):
        self._num_runs = num_runs
        wanted = effects(operations)
        graph_def = tf.GraphDef(versions=step.graph_def_versions)
        graph_def.library.CopyFrom(step.as_graph_def().library)
        needs = _Needs(step, set(operations), Functions(graph_def.library))
        needs.add(wanted)
        with step.as_default():
            # The tensors to send, with a first axis for the concatenation.
            self.tensors = [tensor[tf.newaxis] for tensor in needs.sent.values()]
        placeholders = [tf.placeholder(t.dtype, t.shape) for t in needs.sent.values()]
        self._placeholders, self._kept = placeholders, []
        given = {**needs.outer_of}
        for name, placeholder in zip(needs.sent, placeholders, strict=True):
            is_variable = name in needs.variables
            given[name] = self._variable_of(placeholder) if is_variable else placeholder
        graph_def.node.extend(operation.node_def for operation in needs.copied)
        names = {operation.name for operation in needs.copied}
        for node in graph_def.node:
            node.attr.pop("_class", None)
            # What the step does has been done when this runs.
            needed = [name for name in node.input if name[0] != "^" or name[1:] in names]
            node.input[:] = needed
        if not any(functions_of(node) for node in graph_def.node):
            graph_def.ClearField("library")
        self.operations = tf.import_graph_def(
            graph_def,
            input_map=given,
            return_elements=[operation.name for operation in wanted],
            name="outside_compilation",
        )

    def _variable_of(self, placeholder):
        """Returns the handle of a variable of the host, which holds what a step sends."""
        handle = tf.raw_ops.VarHandleOp(
            dtype=placeholder.dtype,
            shape=placeholder.shape,
            shared_name=tf.get_default_graph().unique_name("sent_by_step"),
        )
        self._kept.append(tf.raw_ops.AssignVariableOp(resource=handle, value=placeholder))
        return handle

    def run(self, session: tf.Session, values: list) -> None:
        """Runs the operations with the values of one step, core after core."""
        # In the order of the cores, so that prints of a step are always in one order.
        for core in range(self._num_runs):
            of_core = [value[core] for value in values]
            feed = dict(zip(self._placeholders, of_core, strict=True))
            # First, and in a run of its own: the operations read the variables.
            if self._kept:
                session.run(self._kept, feed)
            session.run(self.operations, feed)


class _Needs:
    """Collects what the host needs to run operations of a step."""

    def __init__(self, step, operations, functions):
        self._step, self._operations, self._functions = step, operations, functions
        self._captured = {inner.ref(): outer for outer, inner in step.captures}
        # copied: operations. sent: name of a tensor that the copies take -> the tensor to send for
        # it. variables: names in `sent` of handles, whose values are sent. outer_of: name of a
        # captured tensor -> the tensor of the host's graph.
        self.copied, self.sent, self.variables, self.outer_of = [], {}, set(), {}

    def add(self, wanted):
        for operation in graph_walk.reached(wanted, self._copied_before):
            self.copied.append(operation)
            for position, tensor in enumerate(operation.inputs):
                if tensor.ref() in self._captured:
                    self._add_captured(operation, position)
                elif not self._is_copied(tensor.op):
                    self.sent[tensor.name] = tensor

    def _copied_before(self, operation):
        own = [tensor.op for tensor in operation.inputs if tensor.ref() not in self._captured]
        waited_for = [each for each in operation.control_inputs if each in self._operations]
        return [*filter(self._is_copied, own), *waited_for]

    def _add_captured(self, operation, position):
        tensor = operation.inputs[position]
        outer = self._captured[tensor.ref()]
        if outer.op.type != "VarHandleOp":
            self.outer_of[tensor.name] = outer
        elif self._functions.writes(operation.node_def, position):
            raise ValueError(
                f"tf.tpu.outside_compilation: {operation.name} ({operation.type}) takes the "
                f"variable {outer.op.name}, which is on the cores. Read it before, and update it "
                "outside of outside_compilation"
            )
        elif tensor.name not in self.sent:
            # The value is read when the operation would run.
            before = apart_from({operation}, [operation])
            with self._step.as_default(), tf.control_dependencies(before):
                value = tf.raw_ops.ReadVariableOp(resource=tensor, dtype=outer.op.get_attr("dtype"))
            value.set_shape(outer.op.get_attr("shape"))
            self.sent[tensor.name] = value
            self.variables.add(tensor.name)

    def _is_copied(self, operation):
        """Returns whether the host runs an operation itself, and does not get its results."""
        if operation.type == "Const":
            return True
        return operation in self._operations and operation.type not in READERS


def apart_from(
    on_host: set[tf.Operation], operations: Iterable[tf.Operation]
) -> list[tf.Operation]:
    """Returns the operations of a step, and in place of those on the host what these wait for."""
    found = graph_walk.reached(
        operations, lambda each: graph_walk.sources_of(each) if each in on_host else []
    )
    # What comes from outside of the step is there before it.
    return [each for each in found if each not in on_host and each.type != "Placeholder"]


def without_host(operations: list[tf.Operation]) -> None:
    """Has the operations of the step's graph wait for what the host's operations wait for, and not
    for the host."""
    on_host, effective = set(operations), effects(operations)
    if not effective:
        return
    for operation in graph_walk.all_after(effective):
        waits_for = list(operation.control_inputs)
        if operation not in on_host and not on_host.isdisjoint(waits_for):
            operation._remove_all_control_inputs()
            operation._add_control_inputs(apart_from(on_host, waits_for))
