"""ChainOptimizer: an optimizer as a chain of small pieces, with the interface of TF1's."""

import functools

import tensorflow.compat.v1 as tf

from bert_estimator.optimization.gradients import to_dense_float32
from bert_estimator.optimization.parameter import Parameter, name_of


class ChainOptimizer(tf.train.Optimizer):
    """Passes each gradient through a chain of pieces and subtracts the result from its variable.

        optimizer = ChainOptimizer([ScaleByAdam(...), ScaleByLearningRate(1e-4)], name="Adam")
        train_op = optimizer.minimize(loss, global_step=tf.train.get_global_step())

    A piece is a callable `piece(update, parameter) -> update` (see `parameter.Parameter`); the
    first one gets the gradient. All arithmetic is float32, whatever the variable's dtype.

    Slots are variables named `<variable>/<slot>`, as in google-research/bert: resource, not
    trainable, zero at first, float32 unless a piece has it otherwise. `tf.train.Saver` saves and
    restores them by these names, whatever scope the optimizer is used in.

    The order of reading and assigning is fixed by the graph itself, so a step means the same in a
    Session, in a `tf.while_loop`, and compiled by XLA: every gradient is computed before the first
    variable changes, all new values of a variable and its slots before the first of them is
    assigned, and the global step is incremented after everything else.

    Attributes:
        trust_ratios: dict from variable name to float32 scalar tensor, of the last
            `apply_gradients`: the variables that a ScaleByTrustRatio of the chain scaled. Excluded
            variables, whose ratio is 1, are not in it.
    """

    def __init__(self, pieces, name):
        """Keeps the pieces, in the order of their application."""
        super().__init__(use_locking=False, name=name)
        self.trust_ratios = {}
        self._pieces = list(pieces)
        self._slot_variables = {}

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Builds one update.

        Args:
            grads_and_vars: iterable of (gradient, variable); a variable whose gradient is None
                stays as it is, without weight decay. A `tf.IndexedSlices` is made dense first.
            global_step: integer scalar variable, the number of updates applied so far. It is
                incremented once. Required for bias correction.
            name: prefix of the operations' names; the optimizer's own by default.

        Returns:
            The operation that does it all.

        Raises:
            ValueError: every gradient is None; or a chain with bias correction gets no global_step.
        """
        dense = [
            (to_dense_float32(gradient), variable)
            for gradient, variable in grads_and_vars
            if gradient is not None
        ]
        if not dense:
            raise ValueError(
                f"{self.get_name()}: no variable has a gradient; check that the loss depends on "
                "them, and that nothing on the way is without a gradient."
            )
        self.trust_ratios = {}
        with tf.name_scope(name or self.get_name()):
            update_number = None
            if global_step is not None:
                update_number = tf.cast(global_step.read_value() + 1, tf.float32)
            all_gradients = tf.group(*[gradient for gradient, _ in dense])
            assigned = []
            for gradient, variable in dense:
                assigned += self._assign(gradient, variable, update_number, all_gradients)
            if global_step is None:
                return tf.group(*assigned)
            with tf.control_dependencies(assigned):
                return global_step.assign_add(1, read_value=False)

    def _assign(self, gradient, variable, update_number, after):
        """Operations that assign one variable and its slots, once `after` has run."""
        slots = functools.partial(self._slot, variable)
        parameter = Parameter(variable, update_number, slots)
        update = gradient
        for piece in self._pieces:
            update = piece(update, parameter)
        if parameter.trust_ratio is not None:
            self.trust_ratios[parameter.name] = parameter.trust_ratio
        assignments = parameter.assignments(update)
        # Waiting per variable, not for the new values of all of them, lets each be dropped when it
        # is assigned: three more copies of the model would else be alive at once.
        with tf.control_dependencies([after, *[value for _, value in assignments]]):
            return [target.assign(value, read_value=False) for target, value in assignments]

    def _slot(self, variable, slot_name, shape, dtype):
        """The slot variable, created at its first use."""
        key = (variable.ref(), slot_name)
        if key not in self._slot_variables:
            # A fresh root scope: neither the names, the dtypes, the getters nor the reuse of the
            # scope in which the optimizer happens to be used belong to the slots.
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

    def get_slot(self, var, name):
        """The slot `name` ("adam_m") of a variable, or None if there is none."""
        return self._slot_variables.get((var.ref(), name))

    def get_slot_names(self):
        """Sorted list of the names of the slots created so far."""
        return sorted({slot_name for _, slot_name in self._slot_variables})

    def variables(self):
        """List of all slot variables, in the order of their creation."""
        return list(self._slot_variables.values())
