"""Helpers that run an optimizer, or a piece of an optimizer, on given numbers."""

import contextlib

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.optimization.parameter import Parameter


def run(make_optimizer, initial, gradients, learning_rates):
    """Runs an update for each entry of `gradients` in a Session.

    Args:
      make_optimizer: function (learning rate, a float32 scalar tensor) -> a ChainOptimizer.
      initial: dict from variable name to its first value.
      gradients: list of dicts like `initial`.
      learning_rates: list of floats.

    Returns:
      A list with a dict for each update: "param", "trust_ratio", and Adam's "m" and "v" are dicts
      by variable name; "global_step" is a number.
    """
    history = []
    with tf.Graph().as_default(), tf.Session() as session:
        rate = tf.placeholder(tf.float32, [])
        optimizer = make_optimizer(rate)
        variables = {
            name: tf.get_variable(name, initializer=np.array(value, np.float32))
            for name, value in initial.items()
        }
        feeds = {name: tf.placeholder(tf.float32, v.shape) for name, v in variables.items()}
        global_step = tf.train.create_global_step()
        train_op = optimizer.apply_gradients(
            [(feeds[name], variables[name]) for name in variables], global_step
        )
        session.run(tf.global_variables_initializer())
        for now, learning_rate in zip(gradients, learning_rates, strict=True):
            feed = {rate: learning_rate, **{feeds[name]: now[name] for name in now}}
            _, ratios = session.run([train_op, optimizer.trust_ratios], feed)
            state = {"param": variables, "global_step": global_step, "m": {}, "v": {}}
            if "adam_m" in optimizer.get_slot_names():
                for name, variable in variables.items():
                    state["m"][name] = optimizer.get_slot(variable, "adam_m")
                    state["v"][name] = optimizer.get_slot(variable, "adam_v")
            history.append({**session.run(state), "trust_ratio": ratios})
    return history


def apply_piece(piece, value, update, name="w"):
    """Applies a piece once; returns (new update, the trust ratio that the piece left, or None)."""
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.get_variable(name, initializer=np.array(value, np.float32))
        parameter = Parameter(variable, update_number=None, slots=None)
        result = piece(tf.constant(update, tf.float32), parameter)
        session.run(tf.global_variables_initializer())
        if parameter.trust_ratio is None:
            return session.run(result), None
        return session.run((result, parameter.trust_ratio))


@contextlib.contextmanager
def control_flow(version):
    """Makes `tf.while_loop` build control flow "v1" or "v2", whatever was set before."""
    was_v2 = tf.control_flow_v2_enabled()
    choose = {"v1": tf.disable_control_flow_v2, "v2": tf.enable_control_flow_v2}
    choose[version]()
    try:
        yield
    finally:
        choose["v2" if was_v2 else "v1"]()
