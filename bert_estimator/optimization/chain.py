"""ChainOptimizer: an optimizer as a chain of small pieces, with the interface of TF1's optimizers.

`Parameter` is what a piece sees of a variable; `to_dense_float32` is how gradients enter the chain.
"""

import functools
from collections.abc import Callable, Iterable, Sequence

import tensorflow.compat.v1 as tf

from bert_estimator.optimization.parts import Part


def name_of(variable: tf.Variable) -> str:
    """Returns the variable's name as checkpoints have it: without the ":0" of its tensor."""
    return variable.name.rsplit(":", 1)[0]


def to_dense_float32(gradient: tf.Tensor | tf.IndexedSlices | None) -> tf.Tensor | None:
    """Makes a gradient dense and float32. No other function turns sparse gradients into dense ones.

    The gradient of an embedding lookup is an `IndexedSlices` with a row for each looked-up id. Rows
    of the same id are summed here, in float32, because what follows needs the sum: the norm of a
    sum differs from the norm of its parts.

    Args:
      gradient: float tensor of any shape, a `tf.IndexedSlices` with a dense shape, or None.

    Returns:
      A float32 tensor of the variable's shape; None if `gradient` is None.

    Raises:
      ValueError: an `IndexedSlices` does not know its dense shape.
    """
    if gradient is None:
        return None
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.cast(gradient, tf.float32)
    if gradient.dense_shape is None:
        raise ValueError(
            f"Sparse gradient {gradient.values.name} has no dense_shape, so its duplicate rows "
            "cannot be summed; build the IndexedSlices with dense_shape=tf.shape(variable)."
        )
    return tf.math.unsorted_segment_sum(
        tf.cast(gradient.values, tf.float32), gradient.indices, gradient.dense_shape[0]
    )


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
        itself would become an operation wherever it is used, up to 13 for each variable.
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
        self._read_slots = {}
        self._new_slots = []

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
        slot = self._slots(slot_name, self._variable.shape if shape is None else shape, dtype)
        if self._part is not None:
            slot = self._part.shards.hold_part(slot, self._part.axis)
        self._read_slots[slot_name] = slot
        return tf.cast(_read(slot), tf.float32)

    def set_slot(self, slot_name: str, value: tf.Tensor) -> None:
        """Leaves the value after the update, a float32 tensor, of a slot that was read before."""
        slot = self._read_slots[slot_name]
        self._new_slots.append((slot, tf.cast(value, slot.dtype.base_dtype)))

    def total(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns a sum over the variable's elements.

        Args:
          tensor: the sum over the elements of `value`, or of an update.
        """
        return tensor if self._part is None else self._part.shards.sum(tensor)

    @property
    def num_elements(self) -> int:
        """Returns how many elements the variable has."""
        return self._variable.shape.num_elements()

    def assignments(self, update: tf.Tensor) -> list[tuple[tf.Variable, tf.Tensor]]:
        """Returns (variable, new value of its dtype) for each slot, then for the variable itself.

        Args:
          update: float32 tensor of the shape of `value`, which is subtracted from the variable.
        """
        new_value = tf.cast(self.value - update, self._held.dtype.base_dtype)
        return [*self._new_slots, (self._held, new_value)]


def _read(variable):
    """Returns the variable's present value, by one operation if it is a resource variable.

    `read_value` adds an identity, and a network has many variables.
    """
    if not hasattr(variable, "handle"):
        return variable.read_value()
    value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
    value.set_shape(variable.shape)
    return value


def _tensor_of(gradient):
    return gradient.value if isinstance(gradient, Part) else gradient


Piece = Callable[[tf.Tensor, Parameter], tf.Tensor]


class ChainOptimizer(tf.train.Optimizer):
    """Passes each gradient through a chain of pieces and subtracts the result from its variable.

        optimizer = ChainOptimizer([ScaleByAdam(...), ScaleByLearningRate(1e-4)], name="Adam")
        train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())

    A piece is a callable `piece(update, parameter) -> update` (see `Parameter`); the first piece
    gets the gradient. All arithmetic is float32, whatever the variable's dtype.

    Slots are variables named `<variable>/<slot>`, as in google-research/bert. They are resource
    variables, not trainable, zero at first, and float32 unless a piece asks for another dtype.
    `tf.train.Saver` saves and restores them by these names, whatever scope the optimizer is used
    in.

    The graph itself fixes the order of reading and assigning, so a step means the same in a
    Session, in a `tf.while_loop`, and compiled by XLA:

    1. Every gradient is computed before the first variable changes.
    2. All new values of a variable and its slots are computed before the first of them is assigned.
    3. The global step is incremented after everything else.

    Attributes:
      trust_ratios: dict from variable name to float32 scalar tensor: the trust ratios of the last
        `apply_gradients`. Variables that a `ScaleByTrustRatio` excludes are not in it.
      takes_parts: whether gradients may be `Part`s. All pieces must have an attribute `takes_parts`
        that is true: a piece that takes parts sums over a variable's elements by
        `Parameter.total`.
    """

    def __init__(self, pieces: Sequence[Piece], name: str):
        """Keeps the pieces, in the order of their application."""
        super().__init__(use_locking=False, name=name)
        self.trust_ratios = {}
        self.takes_parts = all(getattr(piece, "takes_parts", False) for piece in pieces)
        self._pieces = list(pieces)
        self._slot_variables = {}

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[tf.Tensor | tf.IndexedSlices | None, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Builds one update.

        Args:
          grads_and_vars: pairs of a gradient and its variable. A variable whose gradient is None
            stays as it is, without weight decay. A `tf.IndexedSlices` is made dense first. A `Part`
            is allowed if `takes_parts` is true.
          global_step: integer scalar variable, the number of updates applied so far. It is
            incremented once. Bias correction and Adafactor need it.
          name: prefix of the operations' names; the optimizer's name by default.

        Returns:
          The operation that runs the whole update.

        Raises:
          ValueError: every gradient is None; a piece needs the number of the update, and
            global_step is None; or a gradient is a `Part`, and a piece does not take parts.
        """
        grads_and_vars = list(grads_and_vars)
        if not self.takes_parts and any(
            isinstance(gradient, Part) for gradient, _ in grads_and_vars
        ):
            raise ValueError(f"{self.get_name()}: its pieces do not take parts of gradients.")
        dense = [
            (gradient if isinstance(gradient, Part) else to_dense_float32(gradient), variable)
            for gradient, variable in grads_and_vars
            if gradient is not None
        ]
        if not dense:
            raise ValueError(
                f"{self.get_name()}: no variable has a gradient. Check that the loss depends on "
                "the variables, and that every operation between them has a gradient."
            )
        self.trust_ratios = {}
        with tf.name_scope(name or self.get_name()):
            update_number = None
            if global_step is not None:
                update_number = tf.cast(global_step.read_value() + 1, tf.float32)
            all_gradients = tf.group(*[_tensor_of(gradient) for gradient, _ in dense])
            constant = functools.cache(lambda number: tf.constant(number, tf.float32))
            assigned = []
            for gradient, variable in dense:
                slots = functools.partial(self._slot, variable)
                part = gradient if isinstance(gradient, Part) else None
                parameter = Parameter(variable, update_number, slots, constant, part)
                assigned += self._assign(_tensor_of(gradient), parameter, all_gradients)
            if global_step is None:
                return tf.group(*assigned)
            with tf.control_dependencies(assigned):
                return global_step.assign_add(1, read_value=False)

    def _assign(self, gradient, parameter, after):
        """Returns operations that assign one variable and its slots, once `after` has run."""
        update = gradient
        for piece in self._pieces:
            update = piece(update, parameter)
        if parameter.trust_ratio is not None:
            self.trust_ratios[parameter.name] = parameter.trust_ratio
        assignments = parameter.assignments(update)
        # Each variable waits for its own new values only, so these can be freed as soon as they are
        # assigned. If it waited for all variables, three more copies of the model would be alive at
        # once.
        with tf.control_dependencies([after, *[value for _, value in assignments]]):
            return [target.assign(value, read_value=False) for target, value in assignments]

    def _slot(self, variable, slot_name, shape, dtype):
        """Returns the slot variable, which it creates at its first use."""
        key = (variable.ref(), slot_name)
        if key not in self._slot_variables:
            # A fresh root scope: the scope in which the optimizer is used must not give the slots
            # its name, dtype, getter or reuse.
            with tf.variable_scope(
                tf.VariableScope(reuse=False, name="", use_resource=True),
                auxiliary_name_scope=False,
            ):
                self._slot_variables[key] = tf.get_variable(
                    f"{name_of(variable)}/{slot_name}",
                    shape,
                    dtype=dtype,
                    initializer=tf.zeros_initializer(),
                    trainable=False,
                )
        return self._slot_variables[key]

    def get_slot(self, var: tf.Variable, name: str) -> tf.Variable | None:
        """Returns the slot `name` ("adam_m") of a variable, or None if the slot does not exist."""
        return self._slot_variables.get((var.ref(), name))

    def get_slot_names(self) -> list[str]:
        """Returns the sorted names of the slots created so far."""
        return sorted({slot_name for _, slot_name in self._slot_variables})

    def variables(self) -> list[tf.Variable]:
        """Returns all slot variables, in the order of their creation."""
        return list(self._slot_variables.values())
