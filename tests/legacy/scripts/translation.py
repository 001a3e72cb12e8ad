"""Attention from an encoder to a decoder: label smoothing, a warm-up, greedy decoding in a loop."""

from __future__ import absolute_import, division, print_function

import numpy as np
import one_model
import tensorflow as tf

flags = tf.app.flags
flags.DEFINE_integer("warmup_steps", 8, "Steps of the warm-up.")
FLAGS = flags.FLAGS

VOCAB, LENGTH, WIDTH, HEADS = 12, 6, 16, 2


def input_fn(params):
    """Gives sequences, and the same sequences reversed."""
    random = np.random.RandomState(7)
    source = random.randint(2, VOCAB, size=(96, LENGTH)).astype(np.int32)
    source[:, LENGTH - 1] = np.where(np.arange(96) % 3, source[:, LENGTH - 1], 0)  # padding
    target = source[:, ::-1]
    dataset = tf.data.Dataset.from_tensor_slices(({"source": source}, target)).repeat()
    return dataset.batch(params["batch_size"], drop_remainder=True)


def attention(queries, memory, bias, name):
    with tf.variable_scope(name, reuse=tf.AUTO_REUSE):
        heads = []
        for x, part in ((queries, "q"), (memory, "k"), (memory, "v")):
            x = tf.layers.dense(x, WIDTH, use_bias=False, name=part)
            x = tf.reshape(x, [-1, x.shape[1], HEADS, WIDTH // HEADS])
            heads.append(tf.transpose(x, [0, 2, 1, 3]))
        q, k, v = heads
        logits = tf.matmul(q, k, transpose_b=True) * (WIDTH // HEADS) ** -0.5 + bias
        mixed = tf.transpose(tf.matmul(tf.nn.softmax(logits), v), [0, 2, 1, 3])
        mixed = tf.reshape(mixed, [-1, queries.shape[1], WIDTH])
        return tf.contrib.layers.layer_norm(
            queries + tf.layers.dense(mixed, WIDTH, name="out"), begin_norm_axis=-1, scope="norm"
        )


def feed_forward(x, name):
    with tf.variable_scope(name, reuse=tf.AUTO_REUSE):
        hidden = tf.layers.dense(x, 2 * WIDTH, activation=tf.nn.relu, name="hidden")
        return x + tf.layers.dense(hidden, WIDTH, name="out")


def embed(ids):
    with tf.variable_scope("embedding", reuse=tf.AUTO_REUSE):
        table = tf.get_variable(
            "table", [VOCAB, WIDTH], initializer=tf.random_normal_initializer(stddev=WIDTH**-0.5)
        )
        places = tf.get_variable("places", [LENGTH, WIDTH], initializer=tf.zeros_initializer())
    return tf.matmul(
        tf.one_hot(ids, VOCAB), tf.broadcast_to(table, [ids.shape[0], VOCAB, WIDTH])
    ) * (WIDTH**0.5) + tf.expand_dims(places, 0), table


def encode(source):
    padding = tf.to_float(tf.equal(source, 0))[:, tf.newaxis, tf.newaxis, :] * -1e9
    x, _ = embed(source)
    x = feed_forward(attention(x, x, padding, "encoder/attention"), "encoder/ffn")
    return x, padding


def decode(target, memory, padding):
    """Returns logits [batch, length, vocabulary]; each sees the target before its place."""
    shifted = tf.pad(target, [[0, 0], [1, 0]], constant_values=1)[:, :-1]
    x, table = embed(shifted)
    later = (1.0 - tf.matrix_band_part(tf.ones([LENGTH, LENGTH]), -1, 0)) * -1e9
    x = attention(x, x, later[tf.newaxis, tf.newaxis], "decoder/self")
    x = attention(x, memory, padding, "decoder/cross")
    x = feed_forward(x, "decoder/ffn")
    return tf.einsum("blw,vw->blv", x, table)


def greedy(memory, padding, batch):
    def body(i, ids):
        best = tf.argmax(decode(ids, memory, padding), axis=-1, output_type=tf.int32)
        at_i = tf.one_hot(i, LENGTH, dtype=tf.int32)[tf.newaxis]
        return i + 1, ids * (1 - at_i) + best * at_i

    decode(tf.zeros([batch, LENGTH], tf.int32), memory, padding)  # makes the variables
    _, ids = tf.while_loop(
        lambda i, _: tf.less(i, LENGTH), body, [0, tf.zeros([batch, LENGTH], tf.int32)]
    )
    return ids


def model_fn(features, labels, mode, params):
    source = features["source"]
    source.set_shape([params["batch_size"], LENGTH])
    memory, padding = encode(source)
    if mode == tf.estimator.ModeKeys.PREDICT:
        ids = greedy(memory, padding, params["batch_size"])
        return tf.contrib.tpu.TPUEstimatorSpec(mode=mode, predictions={"ids": ids})
    labels.set_shape(source.shape)
    logits = decode(labels, memory, padding)
    loss = tf.losses.softmax_cross_entropy(
        tf.one_hot(labels, VOCAB), logits, label_smoothing=0.1, reduction=tf.losses.Reduction.MEAN
    )
    if mode == tf.estimator.ModeKeys.EVAL:

        def metric_fn(labels, logits):
            best = tf.argmax(logits, axis=-1)
            return {
                "accuracy": tf.metrics.accuracy(labels, best),
                "perplexity_part": tf.metrics.mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
                ),
            }

        return tf.contrib.tpu.TPUEstimatorSpec(
            mode=mode, loss=loss, eval_metrics=(metric_fn, [labels, logits])
        )
    step = tf.to_float(tf.train.get_global_step()) + 1.0
    learning_rate = 0.5 * WIDTH**-0.5 * tf.minimum(step**-0.5, step * FLAGS.warmup_steps**-1.5)
    optimizer = tf.train.AdamOptimizer(learning_rate, beta1=0.9, beta2=0.98, epsilon=1e-6)
    if FLAGS.use_tpu:
        optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
    train_op = tf.contrib.training.create_train_op(
        loss, optimizer, global_step=tf.train.get_global_step(), summarize_gradients=False
    )
    return tf.contrib.tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def main(_):
    estimator = one_model.make_estimator(model_fn)
    estimator.train(input_fn=input_fn, max_steps=FLAGS.train_steps)
    results = estimator.evaluate(input_fn=input_fn, steps=3)
    decoded = estimator.predict(input_fn=input_fn)
    ids = [" ".join(map(str, next(decoded)["ids"])) for _ in range(3)]
    lines = ["decoded_%d = ids %s\n" % each for each in enumerate(ids)]
    one_model.write_results(results, "".join(lines))


if __name__ == "__main__":
    tf.app.run(main)
