"""Defines which value of a variable each operation of a step sees.

TensorFlow orders reads and updates of a variable only by control dependencies. Without them, reads
and updates race. Here, what an operation sees depends on the operations that it comes after,
through its inputs and control inputs:

1. The updates of a variable take place one after the other, in the order of construction. An
   operation that reads and writes (`assign_add`, an optimizer's kernel, a condition or a loop that
   updates the variable) reads the value that the update before it wrote.
2. A read that does not come after an update of the variable sees the value at the step's start.
3. A read that comes after updates sees the value that the last of them wrote.
4. In a branch of a condition, or the body of a loop, that updates a variable, the same rules hold
   for each run of the branch or the body, in place of the step. If they contradict each other
   there, it is an error.
5. In a step that does not train, updates come first: a read also sees the updates of its variable
   before the first update that is computed from it. If reads of several variables cannot all do so
   (two variables that take each other's values), these reads follow rules 2 and 3.

An operation is a `NodeDef` here, of a graph or of a function in its library.
"""

import contextlib
import dataclasses
import graphlib
import heapq
import itertools

from tensorflow.core.framework import node_def_pb2, types_pb2

# Operations that take a variable's handle and do not write to it. Other operations may write.
READERS = {
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "VarIsInitializedOp",
    "VariableShape",
}

# Operations that run functions, and which of their inputs is the function's first argument.
CALLERS = {
    "Case": 1,
    "If": 1,
    "PartitionedCall": 0,
    "StatefulPartitionedCall": 0,
    "StatelessCase": 1,
    "StatelessIf": 1,
    "StatelessWhile": 0,
    "While": 0,
}


# Operations that hand a variable's handle on, as TF1's conditions and loops have them, and how
# many outputs have it.
_HANDING_ON = {"Identity": 1, "Switch": 2, "Enter": 1, "Merge": 1, "NextIteration": 1, "Exit": 1}

# These lead back to the start of a TF1 loop.
_NEXT_TURN = ("NextIteration", "RefNextIteration")


@dataclasses.dataclass(frozen=True)
class Read:
    """An input of an operation that takes a variable's handle and only reads."""

    node: node_def_pb2.NodeDef
    position: int  # of the handle among its inputs
    variable: str
    # The number, in `Uses.updates`, of the update that wrote the value it sees; None means the
    # value at the start.
    update: int | None


