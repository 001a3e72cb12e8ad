"""BERT's training step in TensorFlow 1.15, as google-research/bert defines it. For Python 3.7.

    python benchmarks/tf1_bert.py DIRECTORY STEPS

times the step on the CPU in float32 and prints the result as JSON. The directory has the network
(benchmark.json) and the batches (batches.npz) that `benchmarks.training_speed` writes.

The network and the optimizer have that project's operations: dense layers of their own for
query, key and value, dropout by `tf.nn.dropout`, layer norm of tf.contrib, GELU by tanh, the words
of the masked positions alone through the vocabulary's matrix, gradients clipped by their global
norm, and an Adam with weight decay whose operations are single ones.
"""

import json
import math
import os
import resource
import sys
import time

import numpy as np
import tensorflow as tf

_WARMUP = 2  # steps before the timed ones


def build(config, batch):
    """Returns (train_op, loss) for placeholders by the names of `batches.npz`."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    length = batch["input_ids"].shape[1].value
    ids = batch["input_ids"]
    table = _weight("word_embeddings", [config["vocab_size"], hidden])
    types = _weight("token_type_embeddings", [2, hidden])
    positions = _weight("position_embeddings", [config["max_position_embeddings"], hidden])
    x = tf.gather(table, ids)
    one_hot = tf.one_hot(tf.reshape(batch["segment_ids"], [-1]), 2)
    x += tf.reshape(tf.matmul(one_hot, types), [-1, length, hidden])
    x = _dropout(_norm(x + positions[:length]))
    x = tf.reshape(x, [-1, hidden])
    adder = (1.0 - tf.cast(batch["input_mask"][:, None, None, :], tf.float32)) * -10000.0
    for _ in range(config["num_hidden_layers"]):

        def split(name, x=x):
            values = tf.reshape(_dense(x, hidden, name=name), [-1, length, heads, hidden // heads])
            return tf.transpose(values, [0, 2, 1, 3])

        query, key, value = split("query"), split("key"), split("value")
        scores = tf.matmul(query, key, transpose_b=True) / math.sqrt(hidden // heads)
        probs = _dropout(tf.nn.softmax(scores + adder))
        context = tf.transpose(tf.matmul(probs, value), [0, 2, 1, 3])
        context = tf.reshape(context, [-1, hidden])
        x = _norm(_dropout(_dense(context, hidden)) + x)
        inner = _dense(x, config["intermediate_size"], _gelu)
        x = _norm(_dropout(_dense(inner, hidden)) + x)
    x = tf.reshape(x, [-1, length, hidden])
    pooled = _dense(x[:, 0], hidden, tf.tanh)
    masked = tf.gather(x, batch["masked_lm_positions"], batch_dims=1)
    masked = _norm(_dense(tf.reshape(masked, [-1, hidden]), hidden, _gelu))
    bias = tf.get_variable("output_bias", [config["vocab_size"]], initializer=tf.zeros_initializer)
    words = tf.nn.log_softmax(tf.matmul(masked, table, transpose_b=True) + bias)
    one_hot = tf.one_hot(tf.reshape(batch["masked_lm_ids"], [-1]), config["vocab_size"])
    weights = tf.reshape(tf.cast(batch["masked_lm_weights"], tf.float32), [-1])
    losses = -tf.reduce_sum(words * one_hot, axis=-1)
    loss = tf.reduce_sum(losses * weights) / (tf.reduce_sum(weights) + 1e-5)
    next_sentence = tf.nn.log_softmax(_dense(pooled, 2))
    labels = tf.one_hot(tf.reshape(batch["next_sentence_labels"], [-1]), 2)
    loss += -tf.reduce_mean(tf.reduce_sum(next_sentence * labels, axis=-1))
    return _update(loss), loss


def _update(loss):
    """Returns the operation that clips the gradients and applies Adam with weight decay."""
    variables = tf.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 1.0)
    assignments = []
    for number, variable in enumerate(variables):
        m, v = (
            tf.get_variable(
                "slot_%d_%s" % (number, name),  # noqa: UP031
                variable.shape,
                initializer=tf.zeros_initializer,
                trainable=False,
            )
            for name in "mv"
        )
        new_m = 0.9 * m + 0.1 * gradients[number]
        new_v = 0.999 * v + 0.001 * tf.square(gradients[number])
        step = new_m / (tf.sqrt(new_v) + 1e-6) + 0.01 * variable
        assignments += [variable.assign(variable - 1e-4 * step), m.assign(new_m), v.assign(new_v)]
    return tf.group(*assignments)


def _weight(name, shape):
    return tf.get_variable(name, shape, initializer=tf.truncated_normal_initializer(stddev=0.02))


def _dense(x, units, activation=None, name=None):
    initializer = tf.truncated_normal_initializer(stddev=0.02)
    with tf.variable_scope(None, "dense"):
        return tf.layers.dense(x, units, activation, kernel_initializer=initializer, name=name)


def _norm(x):
    return tf.contrib.layers.layer_norm(x, begin_norm_axis=-1, begin_params_axis=-1)


def _dropout(x):
    return tf.nn.dropout(x, rate=0.1)


def _gelu(x):
    return x * 0.5 * (1.0 + tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * tf.pow(x, 3))))


def _cpu_secs():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main(directory, steps):
    with open(os.path.join(directory, "benchmark.json")) as reader:
        config = json.load(reader)["bert_config"]
    with np.load(os.path.join(directory, "batches.npz")) as arrays:
        batches = dict(arrays)
    tf.compat.v1.disable_v2_behavior()  # A parent with TensorFlow 2 tells its children to be so.
    batch = {
        name: tf.placeholder(array.dtype, array.shape[1:], name) for name, array in batches.items()
    }
    step = build(config, batch)
    losses = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for number in range(_WARMUP + steps):
            if number == _WARMUP:
                start, cpu_start = time.perf_counter(), _cpu_secs()
            index = number % len(batches["input_ids"])
            feeds = {batch[name]: array[index] for name, array in batches.items()}
            losses.append(float(session.run(step, feeds)[1]))
    result = {
        "device": "cpu",
        "versions": "tensorflow " + tf.__version__,
        "secs": (time.perf_counter() - start) / steps,
        "cpu_secs": (_cpu_secs() - cpu_start) / steps,
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
