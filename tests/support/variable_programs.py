"""Random programs of reads and updates of variables: as text, as graph code, and what they mean.

A program is a block: statements, and a result. A statement gives a value or is an update, and may
have control dependencies on statements before it, of its own block or of one around it. What it
means follows the contract of `step/variable_versions.py`, in plain Python numbers.
"""

import dataclasses
import graphlib
import math
import random

import tensorflow.compat.v1 as tf

VARIABLES = ("a", "b", "c")
MODULUS = 97  # keeps numbers small enough for float32 to be exact
TURNS = 2


@dataclasses.dataclass
class Statement:
    number: int
    kind: str
    variables: tuple = ()
    arguments: tuple = ()  # numbers of statements that give values
    controls: tuple = ()  # numbers of statements
    blocks: tuple = ()

    @property
    def is_update(self):
        return self.kind in ("set", "add", "momentum")


@dataclasses.dataclass
class Block:
    statements: list
    result: int
    controls: tuple
    parameter: int | None = None  # number that stands for what a loop carries

    def needed(self):
        """The statements that the result depends on: no others run."""
        own = {each.number: each for each in self.statements}
        waiting, found = [self.result, *self.controls], set()
        while waiting:
            number = waiting.pop()
            if number in own and number not in found:
                found.add(number)
                waiting += refers_to(own[number])
        return [each for each in self.statements if each.number in found]

    def text(self, indent=""):
        lines = []
        for each in self.statements:
            words = [each.kind, *each.variables, *(f"#{n}" for n in each.arguments)]
            after = f" after {sorted(each.controls)}" if each.controls else ""
            lines.append(f"{indent}#{each.number} = {' '.join(words)}{after}")
            lines += [block.text(indent + "    ") for block in each.blocks]
        carried = f" of #{self.parameter}" if self.parameter is not None else ""
        lines.append(f"{indent}result{carried}: #{self.result} after {sorted(self.controls)}")
        return "\n".join(lines)


def refers_to(statement):
    """Numbers of the statements that one depends on, through what is in it as well."""
    found = {*statement.arguments, *statement.controls}
    for block in statement.blocks:
        own = {each.number for each in block.statements} | {block.parameter}
        inner = {block.result, *block.controls}.union(*map(refers_to, block.statements))
        found |= inner - own
    return found


# Making them.


def random_program(seed):
    return _Maker(random.Random(seed)).block((), (0,), depth=0)


class _Maker:
    """Makes a program; number 0 stands for the step's input."""

    def __init__(self, source):
        self._random = source
        self._last = 0

    def block(self, around, values, depth, parameter=None):
        """Args: numbers of the statements around it, and of the statements that give values."""
        around, values, own = list(around), list(values), []
        for _ in range(self._random.randint(2, 4) if depth else self._random.randint(4, 10)):
            statement = self._statement(around, values, depth)
            own.append(statement)
            around.append(statement.number)
            if not statement.is_update:
                values.append(statement.number)
        numbers = [each.number for each in own]
        controls = self._some(numbers, 0.8 if not depth else 0.5)
        return Block(own, self._random.choice(values), controls, parameter)

    def _statement(self, around, values, depth):
        pick, number = self._random.choice, self._next()
        kinds = ["read", "read", "gather", "sum", "set", "add", "momentum"]
        kind = pick(kinds + ["cond", "while"] * (depth < 2))
        # Few, of however many.
        controls = self._some(around, 2 / (3 + len(around)))
        if kind in ("read", "gather"):
            return Statement(number, kind, (pick(VARIABLES),), (), controls)
        if kind == "sum":
            return Statement(number, kind, (), (pick(values), pick(values)), controls)
        if kind == "momentum":
            variables = tuple(self._random.sample(VARIABLES, 2))
            return Statement(number, kind, variables, (pick(values),), controls)
        if kind in ("set", "add"):
            return Statement(number, kind, (pick(VARIABLES),), (pick(values),), controls)
        if kind == "cond":
            blocks = tuple(self.block(around, values, depth + 1) for _ in range(2))
        else:
            carried = self._next()
            blocks = (self.block(around, [*values, carried], depth + 1, carried),)
        return Statement(number, kind, (), (pick(values),), controls, blocks)

    def _next(self):
        self._last += 1
        return self._last

    def _some(self, numbers, share):
        return tuple(n for n in numbers if self._random.random() < share)


