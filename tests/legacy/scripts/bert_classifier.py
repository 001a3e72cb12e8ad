"""Fine-tuning of a very small BERT on a sentence classification task, on synthetic sentences."""

from __future__ import absolute_import, division, print_function

import os
import re

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.contrib import cluster_resolver as contrib_cluster_resolver
from tensorflow.contrib import data as contrib_data
from tensorflow.contrib import layers as contrib_layers
from tensorflow.contrib import tpu as contrib_tpu

flags = tf.flags
FLAGS = flags.FLAGS

flags.DEFINE_string("output_dir", None, "Where the checkpoints and the results go.")
flags.DEFINE_bool("do_train", False, "Whether to train.")
flags.DEFINE_bool("do_eval", False, "Whether to evaluate.")
flags.DEFINE_integer("max_seq_length", 12, "Length of a sequence.")
flags.DEFINE_integer("train_batch_size", 8, "Batch size for training.")
flags.DEFINE_integer("eval_batch_size", 8, "Batch size for evaluation.")
flags.DEFINE_float("learning_rate", 5e-3, "Peak learning rate.")
flags.DEFINE_float("num_train_epochs", 4.0, "Epochs of training.")
flags.DEFINE_float("warmup_proportion", 0.1, "Share of the steps that warm up.")
flags.DEFINE_integer("save_checkpoints_steps", 20, "How often to save.")
flags.DEFINE_integer("iterations_per_loop", 1000, "Steps of one call of the TPU.")
flags.DEFINE_bool("use_tpu", False, "Whether to use a TPU.")
flags.DEFINE_string("tpu_name", None, "The Cloud TPU to use.")
flags.DEFINE_string("tpu_zone", None, "Its zone.")
flags.DEFINE_string("gcp_project", None, "Its project.")
flags.DEFINE_integer("num_tpu_cores", 8, "Number of TPU cores.")

LABELS = ["low", "mixed", "high"]
VOCAB_SIZE = 30


class InputFeatures(object):
    def __init__(self, input_ids, input_mask, segment_ids, label_id, is_real_example=True):
        self.input_ids = input_ids
        self.input_mask = input_mask
        self.segment_ids = segment_ids
        self.label_id = label_id
        self.is_real_example = is_real_example


def get_examples(num_examples, seed):
    """Sentences of words that are small numbers, large numbers, or both."""
    random = np.random.RandomState(seed)
    features = []
    for _ in range(num_examples):
        length = random.randint(4, FLAGS.max_seq_length + 1)
        label_id = random.randint(len(LABELS))
        low, high = [(2, 16), (2, VOCAB_SIZE), (16, VOCAB_SIZE)][label_id]
        padding = [0] * (FLAGS.max_seq_length - length)
        features.append(
            InputFeatures(
                input_ids=[1] + list(random.randint(low, high, size=length - 1)) + padding,
                input_mask=[1] * length + padding,
                segment_ids=[0] * FLAGS.max_seq_length,
                label_id=label_id,
            )
        )
    return features


def input_fn_builder(features, is_training, drop_remainder):
    all_input_ids = [feature.input_ids for feature in features]
    all_input_mask = [feature.input_mask for feature in features]
    all_segment_ids = [feature.segment_ids for feature in features]
    all_label_ids = [feature.label_id for feature in features]
    all_real = [int(feature.is_real_example) for feature in features]

    def input_fn(params):
        n = len(features)
        shape = [n, FLAGS.max_seq_length]
        d = tf.data.Dataset.from_tensor_slices(
            {
                "input_ids": tf.constant(all_input_ids, shape=shape, dtype=tf.int32),
                "input_mask": tf.constant(all_input_mask, shape=shape, dtype=tf.int32),
                "segment_ids": tf.constant(all_segment_ids, shape=shape, dtype=tf.int32),
                "label_ids": tf.constant(all_label_ids, shape=[n], dtype=tf.int32),
                "is_real_example": tf.constant(all_real, shape=[n], dtype=tf.int32),
            }
        )
        if is_training:
            d = d.repeat()
        if drop_remainder:
            return d.apply(contrib_data.batch_and_drop_remainder(params["batch_size"]))
        return d.batch(batch_size=params["batch_size"])

    return input_fn


