"""Two networks against each other: two optimizers in a step, each with its own variables."""

from __future__ import absolute_import, division, print_function

import numpy as np
import one_model
import tensorflow as tf

FLAGS = one_model.FLAGS

tpu = tf.contrib.tpu


def input_fn(params):
    """Gives points on a circle, and the noise that fakes are made of."""
    random = np.random.RandomState(5)
    angle = random.uniform(0, 2 * np.pi, size=96)
    points = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    noise = random.normal(size=(96, 4)).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices({"points": points, "noise": noise}).repeat()
    dataset = dataset.apply(tf.contrib.data.batch_and_drop_remainder(params["batch_size"]))
    return dataset.map(lambda features: (features, tf.zeros([params["batch_size"]])))


def generator(noise):
    with tf.variable_scope("Generator", reuse=tf.AUTO_REUSE):
        net = tf.layers.dense(noise, 16, activation=tf.nn.tanh, name="hidden")
        return tf.layers.dense(net, 2, name="points")


def discriminator(points):
    with tf.variable_scope("Discriminator", reuse=tf.AUTO_REUSE):
        net = tf.layers.dense(points, 16, activation=tf.nn.leaky_relu, name="hidden")
        return tf.layers.dense(net, 1, name="logit")


def cross_entropy(logits, value):
    labels = tf.fill(tf.shape(logits), value)
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))


def model_fn(features, labels, mode, params):
    del labels, params
    fakes = generator(features["noise"])
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tpu.TPUEstimatorSpec(mode=mode, predictions={"fakes": fakes})
    real_logits, fake_logits = discriminator(features["points"]), discriminator(fakes)
    discriminator_loss = cross_entropy(real_logits, 0.9) + cross_entropy(fake_logits, 0.0)
    generator_loss = cross_entropy(fake_logits, 1.0)
    loss = discriminator_loss + generator_loss

    if mode == tf.estimator.ModeKeys.TRAIN:
        d_optimizer = tf.train.AdamOptimizer(2e-3, beta1=0.5)
        g_optimizer = tf.train.RMSPropOptimizer(1e-3, momentum=0.5, centered=True)
        if FLAGS.use_tpu:
            d_optimizer = tpu.CrossShardOptimizer(d_optimizer)
            g_optimizer = tpu.CrossShardOptimizer(g_optimizer)
        # Both see the variables as they were before the step.
        d_variables = tf.trainable_variables(scope="Discriminator")
        g_variables = tf.trainable_variables(scope="Generator")
        d_pairs = d_optimizer.compute_gradients(discriminator_loss, d_variables)
        g_pairs = g_optimizer.compute_gradients(generator_loss, g_variables)
        gradients = [gradient for gradient, _ in d_pairs + g_pairs]
        with tf.control_dependencies(gradients):
            updates = tf.group(
                d_optimizer.apply_gradients(d_pairs), g_optimizer.apply_gradients(g_pairs)
            )
        with tf.control_dependencies([updates]):
            train_op = tf.assign_add(tf.train.get_global_step(), 1)
        return tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=tf.group(train_op))

    def metric_fn(real_logits, fake_logits):
        return {
            "real_is_real": tf.metrics.mean(tf.to_float(real_logits > 0)),
            "fake_logit": tf.metrics.mean(fake_logits),
        }

    return tpu.TPUEstimatorSpec(
        mode=mode, loss=loss, eval_metrics=(metric_fn, [real_logits, fake_logits])
    )


def main(_):
    estimator = one_model.make_estimator(model_fn)
    estimator.train(input_fn=input_fn, max_steps=FLAGS.train_steps)
    results = estimator.evaluate(input_fn=input_fn, steps=3)
    fakes = estimator.predict(input_fn=input_fn)
    first = [next(fakes)["fakes"] for _ in range(20)]
    radius = np.linalg.norm(first, axis=1).mean()
    one_model.write_results(results, "mean_radius = %.6f\n" % radius)


if __name__ == "__main__":
    tf.app.run(main)
