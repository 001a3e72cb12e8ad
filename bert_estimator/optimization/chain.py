"""ChainOptimizer: an optimizer as a chain of small pieces, with the interface of TF1's optimizers.

`to_dense_float32` is how gradients enter the chain.
"""

import functools
from collections.abc import Iterable, Sequence

import tensorflow.compat.v1 as tf

from bert_estimator.optimization.copies import FirstUpdate, is_in
from bert_estimator.optimization.parameter import Parameter, Piece, name_of
from bert_estimator.optimization.parts import Part


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


def _dense_like(variable, gradient):
    """Returns `to_dense_float32` of a gradient, with the variable's static shape."""
    dense = to_dense_float32(gradient)
    # Pieces may ask for the shape, which Python functions and lookups of any number of rows hide.
    return dense if dense.shape.is_fully_defined() else tf.ensure_shape(dense, variable.shape)


def _tensor_of(gradient):
    return gradient.value if isinstance(gradient, Part) else gradient


def _as_computed(gradient):
    """Returns a tensor for which an operation can wait.

    In a function, such as a branch of `tf.cond`, TensorFlow drops what waits for an argument.
    """
    if tf.executing_eagerly():
        return gradient
    if is_in(tf.get_default_graph(), gradient) and gradient.op.type != "Placeholder":
        return gradient
    return tf.identity(gradient)


def _assign(assignments, after):
    """Returns operations that assign one variable and its slots, once `after` has run."""
    # Each variable waits for its own new values only, so these can be freed as soon as they are
    # assigned. If it waited for all variables, three more copies of the model would be alive at
    # once.
    with tf.control_dependencies([after, *[value for _, value in assignments]]):
        return [target.assign(value, read_value=False) for target, value in assignments]


def _attribute(piece, name, default):
    """Returns an attribute that says what the piece's `__call__` does.

    A subclass that has another `__call__` does not inherit it, nor does a function that
    `functools.wraps` gave the attributes of another one.
    """
    for owner in (piece, *type(piece).__mro__):
        own = getattr(owner, "__dict__", {})
        if name in own and "__wrapped__" not in own:
            return getattr(piece, name)
        if "__call__" in own:
            break
    return default


def _always_none(name):
    return None


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
        self.takes_parts = all(_attribute(piece, "takes_parts", False) for piece in pieces)
        self._pieces = list(pieces)
        self._slot_variables, self._zero_tensors = {}, {}

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
            (gradient if isinstance(gradient, Part) else _dense_like(variable, gradient), variable)
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
            constant = functools.cache(lambda number: tf.constant(number, tf.float32))
            parameters = []
            for gradient, variable in dense:
                slots = functools.partial(self._slot, variable)
                part = gradient if isinstance(gradient, Part) else None
                parameters.append(Parameter(variable, update_number, slots, constant, part))
            gradients = [_tensor_of(gradient) for gradient, _ in dense]
            all_gradients = tf.group(*map(_as_computed, gradients))
            assignments = self._assignments(gradients, parameters)
            assigned = []
            for parameter in parameters:
                if parameter.trust_ratio is not None:
                    self.trust_ratios[parameter.name] = parameter.trust_ratio
                assigned += _assign(assignments[parameter], all_gradients)
            if global_step is None:
                return tf.group(*assigned)
            with tf.control_dependencies(assigned):
                return global_step.assign_add(1, read_value=False)

    def _assignments(self, gradients, parameters):
        """Returns a dict from each parameter to its assignments.

        The pieces compute the first update of a kind. Further updates of the kind are copies of it.
        """
        assignments, firsts = {}, {}
        for gradient, parameter in zip(gradients, parameters, strict=True):
            kind = self._kind(parameter)
            if kind is None:
                assignments[parameter] = parameter.apply(self._pieces, gradient)
            elif kind in firsts:
                firsts[kind].add(gradient, parameter)
            else:
                firsts[kind] = FirstUpdate(self._pieces, gradient, parameter)
        for first in firsts.values():
            assignments.update(first.assignments())
        return assignments

    def _kind(self, parameter):
        """Returns what is equal for variables that are updated alike.

        It is None if this core updates a part of the variable, or a piece must be called for it, or
        there is no graph.
        """
        kinds = [_attribute(piece, "kind", _always_none)(parameter.name) for piece in self._pieces]
        if parameter.shape_and_dtype is None or None in kinds or tf.executing_eagerly():
            return None
        return (parameter.shape_and_dtype, *kinds)

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
