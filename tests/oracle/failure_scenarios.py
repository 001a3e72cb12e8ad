"""Scenarios of what goes wrong while training: which error surfaces, and what is left."""

import math
import os

import tensorflow.compat.v1 as tf
from harness import (
    INITIAL_WEIGHT,
    LEARNING_RATE,
    Recorder,
    checkpoint_steps,
    dataset,
    make_estimator,
    make_input_fn,
    make_model_fn,
    outcome,
    scenario,
    table,
    weight,
)

# What goes wrong.


@table(
    between_checkpoints={"every": 2},
    at_checkpoint={"every": 3},
)
def nan_loss(api, folder, every):
    """The third batch holds a NaN, so that the third step's loss and new weight are NaN."""

    def input_fn(params):
        def spoil(index, example):
            nan = tf.where(tf.equal(index, 2), float("nan"), 0.0)
            return tf.nest.map_structure(lambda value: value + nan, example)

        return dataset(None, params["batch_size"]).enumerate().map(spoil)

    recorder = Recorder()
    estimator = make_estimator(api, folder, config={"save_checkpoints_steps": every})
    result = outcome(
        lambda: estimator.train(input_fn, steps=9, hooks=[recorder]), says=["nan", "loss"]
    )
    return {
        **result,
        "calls": recorder.calls,
        "checkpoints": checkpoint_steps(folder),
        "weight_is_finite": math.isfinite(weight(estimator)),
    }


@scenario
def infinite_loss(api, folder):
    estimator = make_estimator(
        api, folder, make_model_fn(api, fields=lambda graph: {"loss": graph.loss / 0.0})
    )
    result = outcome(lambda: estimator.train(make_input_fn(), steps=2))
    return {**result, "checkpoints": checkpoint_steps(folder)}


class Boom(OSError):
    pass


def boom(*args, **kwargs):
    raise Boom("the disk of the toy is on fire")


@scenario
def input_fn_raises(api, folder):
    estimator = make_estimator(api, folder)
    result = outcome(lambda: estimator.train(lambda params: boom(), steps=2), says=["on fire"])
    return {**result, "checkpoints": checkpoint_steps(folder)}


@scenario
def model_fn_raises(api, folder):
    estimator = make_estimator(api, folder, make_model_fn(api, fields=boom))
    result = outcome(lambda: estimator.train(make_input_fn(), steps=2), says=["on fire"])
    return {**result, "checkpoints": checkpoint_steps(folder)}


@scenario
def data_raises(api, folder):
    """A record that cannot be read: batches before it are trained on, nothing is saved after."""

    def broken(params):
        data = dataset(None, params["batch_size"]).enumerate()

        def check(index, example):
            three = tf.constant(3, tf.int64)
            with tf.control_dependencies([tf.debugging.assert_less(index, three)]):
                return tf.nest.map_structure(tf.identity, example)

        return data.map(check)

    recorder = Recorder()
    estimator = make_estimator(api, folder, config={"save_checkpoints_steps": 2})
    result = outcome(lambda: estimator.train(broken, steps=9, hooks=[recorder]))
    return {
        **result,
        "hook": recorder.observed(),
        "checkpoints": checkpoint_steps(folder),
    }


@scenario
def truncated_records(api, folder):
    path = os.path.join(folder, "records")
    with tf.io.TFRecordWriter(path) as writer:
        for value in range(3):
            writer.write(bytes([48 + value]))
    with open(path, "r+b") as records:
        records.truncate(os.path.getsize(path) - 3)

    def input_fn(params):
        def parse(record):
            x = tf.io.decode_raw(record, tf.uint8)
            return {"x": tf.cast(x, tf.float32) / 64.0}

        return tf.data.TFRecordDataset(path).map(parse)

    estimator = make_estimator(api, os.path.join(folder, "model"))
    return outcome(lambda: estimator.train(input_fn), says=["truncated"])


@table(
    begin={"method": "begin"},
    after_create_session={"method": "after_create_session"},
    before_run={"method": "before_run"},
    after_run={"method": "after_run"},
    end={"method": "end"},
)
def hook_raises(api, folder, method):
    hook, recorder = tf.train.SessionRunHook(), Recorder()
    setattr(hook, method, boom)
    estimator = make_estimator(api, folder)
    result = outcome(
        lambda: estimator.train(make_input_fn(), steps=2, hooks=[recorder, hook]),
        says=["on fire"],
    )
    return {**result, "calls": recorder.calls, "checkpoints": checkpoint_steps(folder)}


@scenario
def host_call_raises(api, folder):
    def fields(graph):
        return {
            "host_call": (
                lambda loss: tf.py_func(boom, [loss], tf.float32),
                [tf.reshape(graph.loss, [1])],
            )
        }

    estimator = make_estimator(api, folder, make_model_fn(api, fields=fields))
    result = outcome(lambda: estimator.train(make_input_fn(), steps=2), says=["on fire"])
    return {**result, "checkpoints": checkpoint_steps(folder)}


@scenario
def no_global_step_update(api, folder):
    """A train_op does not change the global step, so only the end of the data ends training."""

    def model_fn(features, labels, mode, params):
        value = tf.get_variable("w", initializer=INITIAL_WEIGHT)
        loss = tf.reduce_mean(tf.square(value * features["x"] - labels), name="toy_loss")
        train_op = tf.train.GradientDescentOptimizer(LEARNING_RATE).minimize(loss)
        return api.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)

    recorder = Recorder()
    make_estimator(api, folder, model_fn).train(make_input_fn(20), steps=3, hooks=[recorder])
    return {"hook": recorder.observed(), "checkpoints": checkpoint_steps(folder)}


@scenario
def checkpoint_does_not_fit(api, folder):
    make_estimator(api, folder).train(make_input_fn(), steps=1)

    def fields(graph):
        tf.get_variable("more", shape=[2])
        return {}

    estimator = make_estimator(api, folder, make_model_fn(api, fields=fields))
    return outcome(lambda: estimator.train(make_input_fn(), steps=1), says=["more"])
