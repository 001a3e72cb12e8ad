"""Masked-LM and next-sentence pre-training of a very small BERT, on synthetic tokens."""

from __future__ import absolute_import, division, print_function

import math
import os
import re

import numpy as np
import tensorflow as tf

flags = tf.flags
FLAGS = flags.FLAGS

flags.DEFINE_string("output_dir", None, "Where the data and the checkpoints go.")
flags.DEFINE_string("init_checkpoint", None, "Initial checkpoint, usually of the same model.")
flags.DEFINE_integer("max_seq_length", 16, "Length of a sequence.")
flags.DEFINE_integer("max_predictions_per_seq", 3, "Masked tokens of a sequence.")
flags.DEFINE_bool("do_train", False, "Whether to train.")
flags.DEFINE_bool("do_eval", False, "Whether to evaluate.")
flags.DEFINE_integer("train_batch_size", 8, "Global batch size for training.")
flags.DEFINE_integer("eval_batch_size", 8, "Global batch size for evaluation.")
flags.DEFINE_float("learning_rate", 0.02, "Peak learning rate.")
flags.DEFINE_integer("num_train_steps", 20, "Training ends at this step.")
flags.DEFINE_integer("num_warmup_steps", 5, "Steps of warm-up.")
flags.DEFINE_integer("save_checkpoints_steps", 20, "How often to save.")
flags.DEFINE_integer("iterations_per_loop", 5, "Steps of one call of the TPU.")
flags.DEFINE_integer("max_eval_steps", 4, "Steps of an evaluation.")
flags.DEFINE_bool("use_tpu", False, "Whether to use a TPU.")
flags.DEFINE_string("tpu_name", None, "The Cloud TPU to use.")
flags.DEFINE_string("tpu_zone", None, "Its zone.")
flags.DEFINE_string("gcp_project", None, "Its project.")
flags.DEFINE_string("master", None, "TensorFlow master URL.")
flags.DEFINE_integer("num_tpu_cores", 8, "Number of TPU cores.")

VOCAB_SIZE = 40
HIDDEN_SIZE = 16
NUM_LAYERS = 2
NUM_HEADS = 2
INTERMEDIATE_SIZE = 32
MASK_ID = 3


def write_examples(path, num_examples, seed):
    """Writes sentence pairs: the second one counts on from the first, or does not."""
    random = np.random.RandomState(seed)

    def feature(values):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[int(v) for v in values]))

    with tf.python_io.TFRecordWriter(path) as writer:
        for _ in range(num_examples):
            length = FLAGS.max_seq_length - 2 * random.randint(3)
            half = length // 2
            first, other = random.randint(VOCAB_SIZE - 4, size=2)
            is_random = random.randint(2)
            second = other if is_random else first + half
            tokens = np.concatenate([first + np.arange(half), second + np.arange(length - half)])
            tokens = 4 + tokens % (VOCAB_SIZE - 4)
            positions = np.sort(random.permutation(length)[: FLAGS.max_predictions_per_seq])
            masked = tokens.copy()
            masked[positions] = MASK_ID
            padding = [0] * (FLAGS.max_seq_length - length)
            features = {
                "input_ids": feature(list(masked) + padding),
                "input_mask": feature([1] * length + padding),
                "segment_ids": feature([0] * half + [1] * (length - half) + padding),
                "masked_lm_positions": feature(positions),
                "masked_lm_ids": feature(tokens[positions]),
                "masked_lm_weights": tf.train.Feature(
                    float_list=tf.train.FloatList(value=[1.0] * len(positions))
                ),
                "next_sentence_labels": feature([is_random]),
            }
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def input_fn_builder(input_files, is_training, num_cpu_threads=2):
    def input_fn(params):
        batch_size = params["batch_size"]
        name_to_features = {
            "input_ids": tf.FixedLenFeature([FLAGS.max_seq_length], tf.int64),
            "input_mask": tf.FixedLenFeature([FLAGS.max_seq_length], tf.int64),
            "segment_ids": tf.FixedLenFeature([FLAGS.max_seq_length], tf.int64),
            "masked_lm_positions": tf.FixedLenFeature([FLAGS.max_predictions_per_seq], tf.int64),
            "masked_lm_ids": tf.FixedLenFeature([FLAGS.max_predictions_per_seq], tf.int64),
            "masked_lm_weights": tf.FixedLenFeature([FLAGS.max_predictions_per_seq], tf.float32),
            "next_sentence_labels": tf.FixedLenFeature([1], tf.int64),
        }

        def decode_record(record):
            example = tf.parse_single_example(record, name_to_features)
            for name in list(example.keys()):
                if example[name].dtype == tf.int64:
                    example[name] = tf.to_int32(example[name])
            return example

        d = tf.data.Dataset.from_tensor_slices(tf.constant(input_files))
        if is_training:
            d = d.repeat()
        d = d.apply(
            tf.contrib.data.parallel_interleave(
                tf.data.TFRecordDataset, sloppy=False, cycle_length=len(input_files)
            )
        )
        d = d.apply(
            tf.contrib.data.map_and_batch(
                decode_record,
                batch_size=batch_size,
                num_parallel_batches=num_cpu_threads,
                drop_remainder=True,
            )
        )
        return d

    return input_fn


