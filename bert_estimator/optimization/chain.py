"""ChainOptimizer: an optimizer as a chain of small pieces, with the interface of TF1's optimizers.

`apply_gradients` sees all variables of a step. It collects how each is updated (`_Target`),
computes all new values, and assigns them. Read `_run` first: it runs the pieces, directly or
within a function that all variables of a kind share. `_traced` returns new values, and `_in_place`
writes them where the old ones are.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_estimator.graph.graph_walk import in_xla_program
from bert_estimator.optimization.gradients import (
    LEAST_ELEMENTS,
    addends_of_squares,
    before_cast,
    name_of,
    to_dense_float32,
)
from bert_estimator.optimization.parts import Part, Shards
from bert_estimator.optimization.piece import Piece, Slot, UpdateStep

Rate = float | tf.Tensor | tf.Variable
LearningRate = Rate | Callable[[str], Rate]  # see `ChainOptimizer`


def _dense_like(variable, gradient):
    """Returns `to_dense_float32` of a gradient, with the variable's static shape; or its `Part`."""
    if isinstance(gradient, Part):
        return gradient
    dense = before_cast(to_dense_float32(gradient))
    # Pieces may ask for the shape, which Python functions and lookups of any number of rows hide.
    return dense if dense.shape.is_fully_defined() else tf.ensure_shape(dense, variable.shape)


def _as_computed(gradient):
    """Returns a tensor for which an operation can wait."""
    if tf.executing_eagerly():
        return gradient
    if gradient.graph is tf.get_default_graph() and gradient.op.type != "Placeholder":
        return gradient
    # In a function, such as a branch of `tf.cond`, TensorFlow drops what waits for an argument.
    return tf.identity(gradient)


def _slots_of(pieces, shape):
    """Returns name -> `Slot` of a variable of a shape."""
    slots = {}
    for name, slot in itertools.chain(*(piece.slots(shape).items() for piece in pieces)):
        if name in slots:
            raise ValueError(
                f"Two pieces of {', '.join(map(repr, pieces))} have a slot {name!r}; give their "
                "slots different names."
            )
        slots[name] = slot
    return slots


def _read(variable):
    """Returns the variable's present value, by one operation if it is a resource variable."""
    if not hasattr(variable, "handle"):
        return variable.read_value()
    # `read_value` adds an identity, and a network has many variables.
    return _read_handle(variable.handle, variable.shape, variable.dtype)


def _read_handle(handle, shape, dtype):
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    value.set_shape(shape)
    return value