def attention_layer(x, mask, hidden_size):
    """One head of self-attention. x: [batch, seq, hidden]."""
    initializer = contrib_layers.xavier_initializer(uniform=False)

    def project(tensor, name):
        return contrib_layers.fully_connected(
            tensor, hidden_size, activation_fn=None, weights_initializer=initializer, scope=name
        )

    scores = tf.matmul(project(x, "query"), project(x, "key"), transpose_b=True)
    scores = scores * (1.0 / np.sqrt(hidden_size))
    scores += (1.0 - tf.cast(tf.expand_dims(mask, 1), tf.float32)) * -10000.0
    context = tf.matmul(tf.nn.softmax(scores), project(x, "value"))
    x = contrib_layers.layer_norm(x + project(context, "output"), begin_norm_axis=-1)
    inner = tf.layers.dense(x, 2 * hidden_size, activation=tf.nn.relu, name="intermediate")
    inner = tf.nn.dropout(inner, keep_prob=1.0)
    inner = tf.layers.dense(inner, hidden_size, name="dense")
    return contrib_layers.layer_norm(x + inner, begin_norm_axis=-1)


def create_model(input_ids, input_mask, segment_ids, labels, num_labels):
    hidden_size = 16
    with tf.variable_scope("bert"):
        table = tf.get_variable("embeddings/word_embeddings", [VOCAB_SIZE, hidden_size])
        types = tf.get_variable("embeddings/token_type_embeddings", [2, hidden_size])
        x = tf.nn.embedding_lookup(table, input_ids) + tf.nn.embedding_lookup(types, segment_ids)
        with tf.variable_scope("encoder/layer_0"):
            x = attention_layer(x, input_mask, int(x.shape[-1]))
        pooled = tf.layers.dense(x[:, 0], hidden_size, activation=tf.tanh, name="pooler")
    output_weights = tf.get_variable(
        "output_weights",
        [num_labels, pooled.shape[-1].value],
        initializer=tf.truncated_normal_initializer(stddev=0.02),
    )
    output_bias = tf.get_variable("output_bias", [num_labels], initializer=tf.zeros_initializer())
    with tf.variable_scope("loss"):
        logits = tf.nn.bias_add(tf.matmul(pooled, output_weights, transpose_b=True), output_bias)
        log_probs = tf.nn.log_softmax(logits, axis=-1)
        one_hot_labels = tf.one_hot(labels, depth=num_labels, dtype=tf.float32)
        per_example_loss = -tf.reduce_sum(one_hot_labels * log_probs, axis=-1)
        return tf.reduce_mean(per_example_loss), per_example_loss, logits


class AdamWeightDecayOptimizer(tf.train.Optimizer):
    """Adam without bias correction, with weight decay beside the gradient."""

    def __init__(
        self,
        learning_rate,
        weight_decay_rate=0.0,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        exclude_from_weight_decay=None,
        name="AdamWeightDecayOptimizer",
    ):
        super(AdamWeightDecayOptimizer, self).__init__(False, name)
        self.learning_rate = learning_rate
        self.weight_decay_rate = weight_decay_rate
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.exclude_from_weight_decay = exclude_from_weight_decay

    def _get_variable_name(self, param_name):
        return re.match("^(.*):\\d+$", param_name).group(1)

    def _do_use_weight_decay(self, param_name):
        return not any(re.search(r, param_name) for r in self.exclude_from_weight_decay or [])

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        assignments = []
        for grad, param in grads_and_vars:
            if grad is None or param is None:
                continue
            if isinstance(grad, tf.IndexedSlices):
                grad = tf.convert_to_tensor(grad)
            param_name = self._get_variable_name(param.name)
            m = tf.get_variable(
                name=param_name + "/adam_m",
                shape=param.shape.as_list(),
                dtype=tf.float32,
                trainable=False,
                initializer=tf.zeros_initializer(),
            )
            v = tf.get_variable(
                name=param_name + "/adam_v",
                shape=param.shape.as_list(),
                dtype=tf.float32,
                trainable=False,
                initializer=tf.zeros_initializer(),
            )
            next_m = self.beta_1 * m + (1.0 - self.beta_1) * grad
            next_v = self.beta_2 * v + (1.0 - self.beta_2) * tf.square(grad)
            update = next_m / (tf.sqrt(next_v) + self.epsilon)
            if self._do_use_weight_decay(param_name):
                update += self.weight_decay_rate * param
            next_param = param - self.learning_rate * update
            assignments.extend([param.assign(next_param), m.assign(next_m), v.assign(next_v)])
        return tf.group(*assignments, name=name)