def gelu(x):
    return x * 0.5 * (1.0 + tf.erf(x / tf.sqrt(2.0)))


def create_initializer():
    return tf.truncated_normal_initializer(stddev=0.1)


def layer_norm(x, name=None):
    return tf.contrib.layers.layer_norm(
        inputs=x, begin_norm_axis=-1, begin_params_axis=-1, scope=name
    )


def dense(x, units, name, activation=None):
    return tf.layers.dense(
        x, units, activation=activation, name=name, kernel_initializer=create_initializer()
    )


def transformer_layer(x, bias, batch_size, seq_length):
    head_size = HIDDEN_SIZE // NUM_HEADS

    def split_heads(tensor):
        tensor = tf.reshape(tensor, [batch_size, seq_length, NUM_HEADS, head_size])
        return tf.transpose(tensor, [0, 2, 1, 3])

    with tf.variable_scope("attention"):
        with tf.variable_scope("self"):
            query = split_heads(dense(x, HIDDEN_SIZE, "query"))
            key = split_heads(dense(x, HIDDEN_SIZE, "key"))
            value = split_heads(dense(x, HIDDEN_SIZE, "value"))
            scores = tf.matmul(query, key, transpose_b=True) / math.sqrt(float(head_size))
            probabilities = tf.nn.softmax(scores + bias)
            context = tf.transpose(tf.matmul(probabilities, value), [0, 2, 1, 3])
            context = tf.reshape(context, [batch_size * seq_length, HIDDEN_SIZE])
        with tf.variable_scope("output"):
            attention = layer_norm(dense(context, HIDDEN_SIZE, "dense") + x)
    with tf.variable_scope("intermediate"):
        intermediate = dense(attention, INTERMEDIATE_SIZE, "dense", gelu)
    with tf.variable_scope("output"):
        return layer_norm(dense(intermediate, HIDDEN_SIZE, "dense") + attention)


class BertModel(object):
    def __init__(self, input_ids, input_mask, segment_ids):
        batch_size, seq_length = input_ids.shape.as_list()
        with tf.variable_scope("bert"):
            with tf.variable_scope("embeddings"):
                self.embedding_table = tf.get_variable(
                    "word_embeddings", [VOCAB_SIZE, HIDDEN_SIZE], initializer=create_initializer()
                )
                x = tf.gather(self.embedding_table, tf.reshape(input_ids, [-1]))
                segments = tf.get_variable(
                    "token_type_embeddings", [2, HIDDEN_SIZE], initializer=create_initializer()
                )
                one_hot = tf.one_hot(tf.reshape(segment_ids, [-1]), depth=2)
                x = tf.reshape(x + tf.matmul(one_hot, segments), [-1, seq_length, HIDDEN_SIZE])
                positions = tf.get_variable(
                    "position_embeddings",
                    [FLAGS.max_seq_length, HIDDEN_SIZE],
                    initializer=create_initializer(),
                )
                x += tf.expand_dims(tf.slice(positions, [0, 0], [seq_length, -1]), 0)
                x = tf.reshape(layer_norm(x, name="LayerNorm"), [-1, HIDDEN_SIZE])
            bias = (1.0 - tf.to_float(tf.expand_dims(tf.expand_dims(input_mask, 1), 1))) * -10000.0
            with tf.variable_scope("encoder"):
                for i in range(NUM_LAYERS):
                    with tf.variable_scope("layer_%d" % i):
                        x = transformer_layer(x, bias, batch_size, seq_length)
            self.sequence_output = tf.reshape(x, [batch_size, seq_length, HIDDEN_SIZE])
            with tf.variable_scope("pooler"):
                first = tf.squeeze(self.sequence_output[:, 0:1, :], axis=1)
                self.pooled_output = dense(first, HIDDEN_SIZE, "dense", tf.tanh)