# What they mean.


def writes(statement):
    if statement.blocks:
        return {v for block in statement.blocks for s in block.needed() for v in writes(s)}
    return set(statement.variables) if statement.is_update else set()


def reads(statement):
    if statement.blocks:
        return {v for block in statement.blocks for s in block.needed() for v in reads(s)}
    return set(statement.variables)


def run(block, values, entry, updates_first=False):
    """Returns (the result, the variables at the end, all values by number of the statement)."""
    values, now = dict(values), dict(entry)
    left = {}  # (variable, number of an update) -> what it left
    for each, sees_update in _in_turn(block, updates_first):

        def seen(variable, sees_update=sees_update):
            update = sees_update.get(variable)
            return entry[variable] if update is None else left[variable, update]

        written = writes(each)
        sees = {v: now[v] if v in written else seen(v) for v in reads(each)}
        value, changed = _run_statement(each, values, sees)
        values[each.number] = value
        for variable in written:
            now[variable] = left[variable, each.number] = changed[variable]
    return values[block.result], now, values


def _in_turn(block, updates_first):
    """Returns (statement, variable -> the update that it sees) in an order that they may run in."""
    needed = block.needed()
    direct = {s.number: set(refers_to(s)) & {o.number for o in needed} for s in needed}
    before = _reached(direct)
    updates = {v: [s.number for s in needed if v in writes(s)] for v in VARIABLES}

    def seen(number, variable, first):
        """Returns the last update that a statement comes after; `first` as by rule 5."""
        of_it = [u for u in updates[variable] if number in before[u] | {u}]
        end = min(of_it, default=math.inf) if first else 0
        known = [u for u in updates[variable] if u < end or u in before[number]]
        return max(known, default=None)

    def waiting(sees):
        waits = {n: set(them) for n, them in direct.items()}
        for s in needed:
            waits[s.number] |= {sees[s.number][v] for v in reads(s) - writes(s)} - {None}
            waits[s.number] |= {u for v in writes(s) for u in updates[v] if u < s.number}
        return waits

    old, new = ({n: {v: seen(n, v, first) for v in VARIABLES} for n in direct}
                for first in (False, True))  # fmt: skip
    reached = _reached(waiting(new))
    circular = {n for n in reached if n in reached[n]}
    behind = {n for n in reached if reached[n] & circular}
    circles = {n for n in behind if n in circular or any(n in reached[c] for c in circular)}
    sees = {n: new[n] if updates_first and n not in circles else old[n] for n in direct}
    statement_of = {s.number: s for s in needed}
    in_turn = graphlib.TopologicalSorter(waiting(sees)).static_order()
    return [(statement_of[n], sees[n]) for n in in_turn]


def _reached(waits):
    """Returns all that each number waits for, by way of others too."""
    reached = {n: set(them) for n, them in waits.items()}
    for middle in reached:
        for n in reached:
            if middle in reached[n]:
                reached[n] |= reached[middle]
    return reached


def _run_statement(statement, values, sees):
    """Returns (its value, the variables it wrote)."""
    arguments = [values[n] for n in statement.arguments]
    kind, sees = statement.kind, dict(sees)
    if kind in ("read", "gather"):
        return sees[statement.variables[0]], {}
    if kind == "sum":
        return (3 * arguments[0] + arguments[1] + 1) % MODULUS, {}
    if kind == "set":
        return None, {statement.variables[0]: arguments[0]}
    if kind == "add":
        (variable,) = statement.variables
        return None, {variable: sees[variable] + arguments[0]}
    if kind == "momentum":
        variable, accumulator = statement.variables
        accumulated = 2 * sees[accumulator] + arguments[0]
        return None, {accumulator: accumulated, variable: sees[variable] - accumulated}
    if kind == "cond":
        block = statement.blocks[0 if arguments[0] % 2 < 1 else 1]
        value, sees, _ = run(block, values, sees)
        return value % MODULUS, sees
    (block,), carried = statement.blocks, arguments[0]
    for _ in range(TURNS):
        carried, sees, _ = run(block, {**values, block.parameter: carried}, sees)
        carried %= MODULUS
    return carried, sees


