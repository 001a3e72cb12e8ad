"""Estimators with a model_fn in the style of TensorFlow 2; prints what came out as JSON."""

import json
import os
import sys

import numpy as np
import tensorflow as tf

FOLDER = sys.argv[1]
RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(64, 4)).astype(np.float32)
LABELS = np.digitize(X[:, 0], [-0.5, 0.5]).astype(np.int64)


def input_fn(epochs=None):
    return tf.data.Dataset.from_tensor_slices(({"x": X}, LABELS)).repeat(epochs).batch(16)


def constant(seed):
    """Returns an initializer that gives the same values in all versions."""

    def initialize(shape, dtype=None, **unused):
        values = np.random.RandomState(seed).normal(size=shape) * 0.3
        return tf.constant(values, dtype or tf.float32)

    return initialize


def dense(units, seed, **arguments):
    return tf.keras.layers.Dense(units, kernel_initializer=constant(seed), **arguments)


def update(optimizer, loss, variables):
    """Returns the train_op of an optimizer of Keras, which counts the global step."""
    optimizer.iterations = tf.compat.v1.train.get_or_create_global_step()
    return optimizer.get_updates(loss, variables)[0]


def keras_model_fn(features, labels, mode, params):
    """Has layers, a loss, metrics and an optimizer of Keras."""
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    model = tf.keras.Sequential(
        [
            dense(8, 1, activation="relu", name="hidden"),
            tf.keras.layers.BatchNormalization(name="normal"),
            dense(3, 2, name="logits"),
        ]
    )
    logits = model(features["x"], training=is_training)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"p": tf.nn.softmax(logits)})
    loss_fn = tf.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=tf.losses.Reduction.NONE
    )
    loss = tf.reduce_mean(loss_fn(labels, logits))
    accuracy = tf.metrics.SparseCategoricalAccuracy()
    accuracy.update_state(labels, logits)
    train_op = None
    if is_training:
        optimizer = getattr(tf.keras.optimizers.legacy, params["optimizer"])(0.01)
        updates = model.get_updates_for(None) + model.get_updates_for(features["x"])
        with tf.control_dependencies(updates):
            train_op = update(optimizer, loss, model.trainable_variables)
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=train_op, eval_metric_ops={"accuracy": accuracy}
    )


def recurrent_model_fn(features, labels, mode):
    """Has recurrent layers of TensorFlow 2, whose GRU resets after the product."""
    x = tf.reshape(features["x"], [-1, 2, 2])
    gru = tf.keras.layers.GRU(
        3, kernel_initializer=constant(3), recurrent_initializer=constant(4), return_sequences=True
    )
    lstm = tf.keras.layers.LSTM(
        3, kernel_initializer=constant(5), recurrent_initializer=constant(6), name="memory"
    )
    logits = dense(3, 7)(lstm(gru(x)))
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, {"p": logits})
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )
    optimizer = tf.compat.v1.train.AdamOptimizer(0.01)
    train_op = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(
        mode, {"p": logits}, loss, train_op, {"mean": tf.compat.v1.metrics.mean(logits)}
    )


def head_model_fn(features, labels, mode):
    """Has its spec from a head, an optimizer of Keras, control flow and a variable."""
    x = features["x"]
    if mode == tf.estimator.ModeKeys.TRAIN:
        x = tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 0.9), (0, x))[1]
    bias = tf.Variable([0.1, 0.2, 0.3], name="extra")
    logits_layer = dense(3, 8, name="logits")
    logits = logits_layer(x) + bias
    optimizer = tf.keras.optimizers.legacy.Adagrad(0.05)
    optimizer.iterations = tf.compat.v1.train.get_or_create_global_step()
    return tf.estimator.MultiClassHead(3).create_estimator_spec(
        features=features,
        mode=mode,
        labels=labels,
        logits=logits,
        optimizer=optimizer,
        trainable_variables=[*logits_layer.trainable_variables, bias],
    )


def warm_model_fn(features, labels, mode):
    """Begins with the weights of the head's checkpoint, by tf.compat.v1."""
    logits = dense(3, 9, name="logits")(features["x"])
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, {"p": logits})
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(
        tf.compat.v1.train.exponential_decay(0.1, tf.compat.v1.train.get_global_step(), 2, 0.5)
    )
    train_op = optimizer.minimize(loss, tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, {"p": logits}, loss, train_op)


def losses_of(directory):
    """Reads the losses of a training's steps from its events."""
    losses = {}
    for path in tf.io.gfile.glob(os.path.join(directory, "events*")):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag in ("loss", "loss_1"):
                    losses[event.step] = value.simple_value
    return [losses[step] for step in sorted(losses)]


def serving_input_fn():
    x = tf.compat.v1.placeholder(tf.float32, [None, 4], name="x")
    return tf.estimator.export.ServingInputReceiver({"x": x}, {"x": x})


def report(name, model_fn, **arguments):
    directory = os.path.join(FOLDER, name)
    config = tf.estimator.RunConfig(save_summary_steps=1, save_checkpoints_steps=4)
    estimator = tf.estimator.Estimator(model_fn, directory, config, **arguments)
    estimator.train(input_fn, steps=6)
    tf.estimator.train_and_evaluate(
        estimator,
        tf.estimator.TrainSpec(input_fn, max_steps=10),
        tf.estimator.EvalSpec(
            lambda: input_fn(1),
            exporters=tf.estimator.LatestExporter("latest", serving_input_fn),
            start_delay_secs=0,
            throttle_secs=0,
        ),
    )
    metrics = estimator.evaluate(lambda: input_fn(1))
    first = next(iter(estimator.predict(lambda: input_fn(1))))
    (exported,) = tf.io.gfile.glob(os.path.join(directory, "export", "latest", "*"))
    signatures = tf.saved_model.load(exported).signatures
    serve = signatures["predict" if "predict" in signatures else "serving_default"]
    served = serve(tf.constant(X[:1]))
    variables = {v: list(shape) for v, shape in tf.train.list_variables(directory)}
    seen = {
        "losses": losses_of(directory),
        "metrics": {key: float(value) for key, value in metrics.items()},
        "predictions": {
            k: np.asarray(v).astype(float).tolist() for k, v in first.items() if v.dtype != object
        },
        "served": {
            k: v.numpy().astype(float).tolist() for k, v in served.items() if v.dtype.is_floating
        },
        "variables": variables,
    }
    print(json.dumps({name: seen}), flush=True)
    return estimator.latest_checkpoint()


report("keras_adam", keras_model_fn, params={"optimizer": "Adam"})
report("keras_rmsprop", keras_model_fn, params={"optimizer": "RMSprop"})
report("keras_sgd", keras_model_fn, params={"optimizer": "SGD"})
report("recurrent", recurrent_model_fn)
checkpoint = report("head", head_model_fn)
settings = tf.estimator.WarmStartSettings(checkpoint, "logits.*")
report("warm", warm_model_fn, warm_start_from=settings)