def gather_indexes(sequence, positions):
    batch_size, seq_length, width = sequence.shape.as_list()
    offsets = tf.reshape(tf.range(0, batch_size, dtype=tf.int32) * seq_length, [-1, 1])
    flat = tf.reshape(positions + offsets, [-1])
    return tf.gather(tf.reshape(sequence, [batch_size * seq_length, width]), flat)


def get_masked_lm_output(model, positions, label_ids, label_weights):
    x = gather_indexes(model.sequence_output, positions)
    with tf.variable_scope("cls/predictions"):
        with tf.variable_scope("transform"):
            x = layer_norm(dense(x, HIDDEN_SIZE, "dense", gelu))
        output_bias = tf.get_variable(
            "output_bias", shape=[VOCAB_SIZE], initializer=tf.zeros_initializer()
        )
        logits = tf.matmul(x, model.embedding_table, transpose_b=True)
        log_probs = tf.nn.log_softmax(tf.nn.bias_add(logits, output_bias), axis=-1)
        label_ids = tf.reshape(label_ids, [-1])
        label_weights = tf.reshape(label_weights, [-1])
        one_hot_labels = tf.one_hot(label_ids, depth=VOCAB_SIZE, dtype=tf.float32)
        per_example_loss = -tf.reduce_sum(log_probs * one_hot_labels, axis=[-1])
        numerator = tf.reduce_sum(label_weights * per_example_loss)
        loss = numerator / (tf.reduce_sum(label_weights) + 1e-5)
    return loss, per_example_loss, log_probs


def get_next_sentence_output(model, labels):
    with tf.variable_scope("cls/seq_relationship"):
        weights = tf.get_variable("output_weights", [2, HIDDEN_SIZE], None, create_initializer())
        bias = tf.get_variable("output_bias", shape=[2], initializer=tf.zeros_initializer())
        logits = tf.nn.bias_add(tf.matmul(model.pooled_output, weights, transpose_b=True), bias)
        log_probs = tf.nn.log_softmax(logits, axis=-1)
        one_hot_labels = tf.one_hot(tf.reshape(labels, [-1]), depth=2, dtype=tf.float32)
        per_example_loss = -tf.reduce_sum(one_hot_labels * log_probs, axis=-1)
        return tf.reduce_mean(per_example_loss), per_example_loss, log_probs