class Uses:
    """The reads and updates of variables by the operations of a graph or of a function.

    Args:
      nodes: the operations, in order of construction; a circle of them is a ValueError.
      handles: dict, name of a placeholder, argument or operation that gives a variable's handle ->
        name of the variable.
      updates_first: whether rule 5 holds.
    """

    def __init__(self, nodes, handles, functions, updates_first=False):
        # `updates` has the operations that write to variables, in their order.
        self.nodes = in_order(nodes)
        self.updates, self.reads = [], []
        masks_of = {}  # a bit for each update of a variable
        after = {}  # name of an operation -> a bit for each update that it comes after
        variables = {(name, 0): variable for name, variable in handles.items()}
        for node in self.nodes:
            mask = 0
            for name in node.input:
                mask |= after.get(_source(name), 0)
            taken = [variables.get(_output(name)) for name in node.input]
            taken = {i: variable for i, variable in enumerate(taken) if variable is not None}
            # A loop's outputs are the handles that it takes.
            if taken and node.op in ("StatelessWhile", "While"):
                variables.update({(node.name, i): each for i, each in taken.items()})
            if taken and node.op in _HANDING_ON:
                variable = next(iter(taken.values()))
                variables.update({(node.name, i): variable for i in range(_HANDING_ON[node.op])})
            # An operation that reads and writes, by whichever inputs, sees what its update gets
            # (rule 1), so it is not among the reads.
            elif taken:
                writes = {v for i, v in taken.items() if functions.writes(node, i)}
                for i, variable in taken.items():
                    if variable not in writes:
                        # The highest bit is the last of the variable's updates that the read comes
                        # after (rules 2, 3).
                        seen = (mask & masks_of.get(variable, 0)).bit_length() - 1
                        seen = seen if seen >= 0 else None
                        self.reads.append(Read(node, i, variable, seen))
                if writes:
                    bit = 1 << len(self.updates)
                    self.updates.append(node)
                    mask |= bit
                    for variable in writes:
                        masks_of[variable] = masks_of.get(variable, 0) | bit
            after[node.name] = mask
        # Variable -> the numbers of its updates.
        self.updates_of = {
            variable: [i for i in range(mask.bit_length()) if mask >> i & 1]
            for variable, mask in masks_of.items()
        }
        if updates_first and self.updates:
            self._put_updates_first()

    def _put_updates_first(self):
        """Changes `reads` as rule 5 says."""
        bit_of = {read.node.name: 1 << n for n, read in enumerate(self.reads)}
        before = {}  # name of an operation -> the bits of the reads up to it
        for node in self.nodes:
            before[node.name] = bit_of.get(node.name, 0)
            for name in node.input:
                before[node.name] |= before.get(_source(name), 0)

        def after_updates(read):
            seen = read.update
            for number in self.updates_of.get(read.variable, ()):
                # This update is computed from the read, so the read cannot see it, nor later ones.
                if before[self.updates[number].name] & bit_of[read.node.name]:
                    break
                seen = number if seen is None else max(seen, number)
            return dataclasses.replace(read, update=seen)

        reads = [after_updates(read) for read in self.reads]
        turns = {node.name for node in self.nodes if node.op in _NEXT_TURN}
        sources = {
            node.name: [each for each in map(_source, node.input) if each not in turns]
            for node in self.nodes
        }
        for first, second in self.chain():
            sources[second.name].append(first.name)
        for read in reads:
            if read.update is not None:
                sources[read.node.name].append(self.updates[read.update].name)
        # Reads that cannot all see the updates keep what rules 2 and 3 gave them.
        circles = in_circles(sources)
        self.reads = [
            old if old.node.name in circles else new
            for old, new in zip(self.reads, reads, strict=True)
        ]

    def chain(self):
        """Returns pairs of an update of a variable and the variable's next update."""
        return [
            (self.updates[one], self.updates[other])
            for numbers in self.updates_of.values()
            for one, other in itertools.pairwise(numbers)
        ]

    def next_update(self, read):
        """Returns the first update whose outcome a `Read` must not see, or None."""
        return next(self._following(read.variable, read.update), None)

    def _following(self, variable, before, is_inner=lambda node: False):
        """Yields the updates of a variable after the number `before` (None: the start), up to the
        first that is not inner."""
        for number in self.updates_of.get(variable, ()):
            if before is None or number > before:
                yield self.updates[number]
                if not is_inner(self.updates[number]):
                    return

    def edges(self, is_inner=lambda node: False):
        """Returns pairs of operations: if the first of each runs before the second, each read sees
        its value. Nothing can wait for an operation that `is_inner`, so what is before such an
        update has a pair with the update after it, too."""
        places = [
            (self.updates[n], v, n) for v, numbers in self.updates_of.items() for n in numbers
        ]
        places += [(read.node, read.variable, read.update) for read in self.reads]
        return [
            (node, update)
            for node, variable, number in places
            for update in self._following(variable, number, is_inner)
        ]


class Functions:
    """The functions in a `FunctionDefLibrary` that the operations of a graph run."""

    def __init__(self, library):
        self.by_name = {each.signature.name: each for each in library.function}
        self._uses_of, self._updating = {}, {}

    def writes(self, node, position):
        """Returns whether an operation may write to the variable whose handle an input is."""
        if node.op in READERS:
            return False
        if node.op not in CALLERS:
            return True
        argument = str(position - CALLERS[node.op])
        return any(argument in self._uses(f.name).updates_of for f in functions_of(node))

    def _uses(self, name):
        if name not in self._uses_of:
            self._uses_of[name] = Uses([], {}, self)  # if it calls itself
            self._uses_of[name] = self.uses_of_needed(self.by_name[name])
        return self._uses_of[name]

    def uses_of_needed(self, function):
        return Uses(_needed(function), _handles(function), self)

    def has_updates(self, name):
        """Returns whether a function may write to a variable, needed by its results or not."""
        if name not in self._updating:
            # This ends the search if it calls itself.
            self._updating[name] = False
            function = self.by_name[name]
            uses = Uses(function.node_def, _handles(function), self)
            called = [f.name for node in function.node_def for f in functions_of(node)]
            self._updating[name] = bool(uses.updates) or any(map(self.has_updates, called))
        return self._updating[name]


