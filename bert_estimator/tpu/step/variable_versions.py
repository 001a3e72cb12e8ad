"""Rewrites a step so that its reads see the values of variables that `variable_uses` defines.

On the XLA runtime, each value that a read may see gets a handle of its own. Then neither the order
of construction nor the compiler's order of operations makes a difference. On the session runtime,
the graph gets control dependencies.
"""

import tensorflow.compat.v1 as tf
from tensorflow.core.framework import function_pb2, node_def_pb2

from bert_estimator.graph import graph_walk
from bert_estimator.graph.variable_uses import CALLERS, Functions, Uses, functions_of, in_order


class Library(Functions):
    """Has the functions that a graph's operations run, and copies with control dependencies."""

    def __init__(self, library):
        super().__init__(library)
        # Name of a function that updates variables -> its copy, with control dependencies.
        self.rewritten = {}

    def rewrite(self, node):
        """Makes an operation run the rewritten copies of its functions that have updates."""
        for function in functions_of(node):
            if self.has_updates(function.name):
                function.name = self._rewritten(function.name)

    def _rewritten(self, name):
        if name not in self.rewritten:
            function = function_pb2.FunctionDef()
            function.CopyFrom(self.by_name[name])
            function.signature.name = f"{name}_in_order"
            uses = self.uses_of_needed(function)
            for first, second in uses.edges():
                _wait_for(second, first)
            try:
                nodes = in_order(uses.nodes)
            except ValueError as error:
                raise RuntimeError(
                    f"{name}, a branch of a condition or the body of a loop in model_fn, reads "
                    "variables and updates them, and no order of the two has each read before the "
                    "updates that it does not come after. Say by tf.control_dependencies which "
                    f"read comes after which update ({error})"
                ) from error
            for node in nodes:
                self.rewrite(node)
            del function.node_def[:]
            function.node_def.extend(nodes)
            self.rewritten[name] = function
        return self.rewritten[name].signature.name


def separate(nodes, dtypes, library, updates_first=False):
    """Gives each value of a step's variables that is read a handle of its own; returns the
    operations, which are changed, and a dict, new handle -> the variable's, for the values at the
    start."""
    # `dtypes` has an enum for each handle. If `updates_first`, the step does not train.
    uses = Uses(nodes, {handle: handle for handle in dtypes}, library, updates_first)
    nodes, handles, copied = list(uses.nodes), {}, {}
    for first, second in uses.chain():
        _wait_for(second, first)
    # Updates keep the variable's handle. A read takes the handle of the value that it is to see.
    # Only the operation that copies the value there writes to it, so it makes no difference when
    # the read runs.
    for read in uses.reads:
        # A variable that is never written to has one value.
        if read.variable not in uses.updates_of:
            continue
        key = (read.variable, read.update)
        if key not in copied:
            name = f"variable_versions/{len(copied)}"
            handles[name] = read.variable
            copied[key] = name, None
            if read.update is not None:
                value, copy = _copying(read.variable, name, dtypes[read.variable])
                _wait_for(value, uses.updates[read.update])
                if (following := uses.next_update(read)) is not None:
                    # The copy must have read the value before the next update replaces it.
                    _wait_for(following, value)
                nodes += [value, copy]
                copied[key] = name, copy
        name, copy = copied[key]
        read.node.input[read.position] = name
        if copy is not None:
            _wait_for(read.node, copy)
    for node in nodes:
        library.rewrite(node)
    return nodes, handles


def order(fetches, updates_first=False, apart=()):
    """Adds the control dependencies to a session's graph that give a step its meaning, as far as
    they can; returns pairs of names: a read, and an update it races with. `apart` has the fetches
    of other runs, one by one: an update that such a run does not have is not added to it."""
    graph = tf.get_default_graph()
    operations = graph_walk.operations_of(fetches)
    if not updates_first:
        # Summaries and hooks may fetch more. A read that needs nothing may run in each step.
        operations |= {o for o in graph.get_operations() if _is_free(o)}
    present = {each.name for each in graph_walk.all_before(operations)}
    graph_def = graph.as_graph_def()
    nodes = [node for node in graph_def.node if node.name in present]
    handles = {node.name: node.name for node in nodes if node.op == "VarHandleOp"}
    uses = Uses(nodes, handles, Functions(graph_def.library), updates_first)
    may_wait = may_wait_in(apart)
    edges = _edges_between_frames(uses, graph)
    # What two reads are to see may contradict each other in every order of the updates. Then an
    # edge is only added if it does not close a circle, and the others are races.
    is_certain = _is_consistent(uses.nodes, edges)
    racing, ends = [], {}
    for first, second in edges:
        waiting, waited_for = (graph.get_operation_by_name(n.name) for n in (second, first))
        if not may_wait(waiting, waited_for):
            continue
        if not is_certain and waiting in graph_walk.all_before([waited_for]):
            racing.append((first.name, second.name))
            continue
        if waited_for not in ends:
            ends[waited_for] = _end(waited_for)
        waiting._add_control_inputs(ends[waited_for])
    return racing


