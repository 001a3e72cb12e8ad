"""Parameter: one variable during one update, as the pieces of an optimizer see it."""

import tensorflow.compat.v1 as tf


class Parameter:
    """One variable during one update: its old value, its slots, and what is to be assigned.

    A piece of an optimizer is a callable `piece(update, parameter) -> update`. It reads old values
    here, and leaves new ones here; nothing is assigned before every new value of the variable is
    computed, so a piece can never see a half-updated state.

    Attributes:
        name: the variable's name, without the ":0".
        value: float32 tensor of the variable's shape, its value before the update.
        trust_ratio: float32 scalar tensor, set by the piece that scales by it; else None.
    """

    def __init__(self, variable, update_number, slots):
        """Reads the variable.

        Args:
            variable: a variable of static shape and a float dtype.
            update_number: float32 scalar tensor, the 1-based number of this update; None if the
                caller has no step.
            slots: callable (slot name, shape, dtype) -> the slot variable, creating it (zeros) when
                needed.
        """
        self.name = name_of(variable)
        self.value = tf.cast(variable.read_value(), tf.float32)
        self.trust_ratio = None
        self._variable = variable
        self._update_number = update_number
        self._slots = slots
        self._read_slots = {}
        self._new_slots = []

    @property
    def update_number(self):
        """float32 scalar tensor: 1 in the first update, 2 in the second.

        Raises:
            ValueError: no step was given.
        """
        if self._update_number is None:
            raise ValueError(
                "This optimizer (bias_correction=True, or Adafactor) depends on the number of the "
                "update: give apply_gradients or minimize global_step=tf.train.get_global_step() "
                "(it is then incremented there, so do not increment it as well)."
            )
        return self._update_number

    def slot(self, slot_name, shape=None, dtype=tf.float32):
        """The slot's value before the update, a float32 tensor.

        Args:
            slot_name: its name below the variable's.
            shape: static shape; None is the variable's.
            dtype: what it is stored as.
        """
        shape = self.value.shape if shape is None else shape
        slot = self._slots(slot_name, shape, dtype)
        self._read_slots[slot_name] = slot
        return tf.cast(slot.read_value(), tf.float32)

    def set_slot(self, slot_name, value):
        """Leaves the value after the update, a float32 tensor, of a slot that was read."""
        slot = self._read_slots[slot_name]
        self._new_slots.append((slot, tf.cast(value, slot.dtype.base_dtype)))

    def assignments(self, update):
        """What the update comes to.

        Args:
            update: float32 tensor of the variable's shape, to be subtracted from it.

        Returns:
            List of (variable, new value of its dtype): the slots, then the variable itself.
        """
        new_value = tf.cast(self.value - update, self._variable.dtype.base_dtype)
        return [*self._new_slots, (self._variable, new_value)]


def name_of(variable):
    """The variable's name as checkpoints have it: without the ":0" of its tensor."""
    return variable.name.rsplit(":", 1)[0]
