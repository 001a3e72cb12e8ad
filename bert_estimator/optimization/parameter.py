"""Parameter: what a piece of an optimizer sees of a variable during an update."""

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from bert_estimator.optimization.parts import Part


def name_of(variable: tf.Variable) -> str:
    """Returns the variable's name as checkpoints have it: without the ":0" of its tensor."""
    return variable.name.rsplit(":", 1)[0]


class Parameter:
    """Holds one variable during one update: its old value, its slots, and the values to assign.

    A piece of an optimizer is a callable `piece(update, parameter) -> update`. It reads the old
    values from its `Parameter` and leaves new values of slots there. Nothing is assigned before
    every new value of the variable is computed, so a piece never sees a half-updated state.

    Attributes:
      name: the variable's name, without the ":0" of its tensor.
      value: float32 tensor of the variable's shape, its value before the update; this core's part
        of it if the gradient is a `Part`. Then updates and slots are parts, too.
      trust_ratio: float32 scalar tensor, set by a piece that scales by it; else None.
      constant: function number -> float32 scalar tensor, which all variables share. A number
        would become a new operation at each use, up to 13 for each variable.
    """

    def __init__(
        self,
        variable: tf.Variable,
        update_number: tf.Tensor | None,
        slots: Callable[[str, tf.TensorShape, tf.DType], tf.Variable],
        constant: Callable[[float], tf.Tensor] = tf.constant,
        part: Part | None = None,
    ):
        """Reads the variable.

        Args:
          variable: a variable of static shape and a float dtype.
          update_number: float32 scalar tensor, the number of this update, counted from 1; None if
            the caller has no global step.
          slots: function (slot name, shape, dtype) -> the slot variable, which it creates at its
            first use, with zeros.
          constant: function number -> float32 scalar tensor, the same tensor for each variable.
          part: the gradient, if this core updates a part of the variable.
        """
        self.name = name_of(variable)
        self._part = part
        self._held = variable if part is None else part.shards.hold_part(variable, part.axis)
        self.value = tf.cast(_read(self._held), tf.float32)
        self.trust_ratio = None
        self._variable = variable
        self._update_number = update_number
        self._slots = slots
        self.constant = constant
        self._requests = []  # the arguments of each call of `slot`
        self._old_values = [self.value]  # before the update: the variable's, then the slots'
        self._read_slots = {}
        self._new_slots = {}

    @property
    def update_number(self) -> tf.Tensor:
        """Returns a float32 scalar tensor: 1 in the first update, 2 in the second.

        Raises:
          ValueError: no global step was given.
        """
        if self._update_number is None:
            raise ValueError(
                "This optimizer (bias_correction=True, or Adafactor) depends on the number of the "
                "update: give apply_gradients or minimize global_step=tf.train.get_global_step() "
                "(it is then incremented there, so do not increment it as well)."
            )
        return self._update_number

    def slot(
        self,
        slot_name: str,
        shape: tf.TensorShape | None = None,
        dtype: tf.DType = tf.float32,
    ) -> tf.Tensor:
        """Returns the slot's value before the update, a float32 tensor.

        Args:
          slot_name: the slot's name below the variable's.
          shape: static shape; None is the variable's shape.
          dtype: the dtype in which the slot is stored.
        """
        self._requests.append((slot_name, shape, dtype))
        slot = self._slots(slot_name, self._variable.shape if shape is None else shape, dtype)
        if self._part is not None:
            slot = self._part.shards.hold_part(slot, self._part.axis)
        self._read_slots[slot_name] = slot
        value = tf.cast(_read(slot), tf.float32)
        self._old_values.append(value)
        return value

    def set_slot(self, slot_name: str, value: tf.Tensor) -> None:
        """Leaves the value after the update, a float32 tensor, of a slot that was read before."""
        dtype = self._read_slots[slot_name].dtype.base_dtype
        self._new_slots[slot_name] = tf.cast(value, dtype)

    def total(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns a sum over all of the variable's elements, on whichever cores they are.

        Args:
          tensor: a scalar, the sum over the elements that this core has of the value or an update.
        """
        return tensor if self._part is None else self._part.shards.sum(tensor)

    @property
    def num_elements(self) -> int:
        """Returns how many elements the variable has."""
        return self._variable.shape.num_elements()

    def apply(
        self, pieces: Sequence["Piece"], gradient: tf.Tensor
    ) -> list[tuple[tf.Variable, tf.Tensor]]:
        """Returns the `assignments` after all pieces, of which the first one gets the gradient."""
        update = gradient
        for piece in pieces:
            update = piece(update, self)
        return self.assignments(update)

    def assignments(self, update: tf.Tensor) -> list[tuple[tf.Variable, tf.Tensor]]:
        """Returns (variable, new value of its dtype) for each slot, then for the variable itself.

        Args:
          update: float32 tensor of the shape of `value`, which is subtracted from the variable.
        """
        new_value = tf.cast(self.value - update, self._held.dtype.base_dtype)
        return self._targets(self._new_slots, [*self._new_slots.values(), new_value])

    def _targets(self, slot_names, values):
        slots = [self._read_slots[name] for name in slot_names]
        return list(zip([*slots, self._held], values, strict=True))

    @property
    def shape_and_dtype(self) -> tuple | None:
        """Returns the variable's; None if this core updates a part, which cannot be copied."""
        if self._part is not None:
            return None
        return tuple(self._variable.shape.as_list()), self._variable.dtype.base_dtype

    @property
    def inputs(self) -> list[tf.Tensor]:
        """Returns what pieces read of the variable: `value`, then the slots in their order."""
        return self._old_values

    def inputs_like(self, first: "Parameter") -> list[tf.Tensor]:
        """Reads the slots that pieces read of another parameter; returns the `inputs`."""
        for slot_name, shape, dtype in first._requests:
            self.slot(slot_name, shape, dtype)
        return self.inputs

    def assignments_like(
        self, first: "Parameter", values: list[tf.Tensor]
    ) -> list[tuple[tf.Variable, tf.Tensor]]:
        """Returns assignments to this variable and its slots, in the order of another one's."""
        return self._targets(first._new_slots, values)


def _read(variable):
    """Returns the variable's present value, by one operation if it is a resource variable.

    `read_value` adds an identity, and a network has many variables.
    """
    if not hasattr(variable, "handle"):
        return variable.read_value()
    value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    value.set_shape(variable.shape)
    return value


Piece = Callable[[tf.Tensor, Parameter], tf.Tensor]
"""A function of an update and its parameter that returns another update.

It may have two attributes, which make it quicker. `takes_parts` says whether updates may be parts
of a variable's. `kind` is a function of a variable's name to something hashable: if two variables
have the same shape, dtype and kind, the piece computes their updates by the same operations. Then
it is called for the first of them only, and the operations are copied for the others. Apart from
`kind`, such a piece must not depend on the name, and it must keep all its state in slots. It is
called for each variable all the same if its operations are stateful (random numbers, assertions,
Python), wait for other operations, or have a loop of TF1's control flow. So is a piece without
`kind`, or with the kind None. A subclass with another `__call__` does not inherit the two, nor does
a function by `functools.wraps`. In sessions, XLA compiles the operations on a large variable that
need no sum over it, and may regroup products and quotients: no grouping of them should overflow.
"""


def alike(name: str) -> str:
    """Returns the `kind` of a variable for a piece that updates all of them alike."""
    return "alike"