class ChainOptimizer(tf.train.Optimizer):
    """Passes each gradient through a chain of pieces and subtracts the result from its variable.

        optimizer = ChainOptimizer([ScaleByAdam(...), ScaleByLearningRate()], 1e-4, name="Adam")
        train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())

    A piece is a pure function of an update (see `Piece`); the first piece gets the gradient. All
    arithmetic is float32, whatever the variable's dtype.

    Slots are variables named `<variable>/<slot>`, as in google-research/bert. They are resource
    variables, not trainable, zero at first, and float32 unless a piece asks for another dtype.
    `tf.train.Saver` saves and restores them by these names, whatever scope surrounds the optimizer.

    The graph itself fixes the order of reading and assigning, so a step means the same in a
    Session, in a `tf.while_loop`, and compiled by XLA:

    1. Every gradient is computed before the first variable changes.
    2. Every new value of a variable and its slots is computed from their values before the update.
    3. The global step is incremented after everything else.

    Args:
      pieces: the pieces, in the order of their application; `ScaleByLearningRate` is one of them.
      learning_rate: a number; a float scalar tensor, such as a schedule returns for a step; or a
        function of a variable's name, such as "bert/pooler/dense/kernel", that returns either.
      name: prefix of the operations' names.

    Attributes:
      trust_ratios: dict from variable name to float32 scalar tensor: the trust ratios of the last
        `apply_gradients`. Variables that a `ScaleByTrustRatio` excludes are not in it.
      takes_parts: whether gradients may be `Part`s: all pieces take parts.
    """

    def __init__(self, pieces: Sequence[Piece], learning_rate: LearningRate, name: str):
        super().__init__(use_locking=False, name=name)
        self.trust_ratios = {}
        self.takes_parts = all(piece.takes_parts for piece in pieces)
        self._pieces, self._learning_rate = list(pieces), learning_rate
        self._slot_variables, self._zero_tensors = {}, {}

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[tf.Tensor | tf.IndexedSlices | None, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
        after: Sequence[tf.Tensor] = (),
        scale: tf.Tensor | None = None,
    ) -> tf.Operation:
        """Builds one update.

        Args:
          grads_and_vars: pairs of a gradient and its variable. A variable whose gradient is None
            stays as it is, without weight decay. A `tf.IndexedSlices` is made dense first. A `Part`
            is allowed if `takes_parts` is true.
          global_step: integer scalar variable, the number of updates applied so far. It is
            incremented once. Bias correction and Adafactor need it.
          name: prefix of the operations' names; the optimizer's name by default.
          after: tensors to compute before the first variable changes, as all gradients are.
          scale: float32 scalar, such as `clipping_scale` returns: every gradient is multiplied by
            it. The update does so while it reads the gradient, which saves writing it again.

        Returns:
          The operation that runs the whole update.

        Raises:
          ValueError: every gradient is None; a piece needs the number of the update, and
            global_step is None; a gradient is a `Part`, and a piece does not take parts; or two
            pieces have slots of one name.
        """
        pairs = [(gradient, v) for gradient, v in grads_and_vars if gradient is not None]
        if not pairs:
            raise ValueError(
                f"{self.get_name()}: no variable has a gradient. Check that the loss depends on "
                "the variables, and that every operation between them has a gradient."
            )
        if not self.takes_parts and any(isinstance(gradient, Part) for gradient, _ in pairs):
            raise ValueError(f"{self.get_name()}: its pieces do not take parts of gradients.")
        with tf.name_scope(name or self.get_name()):
            number = None
            if global_step is not None:
                # The number of this update, counted from 1, before anything increments the step.
                number = tf.cast(global_step.read_value() + 1, tf.float32)
            targets = [self._target(_dense_like(v, gradient), v) for gradient, v in pairs]
            computed = tf.group(*map(_as_computed, [*(t.gradient for t in targets), *after]))
            self.trust_ratios, assigned = {}, []
            for target in targets:
                operations, reports = _applied(target, number, scale, computed)
                if "trust_ratio" in reports:
                    self.trust_ratios[target.name] = reports["trust_ratio"]
                assigned += operations
            if global_step is None:
                return tf.group(*assigned)
            with tf.control_dependencies(assigned):
                return global_step.assign_add(1, read_value=False)

    def _target(self, gradient, variable):
        """Returns the `_Target` of a variable, whose slots are created at their first use."""
        name, shape = name_of(variable), tuple(variable.shape.as_list())
        pieces = tuple(piece for piece in (piece.of(name) for piece in self._pieces) if piece)
        slots = {k: self._slot(variable, k, slot) for k, slot in _slots_of(pieces, shape).items()}
        shards = None
        # The slots are made for the whole variable. From here on this core sees its part of them.
        if isinstance(gradient, Part):
            shards, axis, gradient = gradient.shards, gradient.axis, gradient.value
            slots = {k: shards.hold_part(slot, axis) for k, slot in slots.items()}
            variable = shards.hold_part(variable, axis)
        rate = self._learning_rate(name) if callable(self._learning_rate) else self._learning_rate
        rate = tf.cast(rate, tf.float32)
        return _Target(name, pieces, gradient, variable, slots, rate, math.prod(shape), shards)

    def slot_bytes(self, shape: tuple[int, ...]) -> int:
        """Returns the bytes of the slots of a variable of a shape that no piece leaves alone."""
        slots = _slots_of(self._pieces, shape).values()
        return sum(math.prod(slot.shape) * slot.dtype.size for slot in slots)

    def _slot(self, variable: tf.Variable, slot_name: str, slot: Slot) -> tf.Variable:
        """Returns the slot variable, which it creates at its first use."""
        key = (variable.ref(), slot_name)
        if key not in self._slot_variables:
            # A fresh root scope: the scope in which the optimizer is used must not give the slots
            # its name, dtype, getter or reuse.
            root = tf.VariableScope(reuse=False, name="", use_resource=True)
            with tf.variable_scope(root, auxiliary_name_scope=False):
                self._slot_variables[key] = tf.get_variable(
                    f"{name_of(variable)}/{slot_name}",
                    slot.shape,
                    dtype=slot.dtype,
                    initializer=self._zeros,
                    trainable=False,
                )
        return self._slot_variables[key]

    def _zeros(self, shape, dtype, partition_info=None):
        """Initializes slots: one tensor is for all slots of a shape and dtype."""
        key = (tf.get_default_graph(), tuple(shape), dtype)
        if key not in self._zero_tensors:
            self._zero_tensors[key] = tf.zeros(shape, dtype)
        return self._zero_tensors[key]

    def get_slot(self, var: tf.Variable, name: str) -> tf.Variable | None:
        """Returns the slot `name` ("adam_m") of a variable, or None if the slot does not exist."""
        return self._slot_variables.get((var.ref(), name))

    def get_slot_names(self) -> list[str]:
        """Returns the sorted names of the slots created so far."""
        return sorted({slot_name for _, slot_name in self._slot_variables})

    def variables(self) -> list[tf.Variable]:
        """Returns all slot variables, in the order of their creation."""
        return list(self._slot_variables.values())


