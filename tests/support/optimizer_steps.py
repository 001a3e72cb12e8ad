"""Helpers that run an optimizer, or a piece of an optimizer, on given numbers."""

import contextlib

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from bert_estimator.optimization.piece import UpdateStep


def run(make_optimizer, initial, gradients, learning_rates):
    """Updates variables, dicts by name as are gradients, with what `make_optimizer(rate)` makes;
    returns what each update leaves."""
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


def apply_piece(piece, value, update):
    """Applies a piece once, at the rate 1; returns (new update, its trust ratio or None)."""
    with tf.Graph().as_default(), tf.Session() as session:
        value, update = tf.constant(value, tf.float32), tf.constant(update, tf.float32)
        step = UpdateStep(tf.constant(1.0), size=value.shape.num_elements())
        result, new = piece(update, value, {}, step)
        ratio = new.get("trust_ratio")
        return session.run(result), None if ratio is None else session.run(ratio)


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


def state_after_turns(build_step, version):
    """Returns the variables after three turns of a step in a loop of control flow v1 or v2."""
    with control_flow(version), tf.Graph().as_default(), tf.Session() as session:
        state = []

        def turn(i):
            train_op, state[:] = build_step()
            with tf.control_dependencies([train_op]):
                return i + 1

        loop = tf.while_loop(lambda i: i < 3, turn, [tf.constant(0)], parallel_iterations=1)
        session.run(tf.global_variables_initializer())
        assert session.run(loop) == 3
        return session.run(state)


def state_after_compiled_steps(build_step):
    """Does what `state_after_turns` does, in three calls of a function that XLA compiles."""
    state = []

    def step():
        train_op, state[:] = build_step()
        with tf.control_dependencies([train_op]):
            return tf.constant(0)

    wrapped = tf.wrap_function(step, [])
    compiled = tf2.function(lambda: wrapped(), jit_compile=True)
    for _ in range(3):
        compiled()
    return [variable.numpy() for variable in state]


def ancestors(operation):
    """Returns the names of the operations that must run before this operation."""
    seen, todo = set(), [operation]
    while todo:
        now = todo.pop()
        for before in [tensor.op for tensor in now.inputs] + list(now.control_inputs):
            if before.name not in seen:
                seen.add(before.name)
                todo.append(before)
    return seen