class LAMBOptimizer(tf.train.Optimizer):
    """Adam's direction plus weight decay, scaled to the length of each variable."""

    def __init__(self, learning_rate, weight_decay_rate, exclude_from_weight_decay):
        super(LAMBOptimizer, self).__init__(False, "LAMBOptimizer")
        self.learning_rate = learning_rate
        self.weight_decay_rate = weight_decay_rate
        self.exclude_from_weight_decay = exclude_from_weight_decay

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        assignments = []
        for grad, param in grads_and_vars:
            if grad is None or param is None:
                continue
            param_name = re.match("^(.*):\\d+$", param.name).group(1)
            shape = param.shape.as_list()
            zeros = tf.zeros_initializer()
            m = tf.get_variable(param_name + "/adam_m", shape, trainable=False, initializer=zeros)
            v = tf.get_variable(param_name + "/adam_v", shape, trainable=False, initializer=zeros)
            next_m = tf.multiply(0.9, m) + tf.multiply(1.0 - 0.9, grad)
            next_v = tf.multiply(0.999, v) + tf.multiply(1.0 - 0.999, tf.square(grad))
            update = next_m / (tf.sqrt(next_v) + 1e-6)
            ratio = 1.0
            if not any(re.search(r, param_name) for r in self.exclude_from_weight_decay):
                update += self.weight_decay_rate * param
                w_norm = tf.norm(param, ord=2)
                g_norm = tf.norm(update, ord=2)
                ratio = tf.where(
                    tf.greater(w_norm, 0),
                    tf.where(tf.greater(g_norm, 0), w_norm / g_norm, 1.0),
                    1.0,
                )
            next_param = param - ratio * self.learning_rate * update
            assignments.extend([param.assign(next_param), m.assign(next_m), v.assign(next_v)])
        return tf.group(*assignments, name=name)


def create_optimizer(loss, init_lr, num_train_steps, num_warmup_steps, use_tpu):
    global_step = tf.train.get_or_create_global_step()
    learning_rate = tf.constant(value=init_lr, shape=[], dtype=tf.float32)
    learning_rate = tf.train.polynomial_decay(
        learning_rate,
        global_step,
        num_train_steps,
        end_learning_rate=0.0,
        power=1.0,
        cycle=False,
    )
    steps_float = tf.cast(global_step, tf.float32)
    warmup = init_lr * (steps_float + 1.0) / num_warmup_steps
    learning_rate = tf.where(steps_float < num_warmup_steps, warmup, learning_rate)
    optimizer = LAMBOptimizer(learning_rate, 0.01, ["LayerNorm", "layer_norm", "bias"])
    if use_tpu:
        optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
    tvars = tf.trainable_variables()
    grads = tf.gradients(loss, tvars)
    (grads, _) = tf.clip_by_global_norm(grads, clip_norm=1.0)
    train_op = optimizer.apply_gradients(zip(grads, tvars), global_step=global_step)
    # After the update: the learning rate reads the step of before.
    with tf.control_dependencies([train_op]):
        return tf.assign_add(global_step, 1, name="next_global_step")


def get_assignment_map_from_checkpoint(tvars, init_checkpoint):
    names = {re.match("^(.*):\\d+$", var.name).group(1) for var in tvars}
    return {name: name for name, _ in tf.train.list_variables(init_checkpoint) if name in names}


def model_fn_builder(init_checkpoint):
    def model_fn(features, labels, mode, params):
        for name in sorted(features.keys()):
            tf.logging.info("  name = %s, shape = %s", name, features[name].shape)
        model = BertModel(features["input_ids"], features["input_mask"], features["segment_ids"])
        masked_lm_loss, masked_lm_example_loss, masked_lm_log_probs = get_masked_lm_output(
            model,
            features["masked_lm_positions"],
            features["masked_lm_ids"],
            features["masked_lm_weights"],
        )
        next_sentence_loss, next_sentence_example_loss, next_sentence_log_probs = (
            get_next_sentence_output(model, features["next_sentence_labels"])
        )
        total_loss = masked_lm_loss + next_sentence_loss

        scaffold_fn = None
        if init_checkpoint:
            assignment_map = get_assignment_map_from_checkpoint(
                tf.trainable_variables(), init_checkpoint
            )
            if params["use_tpu"]:

                def tpu_scaffold():
                    tf.train.init_from_checkpoint(init_checkpoint, assignment_map)
                    return tf.train.Scaffold()

                scaffold_fn = tpu_scaffold
            else:
                tf.train.init_from_checkpoint(init_checkpoint, assignment_map)

        if mode == tf.estimator.ModeKeys.TRAIN:
            train_op = create_optimizer(
                total_loss,
                FLAGS.learning_rate,
                FLAGS.num_train_steps,
                FLAGS.num_warmup_steps,
                params["use_tpu"],
            )
            return tf.contrib.tpu.TPUEstimatorSpec(
                mode=mode, loss=total_loss, train_op=train_op, scaffold_fn=scaffold_fn
            )

        def metric_fn(lm_loss, lm_log_probs, lm_ids, lm_weights, ns_loss, ns_log_probs, ns_labels):
            lm_predictions = tf.argmax(lm_log_probs, axis=-1, output_type=tf.int32)
            lm_weights = tf.reshape(lm_weights, [-1])
            ns_predictions = tf.argmax(ns_log_probs, axis=-1, output_type=tf.int32)
            return {
                "masked_lm_accuracy": tf.metrics.accuracy(
                    labels=tf.reshape(lm_ids, [-1]), predictions=lm_predictions, weights=lm_weights
                ),
                "masked_lm_loss": tf.metrics.mean(values=lm_loss, weights=lm_weights),
                "next_sentence_accuracy": tf.metrics.accuracy(
                    labels=tf.reshape(ns_labels, [-1]), predictions=ns_predictions
                ),
                "next_sentence_loss": tf.metrics.mean(values=ns_loss),
            }

        eval_metrics = (
            metric_fn,
            [
                masked_lm_example_loss,
                masked_lm_log_probs,
                features["masked_lm_ids"],
                features["masked_lm_weights"],
                next_sentence_example_loss,
                next_sentence_log_probs,
                features["next_sentence_labels"],
            ],
        )
        return tf.contrib.tpu.TPUEstimatorSpec(
            mode=mode, loss=total_loss, eval_metrics=eval_metrics, scaffold_fn=scaffold_fn
        )

    return model_fn