class _Target(NamedTuple):
    """Holds a variable, or this core's part of it, and what a step updates it with."""

    name: str  # of the variable
    pieces: tuple[Piece, ...]
    gradient: tf.Tensor  # float32, or bfloat16 before a cast to float32
    variable: tf.Variable  # or, as the slots, what `Shards.hold_part` returns
    slots: dict[str, tf.Variable]
    rate: tf.Tensor
    size: int  # elements of the whole variable
    shards: Shards | None  # of a part


class _Subtract(Piece):
    """Ends every chain: the variable's new value."""

    elementwise = takes_parts = True

    def __call__(self, update, value, slots, step):
        return value - update, {}


_SUBTRACT = _Subtract()


def _applied(target, number, scale, computed):
    """Returns operations that update a variable and its slots once `computed` has run, and the
    pieces' reports by name."""
    pieces = (*target.pieces, _SUBTRACT)
    others = target.rate, number, scale
    if _is_compiled(target):
        handles = [target.variable.handle, *(slot.handle for slot in target.slots.values())]
        specs = _specs(target.gradient, *others, *handles)
        shape, dtype = tuple(target.variable.shape.as_list()), target.variable.dtype.base_dtype
        function = _in_place(pieces, shape, dtype, specs)
        with tf.control_dependencies([computed]):
            done, reports = function(target.gradient, *others, *handles)
        return [done.op], reports
    value = tf.cast(_read(target.variable), tf.float32)
    slots = {name: tf.cast(_read(slot), tf.float32) for name, slot in target.slots.items()}
    if target.shards or tf.executing_eagerly():
        total = [target.shards.sum] if target.shards else []
        value, new = _run(pieces, target.size, target.gradient, value, slots, *others, *total)
    else:
        # TensorFlow takes much longer to make an operation from Python than to run a small one. A
        # step of BERT-base updates 206 variables of few kinds: all updates of a kind are calls of
        # one function, which is traced once.
        tensors = target.gradient, value, *others, *slots.values()
        value, new = _traced(pieces, target.size, tuple(slots), _specs(*tensors))(*tensors)
    return _assign(target, value, new, computed), new


def _is_compiled(target):
    # A piece that takes parts sums apart from what else it computes. A reference variable has no
    # handle.
    return (
        target.size >= LEAST_ELEMENTS
        and all(piece.takes_parts for piece in target.pieces)
        and not (target.shards or tf.executing_eagerly() or in_xla_program())
        and hasattr(target.variable, "handle")
    )


def _specs(*tensors):
    return tuple(x if x is None else tf.TensorSpec(x.shape, x.dtype) for x in tensors)