def races_inside(block, is_outermost=True):
    """Whether a block within the program leaves open what is first of two uses of a variable."""
    after = {}
    for each in block.needed():
        direct = [n for n in _waits_for(each) if n in after]
        after[each.number] = set(direct).union(*(after[n] for n in direct))
        if any(races_inside(inner, False) for inner in each.blocks):
            return True
        for other in block.needed():
            if other is each:
                break
            touches = writes(each) & reads(other) | writes(other) & reads(each)
            if touches and other.number not in after[each.number] and not is_outermost:
                return True
    return False


def _waits_for(statement):
    """Numbers of the statements that all of one waits for in a session. A condition or loop waits
    for control dependencies and what decides on it, not for other values that are used in it.
    TensorFlow takes a control dependency on one of these for superfluous, and drops it."""
    controls, used = _controls_and_values(statement)
    if not statement.blocks:
        return controls | used
    decides = {*statement.arguments} if statement.kind == "cond" else set()
    return controls - used | decides


def _controls_and_values(statement):
    """Numbers of the control dependencies in a statement; of the values that are used in it."""
    controls, used = set(statement.controls), set()
    if statement.kind != "cond":
        used.update(statement.arguments)
    for block in statement.blocks:
        controls.update(block.controls)
        used.add(block.result)
        for each in block.statements:
            inner_controls, inner_used = _controls_and_values(each)
            controls |= inner_controls
            used |= {*inner_used, *each.arguments}
    return controls, used


# As graph code.


def build(block, values, variables):
    """Builds a block; returns (its result after `controls`, number -> tensor or operation)."""
    values = dict(values)
    for each in block.statements:
        with tf.control_dependencies([values[n] for n in each.controls]):
            values[each.number] = _build_statement(each, values, variables)
    with tf.control_dependencies([values[n] for n in block.controls]):
        return tf.identity(values[block.result]), values


def _build_statement(statement, values, variables):
    arguments = [values[n] for n in statement.arguments]
    taken = [variables[name] for name in statement.variables]
    kind = statement.kind
    if kind == "read":
        return taken[0].read_value()
    if kind == "gather":
        return tf.gather(taken[0], [0])
    if kind == "sum":
        return tf.math.floormod(3.0 * arguments[0] + arguments[1] + 1.0, MODULUS)
    if kind == "set":
        return taken[0].assign(arguments[0], read_value=False)
    if kind == "add":
        return taken[0].assign_add(arguments[0], read_value=False)
    if kind == "momentum":
        return tf.raw_ops.ResourceApplyMomentum(
            var=taken[0].handle, accum=taken[1].handle, lr=1.0, grad=arguments[0], momentum=2.0
        )
    if kind == "cond":
        return tf.cond(
            tf.reshape(tf.math.floormod(arguments[0], 2.0), []) < 1,
            *(lambda b=b: _bounded(build(b, values, variables)[0]) for b in statement.blocks),
        )
    (block,) = statement.blocks

    def body(turn, carried):
        result, _ = build(block, {**values, block.parameter: carried}, variables)
        return turn + 1, _bounded(result)

    # A session would begin with the next turn before the last one ends.
    alone = {"parallel_iterations": 1}
    return tf.while_loop(lambda turn, _: turn < TURNS, body, (0, arguments[0]), **alone)[1]


def _bounded(value):
    return tf.math.floormod(value, MODULUS)
