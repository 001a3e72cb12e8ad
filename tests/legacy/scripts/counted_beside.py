"""Regression whose step is counted beside the optimizer, which corrects its moments by the step.

What the rate and the corrections read of the step races with its assignment.
"""

from __future__ import absolute_import, division, print_function

import numpy as np
import one_model
import tensorflow as tf

FLAGS = one_model.FLAGS


def input_fn(params):
    random = np.random.RandomState(0)
    x = random.uniform(-1, 1, size=(96, 4)).astype(np.float32)
    y = np.sin(3 * x[:, :1]) + x[:, 1:2] * x[:, 2:3]
    dataset = tf.data.Dataset.from_tensor_slices(({"x": x}, y.astype(np.float32))).repeat()
    return dataset.batch(params["batch_size"], drop_remainder=True)


class CorrectedOptimizer(tf.train.Optimizer):
    def __init__(self, learning_rate, beta_1=0.9, beta_2=0.999, name="CorrectedOptimizer"):
        super(CorrectedOptimizer, self).__init__(False, name)
        self.learning_rate = tf.identity(learning_rate, name="learning_rate")
        self.beta_1, self.beta_2 = beta_1, beta_2

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        assignments = []
        steps = tf.cast(global_step, tf.float32)
        for gradient, variable in grads_and_vars:

            def slot(kind, variable=variable):
                return tf.get_variable(
                    variable.op.name + "/" + kind,
                    variable.shape.as_list(),
                    trainable=False,
                    initializer=tf.zeros_initializer(),
                )

            m, v = slot("m"), slot("v")
            next_m = self.beta_1 * m + (1.0 - self.beta_1) * gradient
            next_v = self.beta_2 * v + (1.0 - self.beta_2) * tf.square(gradient)
            update = next_m / (1 - self.beta_1**steps)
            update /= tf.sqrt(next_v / (1 - self.beta_2**steps)) + 1e-6
            norm, update_norm = tf.norm(variable), tf.norm(update)
            ratio = tf.where(tf.greater(norm, 0.0), norm / update_norm, 1.0)
            assignments += [
                variable.assign(variable - self.learning_rate * ratio * update),
                m.assign(next_m),
                v.assign(next_v),
            ]
        return tf.group(*assignments, name=name)


def model_fn(features, labels, mode, params):
    hidden = tf.layers.dense(features["x"], 16, activation=tf.nn.tanh)
    predictions = tf.layers.dense(hidden, 1)
    loss = tf.losses.mean_squared_error(labels, predictions)
    if mode == tf.estimator.ModeKeys.EVAL:

        def metric_fn(labels, predictions):
            return {"rmse": tf.metrics.root_mean_squared_error(labels, predictions)}

        return tf.contrib.tpu.TPUEstimatorSpec(
            mode, loss=loss, eval_metrics=(metric_fn, [labels, predictions])
        )
    global_step = tf.train.get_or_create_global_step()
    rate = tf.train.polynomial_decay(0.1, global_step, 40, end_learning_rate=0.0)
    done = tf.cast(tf.cast(global_step, tf.int32), tf.float32) / 10.0
    is_warmup = tf.cast(done < 1.0, tf.float32)
    rate = (1.0 - is_warmup) * rate + is_warmup * 0.1 * done
    optimizer = CorrectedOptimizer(rate)
    variables = tf.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 1.0)
    train_op = optimizer.apply_gradients(zip(gradients, variables), global_step)
    all_are_finite = tf.constant(True)
    new_step = tf.cond(all_are_finite, lambda: global_step + 1, lambda: global_step)
    train_op = tf.group(train_op, [global_step.assign(tf.identity(new_step))])
    return tf.contrib.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def main(unused_argv):
    config = tf.contrib.tpu.RunConfig(
        model_dir=FLAGS.output_dir, save_checkpoints_steps=20, save_summary_steps=1
    )
    estimator = tf.contrib.tpu.TPUEstimator(
        model_fn, config=config, use_tpu=False, train_batch_size=16, eval_batch_size=32
    )
    estimator.train(input_fn, max_steps=FLAGS.train_steps)
    one_model.write_results(estimator.evaluate(input_fn, steps=3))


if __name__ == "__main__":
    tf.flags.mark_flag_as_required("output_dir")
    tf.app.run()