def _run(pieces, size, update, value, slots, rate, number, scale, *sums):
    """Scales an update, passes it through pieces; returns the last one, and by name the new slots,
    in the dtypes in which they are stored, and the reports; sums are `total` and `half_square` of
    the `UpdateStep`s, if they are not the usual ones."""
    new, update = {}, tf.cast(update, tf.float32)
    if scale is not None:
        update = update * scale
    for piece in pieces:
        stored = piece.slots(tuple(value.shape.as_list()))
        step = UpdateStep(rate, number, size, piece, *sums)
        update, of_piece = piece(update, value, slots, step)
        for name, tensor in of_piece.items():
            new[name] = tensor if name in piece.reports else tf.cast(tensor, stored[name].dtype)
    return update, new


@functools.cache
def _traced(pieces, size, slot_names, specs):
    """Returns `_run` as a function of (update, value, rate, number, scale, *slots), for a core that
    has all of the variable."""

    def run(update, value, rate, number, scale, *slots):
        slots = dict(zip(slot_names, slots, strict=True))
        return _run(pieces, size, update, value, slots, rate, number, scale)

    # Traced in a graph of its own. Otherwise the function would keep the graph of its first call.
    with tf.Graph().as_default():
        return tf.function(run, autograph=False).get_concrete_function(*specs)


@functools.cache
def _in_place(pieces, shape, dtype, specs):
    """Returns a function of (gradient, rate, number, scale, handle of a variable, *handles of its
    slots) that updates them, and returns a scalar and the pieces' reports by name."""
    # At first, skip this function: it computes what `_traced` does, with less traffic to memory.
    # XLA writes what a computation assigns where the old value was, if nothing else holds that. A
    # computation ends before a piece that sums, with the addends of each sum. TensorFlow adds them,
    # and the next computation begins with the piece.
    stages = [[]]
    for piece in pieces:
        if not piece.elementwise:
            stages.append([])
        stages[-1].append(piece)
    slots_of, size = _slots_of(pieces, shape), math.prod(shape)

    def read(handle, *spec):
        return tf.cast(_read_handle(handle, *spec), tf.float32)

    def compute(stage, following, sums, update, rate, number, scale, handle, slots):
        sums, asked = iter(sums), []
        given = read(handle, shape, dtype), {k: read(slots[k], *slots_of[k]) for k in slots}, rate
        update, new = _run(stage, size, update, *given, number, scale, lambda _: next(sums))

        # What the next piece sums, only the piece knows. So it runs here as well, for this alone:
        # `ask` keeps the addends of each sum, which are returned, and gives NaN as the sum. What it
        # makes of NaN is dropped. The next computation runs it with the true sums.
        def ask(addends):
            asked.append(addends)
            return tf.constant(math.nan)  # for a sum that depends on another, see `Piece`

        _run(following[:1], size, update, *given, number, None, ask, addends_of_squares)
        for name in [name for name in slots if name in new]:
            tf.raw_ops.AssignVariableOp(resource=slots[name], value=new.pop(name))
        if following:
            return update, asked, new
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.cast(update, dtype))
        return None, [], new

    def run(update, rate, number, scale, handle, *slots):
        sums, reports, slots = [], {}, dict(zip(slots_of, slots, strict=True))
        for stage, following in itertools.zip_longest(stages, stages[1:], fillvalue=()):
            computation = functools.partial(compute, stage, following)
            computation = tf.function(computation, jit_compile=True, autograph=False)
            tensors = sums, update, rate, number, scale, handle, slots
            update, asked, new = computation(*tensors)
            sums, scale, reports = [*map(tf.reduce_sum, asked)], None, {**reports, **new}
        return tf.constant(True), reports

    with tf.Graph().as_default():
        return tf.function(run, autograph=False).get_concrete_function(*specs)


def _assign(target, new_value, new, computed):
    """Returns operations that assign a variable and its slots, once `computed` has run."""
    pairs = [(slot, new[name]) for name, slot in target.slots.items() if name in new]
    pairs.append((target.variable, tf.cast(new_value, target.variable.dtype.base_dtype)))
    # Each variable waits for its own new values only, so these can be freed as soon as they are
    # assigned. If it waited for all variables, three more copies of the model would be alive at
    # once.
    with tf.control_dependencies([computed, *[value for _, value in pairs]]):
        return [stored.assign(value, read_value=False) for stored, value in pairs]
