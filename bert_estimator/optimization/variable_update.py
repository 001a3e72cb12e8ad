"""The update of a variable by the pieces of a chain: as operations, or as a call of a function."""

import functools
import itertools
from collections.abc import Sequence

import tensorflow.compat.v1 as tf

from bert_estimator.graph.graph_walk import in_xla_program
from bert_estimator.optimization.piece import Piece, Slots, Step

# Each operation of an update reads and writes memory for every weight. As one XLA computation, the
# elementwise pieces of LAMB read the gradient, the variable and its two moments once, and write two
# moments and the update. For fewer weights than this, a computation saves less in a whole training
# than it takes to compile it.
_LEAST_ELEMENTS = 1 << 18


class _Subtract(Piece):
    """Ends every chain: the variable's new value."""

    elementwise = takes_parts = True

    def __call__(self, update, value, slots, step):
        return value - update, {}


_SUBTRACT = _Subtract()


def new_values(
    pieces: Sequence[Piece],
    update: tf.Tensor,
    value: tf.Tensor,
    slots: Slots,
    step: Step,
    compiles: bool = False,
) -> tuple[tf.Tensor, Slots]:
    """Returns the variable's value and its slots after an update.

    Args:
      pieces: the pieces for this variable.
      update: the gradient, float32.
      value: float32 of the same shape, the variable before the update.
      slots: slot name -> float32 value before the update.
      step: the step.
      compiles: whether the first elementwise pieces are one XLA computation. The others are not
        compiled: what comes before the first sum over the weights has the most operations.

    Returns:
      (value, slots): float32, and the slots in the dtypes in which they are stored.
    """
    new_slots = {}
    runs = itertools.groupby([*pieces, _SUBTRACT], lambda piece: piece.elementwise)
    for place, (elementwise, run) in enumerate(runs):
        apply = _compiled if compiles and elementwise and place == 0 else _apply
        update, new = apply(tuple(run), update, value, slots, step)
        new_slots.update(new)
    return update, new_slots


def _apply(pieces, update, value, slots, step):
    new = {}
    for piece in pieces:
        described = piece.slots(tuple(value.shape.as_list()))
        update, of_piece = piece(update, value, slots, step)
        new.update({name: tf.cast(each, described[name].dtype) for name, each in of_piece.items()})
    return update, new


def _compiled(pieces, update, value, slots, step):
    """Does what `_apply` does, as one XLA computation."""

    def function(update, value, slots, scalars):
        return _apply(pieces, update, value, slots, Step(*scalars))

    compiled = tf.function(function, jit_compile=True, autograph=False)
    return compiled(update, value, slots, step.scalars)


def call(
    pieces: Sequence[Piece], update: tf.Tensor, value: tf.Tensor, slots: Slots, step: Step
) -> tuple[tf.Tensor, Slots, dict[str, tf.Tensor]]:
    """Does what `new_values` does, as a call of a function; see there for the arguments.

    TensorFlow takes much longer to make an operation from Python than to run a small one. A step of
    BERT-base updates 206 variables of few kinds: all updates of a kind are calls of one function,
    which is traced once.

    Args:
      step: a step in which this core has all of the variable.

    Returns:
      (value, slots, reports).
    """
    tensors = [update, value, *slots.values(), *step.scalars]
    specs = tuple(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors)
    compiles = step.size >= _LEAST_ELEMENTS and not in_xla_program()
    return _function(tuple(pieces), tuple(slots), specs, step.size, compiles)(*tensors)


@functools.cache
def _function(pieces, slot_names, specs, size, compiles):
    def function(update, value, *others):
        slots = dict(zip(slot_names, others, strict=False))
        step = Step(*others[len(slots) :], size=size)
        return *new_values(pieces, update, value, slots, step, compiles), step.reports

    # Traced in a graph of its own. Otherwise the function would keep the graph of its first call.
    with tf.Graph().as_default():
        traced = tf.function(function, autograph=False)
        return traced.get_concrete_function(*specs)