def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    if not FLAGS.do_train and not FLAGS.do_eval:
        raise ValueError("At least one of `do_train` or `do_eval` must be True.")
    tf.gfile.MakeDirs(FLAGS.output_dir)
    train_files = [os.path.join(FLAGS.output_dir, "train%d.tfrecord" % i) for i in range(2)]
    for i, path in enumerate(train_files):
        write_examples(path, 40, seed=i)
    eval_file = os.path.join(FLAGS.output_dir, "eval.tfrecord")
    write_examples(eval_file, 32, seed=7)

    tpu_cluster_resolver = None
    if FLAGS.use_tpu and FLAGS.tpu_name:
        tpu_cluster_resolver = tf.contrib.cluster_resolver.TPUClusterResolver(
            FLAGS.tpu_name, zone=FLAGS.tpu_zone, project=FLAGS.gcp_project
        )
    is_per_host = tf.contrib.tpu.InputPipelineConfig.PER_HOST_V2
    run_config = tf.contrib.tpu.RunConfig(
        cluster=tpu_cluster_resolver,
        master=FLAGS.master,
        model_dir=FLAGS.output_dir,
        save_checkpoints_steps=FLAGS.save_checkpoints_steps,
        save_summary_steps=1,
        tpu_config=tf.contrib.tpu.TPUConfig(
            iterations_per_loop=FLAGS.iterations_per_loop,
            num_shards=FLAGS.num_tpu_cores,
            per_host_input_for_training=is_per_host,
        ),
    )
    estimator = tf.contrib.tpu.TPUEstimator(
        use_tpu=FLAGS.use_tpu,
        model_fn=model_fn_builder(FLAGS.init_checkpoint),
        config=run_config,
        train_batch_size=FLAGS.train_batch_size,
        eval_batch_size=FLAGS.eval_batch_size,
    )
    if FLAGS.do_train:
        tf.logging.info("***** Running training *****")
        estimator.train(
            input_fn=input_fn_builder(train_files, is_training=True),
            max_steps=FLAGS.num_train_steps,
        )
    if FLAGS.do_eval:
        tf.logging.info("***** Running evaluation *****")
        result = estimator.evaluate(
            input_fn=input_fn_builder([eval_file], is_training=False),
            steps=FLAGS.max_eval_steps,
        )
        with tf.gfile.GFile(os.path.join(FLAGS.output_dir, "eval_results.txt"), "w") as writer:
            for key in sorted(result.keys()):
                writer.write("%s = %s\n" % (key, str(result[key])))


if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    tf.app.run()