def in_order(nodes):
    """Sorts operations so that each comes after what it depends on, and otherwise keeps their
    order; a circle of them is a ValueError."""
    nodes = list(nodes)
    number_of = {node.name: number for number, node in enumerate(nodes)}
    followers, missing = [[] for _ in nodes], [0] * len(nodes)
    for number, node in enumerate(nodes):
        for source in {number_of.get(_source(name)) for name in node.input} - {None}:
            # A TF1 loop leads back to its start: that is not a circle.
            if nodes[source].op not in _NEXT_TURN:
                followers[source].append(number)
                missing[number] += 1
    # The list is sorted, so it is a heap: the operation that was built first comes first.
    ready = [number for number, count in enumerate(missing) if not count]
    ordered = []
    while ready:
        number = heapq.heappop(ready)
        ordered.append(nodes[number])
        for follower in followers[number]:
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(ready, follower)
    if len(ordered) < len(nodes):
        names = [node.name for node, count in zip(nodes, missing, strict=True) if count]
        raise ValueError(f"operations wait for each other in a circle: {', '.join(names[:10])}")
    return ordered


def in_circles(sources):
    """Returns the keys that wait for themselves, and the keys between two circles of them, from a
    dict of key -> list of what it waits for."""
    left = sources.keys() - set(sorted_by(sources))
    users = {each: [] for each in left}
    for each in left:
        for source in left.intersection(sources[each]):
            users[source].append(each)
    # What is left is in a circle or after it. Sorted the other way, what is only after it goes too.
    return left - set(sorted_by(users))


def sorted_by(sources):
    """Yields the keys of a dict as for `in_circles`, each after its sources; the keys in a circle,
    and the keys after it, are left out."""
    sorter = graphlib.TopologicalSorter(sources)
    # It raises at a circle, but is prepared then: it still gives all keys that are before it.
    with contextlib.suppress(graphlib.CycleError):
        sorter.prepare()
    while ready := sorter.get_ready():
        yield from ready
        sorter.done(*ready)


def _needed(function):
    """Returns the operations of a function that its results depend on; sessions only run these."""
    node_of = {node.name: node for node in function.node_def}
    waiting = [_source(name) for name in [*function.ret.values(), *function.control_ret.values()]]
    needed = set()
    while waiting:
        name = waiting.pop()
        if name in node_of and name not in needed:
            needed.add(name)
            waiting += [_source(each) for each in node_of[name].input]
    return [node for node in function.node_def if node.name in needed]


def _handles(function):
    """Returns a dict, name of a function's argument that is a handle -> its number, as text."""
    arguments = enumerate(function.signature.input_arg)
    return {a.name: str(i) for i, a in arguments if a.type == types_pb2.DT_RESOURCE}


def functions_of(node):
    """Returns the functions that an operation runs: the `NameAttrList`s in it."""
    if node.op not in CALLERS:
        return []
    attrs = list(node.attr.values())
    called = [attr.func for attr in attrs if attr.HasField("func")]
    return called + [function for attr in attrs for function in attr.list.func]


def _source(name):
    """Returns the name of the operation or argument that an input comes from."""
    return name.removeprefix("^").partition(":")[0]


def _output(name):
    """Returns (name, number) of the output that an input is; a control input has no number."""
    first, *_, last = [*name.split(":"), "0"] if ":" not in name else name.split(":")
    return (first, int(last)) if name[0] != "^" else (name, None)