def create_optimizer(loss, init_lr, num_train_steps, num_warmup_steps, use_tpu):
    global_step = tf.train.get_or_create_global_step()
    learning_rate = tf.train.polynomial_decay(
        tf.constant(init_lr, shape=[], dtype=tf.float32), global_step, num_train_steps, 0.0
    )
    if num_warmup_steps:
        # What the decay and the warm-up read of the step races with its assignment.
        steps = tf.cast(global_step, tf.int32)
        done = tf.cast(steps, tf.float32) / tf.constant(num_warmup_steps, dtype=tf.float32)
        is_warmup = tf.cast(steps < num_warmup_steps, tf.float32)
        learning_rate = (1.0 - is_warmup) * learning_rate + is_warmup * init_lr * done
    optimizer = AdamWeightDecayOptimizer(
        learning_rate=learning_rate,
        weight_decay_rate=0.01,
        exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
    )
    if use_tpu:
        optimizer = contrib_tpu.CrossShardOptimizer(optimizer)
    tvars = tf.trainable_variables()
    grads, _ = tf.clip_by_global_norm(tf.gradients(loss, tvars), clip_norm=1.0)
    train_op = optimizer.apply_gradients(list(zip(grads, tvars)), global_step=global_step)
    return tf.group(train_op, [global_step.assign(global_step + 1)])


def model_fn_builder(num_labels, num_train_steps, num_warmup_steps, use_tpu):
    def model_fn(features, labels, mode, params):
        is_real_example = tf.cast(features["is_real_example"], dtype=tf.float32)
        total_loss, per_example_loss, logits = create_model(
            features["input_ids"],
            features["input_mask"],
            features["segment_ids"],
            features["label_ids"],
            num_labels,
        )
        if mode == tf.estimator.ModeKeys.TRAIN:
            train_op = create_optimizer(
                total_loss, FLAGS.learning_rate, num_train_steps, num_warmup_steps, use_tpu
            )
            return contrib_tpu.TPUEstimatorSpec(mode=mode, loss=total_loss, train_op=train_op)

        def metric_fn(per_example_loss, label_ids, logits, is_real_example):
            predictions = tf.argmax(logits, axis=-1, output_type=tf.int32)
            return {
                "eval_accuracy": tf.metrics.accuracy(label_ids, predictions, is_real_example),
                "eval_loss": tf.metrics.mean(per_example_loss, is_real_example),
            }

        return contrib_tpu.TPUEstimatorSpec(
            mode=mode,
            loss=total_loss,
            eval_metrics=(
                metric_fn,
                [per_example_loss, features["label_ids"], logits, is_real_example],
            ),
        )

    return model_fn


def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    tf.gfile.MakeDirs(FLAGS.output_dir)
    tpu_cluster_resolver = None
    if FLAGS.use_tpu and FLAGS.tpu_name:
        tpu_cluster_resolver = contrib_cluster_resolver.TPUClusterResolver(
            FLAGS.tpu_name, zone=FLAGS.tpu_zone, project=FLAGS.gcp_project
        )
    run_config = contrib_tpu.RunConfig(
        cluster=tpu_cluster_resolver,
        model_dir=FLAGS.output_dir,
        save_checkpoints_steps=FLAGS.save_checkpoints_steps,
        save_summary_steps=1,
        tpu_config=contrib_tpu.TPUConfig(
            iterations_per_loop=FLAGS.iterations_per_loop, num_shards=FLAGS.num_tpu_cores
        ),
    )
    train_examples = get_examples(40, seed=1)
    num_train_steps = int(len(train_examples) / FLAGS.train_batch_size * FLAGS.num_train_epochs)
    estimator = contrib_tpu.TPUEstimator(
        use_tpu=FLAGS.use_tpu,
        model_fn=model_fn_builder(
            num_labels=len(LABELS),
            num_train_steps=num_train_steps,
            num_warmup_steps=int(num_train_steps * FLAGS.warmup_proportion),
            use_tpu=FLAGS.use_tpu,
        ),
        config=run_config,
        train_batch_size=FLAGS.train_batch_size,
        eval_batch_size=FLAGS.eval_batch_size,
    )
    if FLAGS.do_train:
        train_input_fn = input_fn_builder(train_examples, is_training=True, drop_remainder=True)
        estimator.train(input_fn=train_input_fn, max_steps=num_train_steps)
    if FLAGS.do_eval:
        eval_examples = get_examples(21, seed=2)
        eval_steps = None
        if FLAGS.use_tpu:
            while len(eval_examples) % FLAGS.eval_batch_size != 0:
                padding = [0] * FLAGS.max_seq_length
                eval_examples.append(InputFeatures(padding, padding, padding, 0, False))
            eval_steps = len(eval_examples) // FLAGS.eval_batch_size
        result = estimator.evaluate(
            input_fn=input_fn_builder(eval_examples, False, drop_remainder=FLAGS.use_tpu),
            steps=eval_steps,
        )
        with tf.gfile.GFile(os.path.join(FLAGS.output_dir, "eval_results.txt"), "w") as writer:
            for key in sorted(result.keys()):
                tf.logging.info("  %s = %s", key, str(result[key]))
                writer.write("%s = %s\n" % (key, str(result[key])))


if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    tf.app.run()
