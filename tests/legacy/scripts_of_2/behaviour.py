"""What TensorFlow 2's names and behaviour are outside of estimators, as JSON."""

import json
import sys

import numpy as np
import tensorflow as tf

FOLDER = sys.argv[1]
v1 = tf.compat.v1


def says(function):
    """Returns what a function returns, or the kind of its error."""
    try:
        return function()
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        return type(error).__name__


def in_a_graph():
    with tf.Graph().as_default() as graph:
        made = v1.get_variable("w", [2])
        chosen = tf.cond(v1.placeholder(tf.bool, []), lambda: 1, lambda: 2)
        tf.while_loop(lambda i: i < 3, lambda i: i + 1, [chosen])
        kinds = sorted({op.type for op in graph.get_operations()})
        reference = made.dtype.name
    return [kinds, reference]


def summaries():
    writer = tf.summary.create_file_writer(FOLDER)
    with writer.as_default(step=3):
        tf.summary.scalar("one", 1.5)
    with writer.as_default():
        tf.summary.scalar("two", 2.5, step=4)
        tf.summary.histogram("three", [1.0, 2.0], step=5)
    writer.close()
    seen = []
    for path in tf.io.gfile.glob(FOLDER + "/events*"):
        for event in v1.train.summary_iterator(path):
            seen += [[event.step, value.tag] for value in event.summary.value]
    return seen


def keras_fit():
    tf.random.set_seed(3)
    model = tf.keras.Sequential(
        [tf.keras.layers.Dense(1, kernel_initializer="ones", input_shape=(2,))]
    )
    model.compile(tf.keras.optimizers.SGD(0.1), tf.losses.MeanSquaredError())
    x = np.arange(8, dtype=np.float32).reshape(4, 2) / 8
    history = model.fit(x, x[:, :1], batch_size=2, epochs=2, shuffle=False, verbose=0)
    return history.history["loss"]


def differentiated():
    x = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        y = tf.function(lambda: x * x)()
    return tape.gradient(y, x).numpy().item()


tf.random.set_seed(5)
dataset = tf.data.Dataset.range(3)
SEEN = {
    "eager": tf.executing_eagerly(),
    "eager_in_a_graph": in_a_graph(),
    "random": tf.random.uniform([2], seed=1).numpy().tolist(),
    "iterated": [element.numpy().item() for element in dataset],
    "one_shot": says(lambda: dataset.make_one_shot_iterator()),
    "one_shot_of_v1": says(
        lambda: v1.data.make_one_shot_iterator(dataset).get_next().numpy().item()
    ),
    "dimension": type(tf.zeros([2, 3]).shape[0]).__name__,
    "variable": type(tf.Variable(1.0)).__name__,
    "resources": v1.resource_variables_enabled(),
    "control_flow": v1.control_flow_v2_enabled(),
    "tensor_shapes": v1.enable_v2_tensorshape.__name__,
    "equality": bool(tf.constant(1) == 1),
    "placeholder": says(lambda: v1.placeholder(tf.float32)),
    "names": [
        hasattr(tf, name)
        for name in ("contrib", "placeholder", "Session", "layers", "logging", "app", "flags")
    ],
    "version_is_of_2": tf.__version__.startswith("2."),
    "summaries": summaries(),
    "fit": keras_fit(),
    "gradient": differentiated(),
    "metric": tf.metrics.Mean()([1.0, 2.0]).numpy().item(),
    "loss": tf.losses.mean_squared_error([[1.0]], [[3.0]]).numpy().tolist(),
    "optimizer": tf.optimizers.SGD.__name__,
    "initializer": tf.initializers.Zeros()([1]).numpy().tolist(),
    "cells": says(lambda: v1.nn.rnn_cell.LSTMCell.__name__),
    "layers_of_v1": says(lambda: v1.layers.Dense.__name__),
    "keras_is_2": [tf.keras.layers.LSTM is not v1.keras.layers.LSTM, hasattr(tf.keras, "Model")],
    "tpu": says(lambda: tf.estimator.tpu),
    "tpu_of_v1": v1.estimator.tpu.TPUEstimator.__name__,
    "inputs": says(lambda: tf.estimator.inputs),
    "inputs_of_v1": v1.estimator.inputs.numpy_input_fn.__name__,
    "kinds": [
        issubclass(tf.estimator.DNNClassifier, tf.estimator.Estimator),
        issubclass(tf.estimator.DNNClassifier, v1.estimator.Estimator),
        issubclass(tf.estimator.Estimator, v1.estimator.Estimator),
        tf.estimator.DNNClassifier is v1.estimator.DNNClassifier,
        tf.estimator.RunConfig is v1.estimator.RunConfig,
        tf.compat.v2.estimator.DNNClassifier is tf.estimator.DNNClassifier,
    ],
}
v1.disable_v2_behavior()
print(json.dumps({"behaviour": SEEN}))
