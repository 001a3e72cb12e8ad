"""Parameter: what a piece reads and leaves."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.optimization.parameter import Parameter, name_of


def test_name_has_no_tensor_suffix():
    with tf.Graph().as_default(), tf.variable_scope("bert/pooler"):
        assert name_of(tf.get_variable("kernel", [2])) == "bert/pooler/kernel"


def test_a_bfloat16_variable_is_updated_in_float32_and_stored_as_it_was():
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable("w", initializer=tf.constant([1.0, 2.0], tf.bfloat16))
        parameter = Parameter(variable, update_number=None, slots=None)
        assert parameter.value.dtype == tf.float32
        ((target, value),) = parameter.assignments(tf.constant([0.5, 2**-9]))
        assert target is variable
        assert value.dtype == tf.bfloat16
        session.run(variable.initializer)
        np.testing.assert_array_equal(session.run(tf.cast(value, tf.float32)), [0.5, 2.0])


def test_new_slots_are_not_visible_before_they_are_assigned():
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable("w", initializer=[1.0])
        slot = tf.get_variable("w/m", initializer=[5.0])
        parameter = Parameter(variable, update_number=None, slots=lambda *_: slot)
        parameter.set_slot("m", parameter.slot("m") + 1.0)
        session.run([variable.initializer, slot.initializer])
        assert session.run(parameter.slot("m")) == 5.0
        targets, values = zip(*parameter.assignments(tf.constant([0.25])), strict=True)
        assert targets == (slot, variable)
        assert session.run(list(values)) == [6.0, 0.75]


def test_update_number_that_is_not_known_is_an_error():
    with tf.Graph().as_default():
        parameter = Parameter(tf.get_variable("w", [1]), update_number=None, slots=None)
        with pytest.raises(ValueError, match=r"give apply_gradients or minimize global_step="):
            _ = parameter.update_number