def may_wait_in(runs):
    """Returns a function of (waiting, awaited): whether the one may wait for the other. It may not
    if one of the runs, each given by its fetches, has `waiting` without `awaited`."""
    ours = [set(graph_walk.all_before(graph_walk.operations_of(fetches))) for fetches in runs]
    return lambda waiting, awaited: all(awaited in run or waiting not in run for run in ours)


def _edges_between_frames(uses, graph):
    """Returns pairs of operations of a session's graph: the second must run after the first."""
    node_of = {node.name: node for node in uses.nodes}
    framed = in_frames([graph.get_operation_by_name(name) for name in node_of])
    # What reads nearly always comes after the update already, but a function that an operation runs
    # does not wait for inputs that it does not use.
    seen = [(uses.updates[r.update], r.node) for r in uses.reads if r.update is not None]
    edges = []
    for first, second in uses.edges(lambda node: node.name in framed) + seen:
        if second.name in framed:
            # Nothing can wait for an operation in a condition or a loop of the old kind. If the
            # second is in one, the variable waits where it enters it.
            entries = _entries(graph.get_operation_by_name(second.name), framed)
            edges += [(first, node_of[each.name]) for each in entries]
        else:
            edges.append((first, second))
    return [pair for pair in edges if pair[0].name not in framed and pair[0] is not pair[1]]


def in_frames(operations):
    """Returns the names of those operations, given in order, that may not run in each step: they
    are in a condition or a loop of the old kind."""
    framed = set()
    for operation in operations:
        # An operation of a gradient need not belong to a condition to use a tensor from one of its
        # branches; what waits for it may not run either.
        sources = [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
        from_frame = any(
            source.type in ("Enter", "Switch")
            or (source.name in framed and source.type not in ("Exit", "Merge"))
            for source in sources
        )
        is_inside = from_frame and operation.type not in ("Exit", "Merge")
        if is_inside or operation._get_control_flow_context() is not None:
            framed.add(operation.name)
    return framed


def _entries(operation, framed):
    """Returns the operations by which handles enter the outermost frame of an operation."""
    found = []
    for tensor in operation.inputs:
        entry = tensor.op
        while entry.inputs and entry.inputs[0].op.name in framed:
            entry = entry.inputs[0].op
        if tensor.dtype == tf.resource and entry.type in ("Enter", "Switch"):
            found.append(entry)
    return found


def _is_consistent(nodes, edges):
    """Returns whether operations, which are changed, have an order with the first of each pair
    before the second."""
    for first, second in edges:
        _wait_for(second, first)
    try:
        in_order(nodes)
    except ValueError:
        return False
    return True


def _end(operation):
    """Returns the operations to wait for if something must run after an operation."""
    if operation.type not in CALLERS:
        return [operation]
    # A control dependency on an operation that runs a function is met when its function begins. Its
    # results come after the function's updates.
    with tf.control_dependencies(None):
        results = [tensor for tensor in operation.outputs if tensor.dtype != tf.resource]
        return [tf.identity(tensor).op for tensor in results]


def _is_free(operation):
    """Returns whether an operation is a read that is used, and that waits for nothing."""
    is_read = operation.type == "ReadVariableOp" and operation.inputs[0].op.type == "VarHandleOp"
    return is_read and not operation.control_inputs and bool(operation.outputs[0].consumers())


def _copying(handle, copy, dtype):
    """Returns the two operations that copy a variable's value to another handle."""
    value = node_def_pb2.NodeDef(op="ReadVariableOp", name=f"{copy}/value", input=[handle])
    assign = node_def_pb2.NodeDef(
        op="AssignVariableOp", name=f"{copy}/assign", input=[copy, value.name]
    )
    for node in (value, assign):
        node.attr["dtype"].type = dtype
    return value, assign


def _wait_for(node, first):
    """Makes an operation run after another operation."""
    name = f"^{first.name}"
    if name not in node.input and node is not first:
        node.input.append(name)
