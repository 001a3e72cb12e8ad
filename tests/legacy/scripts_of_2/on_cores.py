"""A TPUEstimator as programs of TensorFlow 2 have it; prints its losses and results as JSON.

The first argument is the folder for checkpoints; the others may be --use_tpu and the TPU's name.
"""

import json
import os
import sys

import numpy as np
import tensorflow as tf

FOLDER = sys.argv[1]
USE_TPU = "--use_tpu" in sys.argv
TPU = sys.argv[3] if len(sys.argv) > 3 else ""
X = np.random.RandomState(0).normal(size=(32, 4)).astype(np.float32)
Y = (X @ [[1.0], [-1.0], [0.5], [2.0]]).astype(np.float32)


def input_fn(params):
    data = tf.data.Dataset.from_tensor_slices(({"x": X}, Y))
    return data.repeat().batch(params["batch_size"], drop_remainder=True)


def constant(shape, dtype=None, **unused):
    return tf.constant(np.linspace(-0.5, 0.5, int(np.prod(shape))).reshape(shape), dtype)


def model_fn(features, labels, mode, params):
    hidden = tf.keras.layers.Dense(6, "tanh", kernel_initializer=constant, name="hidden")
    output = tf.keras.layers.Dense(1, kernel_initializer=constant, name="output")
    predictions = output(hidden(features["x"]))
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.compat.v1.estimator.tpu.TPUEstimatorSpec(mode, {"y": predictions})
    loss = tf.reduce_mean(tf.math.squared_difference(predictions, labels))
    if mode == tf.estimator.ModeKeys.EVAL:

        def metric_fn(labels, predictions):
            error = tf.keras.metrics.MeanAbsoluteError()
            error.update_state(labels, predictions)
            return {"error": error, "mean": tf.compat.v1.metrics.mean(predictions)}

        return tf.compat.v1.estimator.tpu.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(metric_fn, [labels, predictions])
        )
    optimizer = tf.compat.v1.train.AdamOptimizer(0.05)
    if params["use_tpu"]:
        optimizer = tf.compat.v1.tpu.CrossShardOptimizer(optimizer)
    step = tf.compat.v1.train.get_global_step()
    return tf.compat.v1.estimator.tpu.TPUEstimatorSpec(
        mode, loss=loss, train_op=optimizer.minimize(loss, step)
    )


def losses_of(directory):
    losses = {}
    for path in tf.io.gfile.glob(os.path.join(directory, "events*")):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag == "loss":
                    losses[event.step] = value.simple_value
    return [losses[step] for step in sorted(losses)]


resolver = None
if TPU:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(TPU)
config = tf.compat.v1.estimator.tpu.RunConfig(
    cluster=resolver,
    model_dir=FOLDER,
    save_summary_steps=1,
    tpu_config=tf.compat.v1.estimator.tpu.TPUConfig(iterations_per_loop=2),
)
estimator = tf.compat.v1.estimator.tpu.TPUEstimator(
    model_fn,
    config=config,
    use_tpu=USE_TPU,
    train_batch_size=8,
    eval_batch_size=8,
    predict_batch_size=8,
    params={},
)
estimator.train(input_fn, max_steps=6)
estimator.train(input_fn, max_steps=10)
metrics = estimator.evaluate(input_fn, steps=4)
first = next(iter(estimator.predict(input_fn)))
seen = {
    "losses": losses_of(FOLDER),
    "metrics": {key: float(value) for key, value in metrics.items()},
    "predictions": first["y"].tolist(),
    "variables": {v: list(shape) for v, shape in tf.train.list_variables(FOLDER)},
}
print(json.dumps({"on_cores": seen}))
