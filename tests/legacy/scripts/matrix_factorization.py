"""A recommender by matrix factorization: embeddings with sparse gradients, HParams, predictions."""

from __future__ import absolute_import, division, print_function

import numpy as np
import one_model
import tensorflow as tf
from tensorflow.contrib.training import HParams

flags = tf.flags
flags.DEFINE_string("hparams", "rank=6,decay=0.001", "Values of the hyperparameters.")
FLAGS = flags.FLAGS

USERS, ITEMS = 40, 30


def ratings(seed, number):
    random = np.random.RandomState(seed)
    users = random.randint(USERS, size=number)
    items = random.randint(ITEMS, size=number)
    stars = 3.0 + np.sin(users * 0.7) + np.cos(items * 0.9) * (users % 2)
    return users.astype(np.int32), items.astype(np.int32), stars.astype(np.float32)


def input_fn_builder(seed, repeat):
    def input_fn(params):
        users, items, stars = ratings(seed, 128)
        dataset = tf.data.Dataset.from_tensor_slices(({"user": users, "item": items}, stars))
        if repeat:
            dataset = dataset.repeat()
        return dataset.batch(params["batch_size"], drop_remainder=True)

    return input_fn


def embedding(name, ids, number, hparams):
    table = tf.get_variable(
        name,
        [number, hparams.rank],
        initializer=tf.truncated_normal_initializer(stddev=0.3),
        regularizer=tf.contrib.layers.l2_regularizer(hparams.decay),
    )
    bias = tf.get_variable(name + "_bias", [number], initializer=tf.zeros_initializer())
    return tf.nn.embedding_lookup(table, ids), tf.gather(bias, ids)


def model_fn(features, labels, mode, params):
    hparams = params["hparams"]
    with tf.variable_scope("factors"):
        user, user_bias = embedding("user", features["user"], USERS, hparams)
        item, item_bias = embedding("item", features["item"], ITEMS, hparams)
        mean = tf.get_variable("mean", [], initializer=tf.constant_initializer(3.0))
    stars = mean + user_bias + item_bias + tf.reduce_sum(user * item, axis=-1)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.contrib.tpu.TPUEstimatorSpec(mode, predictions={"stars": stars})
    loss = tf.losses.huber_loss(labels, stars, delta=0.5)
    loss += tf.losses.get_regularization_loss()
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = tf.train.AdagradOptimizer(0.2, initial_accumulator_value=0.01)
        if FLAGS.use_tpu:
            optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
        pairs = optimizer.compute_gradients(loss)
        train_op = optimizer.apply_gradients(pairs, tf.train.get_global_step())
        return tf.contrib.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    def metric_fn(labels, stars):
        return {
            "rmse": tf.metrics.root_mean_squared_error(labels, stars),
            "within_a_star": tf.metrics.percentage_below(tf.abs(labels - stars), 1.0),
        }

    return tf.contrib.tpu.TPUEstimatorSpec(
        mode, loss=loss, eval_metrics=(metric_fn, [labels, stars])
    )


def main(_):
    hparams = HParams(rank=4, decay=0.0).parse(FLAGS.hparams)
    estimator = one_model.make_estimator(model_fn, batch_size=32, hparams=hparams)
    estimator.train(input_fn_builder(1, True), max_steps=FLAGS.train_steps)
    results = estimator.evaluate(input_fn_builder(2, False), steps=4)
    stars = np.array([each["stars"] for each in estimator.predict(input_fn_builder(3, False))])
    shown = (len(stars), stars.mean(), stars[0])
    others = "predictions = %d\nmean_prediction = %.6f\nfirst_prediction = %.6f\n" % shown
    one_model.write_results(results, others)


if __name__ == "__main__":
    tf.app.run(main)
