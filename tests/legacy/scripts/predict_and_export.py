"""Trains a tagger, writes its predictions for each token, and exports it."""

from __future__ import absolute_import, division, print_function

import os

import numpy as np
import tensorflow as tf
from tensorflow.contrib import layers as contrib_layers
from tensorflow.contrib import tpu as contrib_tpu

flags = tf.flags
FLAGS = flags.FLAGS
flags.DEFINE_string("output_dir", None, "Where the checkpoints and the predictions go.")
flags.DEFINE_bool("do_train", True, "Whether to train.")
flags.DEFINE_bool("do_predict", True, "Whether to predict.")
flags.DEFINE_bool("do_export", True, "Whether to export.")
flags.DEFINE_bool("use_tpu", False, "Whether to use a TPU.")
flags.DEFINE_string("master", None, "TensorFlow master.")
flags.DEFINE_integer("num_train_steps", 20, "Steps of training.")
flags.DEFINE_integer("predict_batch_size", 8, "Batch size for prediction.")

LENGTH = 6


def make_data(num_examples, seed):
    random = np.random.RandomState(seed)
    ids = random.randint(0, 12, size=(num_examples, LENGTH)).astype(np.int32)
    return ids, ((ids + np.roll(ids, 1, axis=1)) % 3).astype(np.int32)


def input_fn_builder(num_examples, seed, is_training):
    def input_fn(params):
        ids, tags = make_data(num_examples, seed)
        features = {"ids": ids, "unique_ids": np.arange(num_examples, dtype=np.int32)}
        if is_training:
            features["tags"] = tags
        d = tf.data.Dataset.from_tensor_slices(features)
        if is_training:
            d = d.repeat()
        return d.batch(params["batch_size"], drop_remainder=is_training)

    return input_fn


def serving_input_fn():
    ids = tf.placeholder(tf.int32, [None, LENGTH], name="ids")
    unique_ids = tf.placeholder(tf.int32, [None], name="unique_ids")
    return tf.estimator.export.build_raw_serving_input_receiver_fn(
        {"ids": ids, "unique_ids": unique_ids}
    )()


def model_fn(features, labels, mode, params):
    with tf.variable_scope("tagger", reuse=tf.AUTO_REUSE):
        table = tf.get_variable("embeddings", [12, 8])
        x = tf.nn.embedding_lookup(table, features["ids"])
        x = tf.concat([x, tf.roll(x, shift=1, axis=1)], axis=-1)
        x = contrib_layers.fully_connected(x, 16, activation_fn=tf.nn.relu, scope="hidden")
        logits = contrib_layers.linear(x, 3, scope="logits")
    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {
            "unique_ids": features["unique_ids"],
            "tags": tf.argmax(logits, axis=-1, output_type=tf.int32),
            "probabilities": tf.nn.softmax(logits),
        }
        return contrib_tpu.TPUEstimatorSpec(
            mode=mode,
            predictions=predictions,
            export_outputs={"serving_default": tf.estimator.export.PredictOutput(predictions)},
        )
    loss = tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=features["tags"], logits=logits)
    )
    optimizer = tf.train.GradientDescentOptimizer(
        tf.train.piecewise_constant(tf.train.get_global_step(), [10], [1.0, 0.3])
    )
    if FLAGS.use_tpu:
        optimizer = contrib_tpu.CrossShardOptimizer(optimizer)
    train_op = contrib_layers.optimize_loss(
        loss=loss,
        global_step=tf.train.get_global_step(),
        learning_rate=None,
        optimizer=optimizer,
        clip_gradients=5.0,
        summaries=[],
    )
    return contrib_tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    estimator = contrib_tpu.TPUEstimator(
        use_tpu=FLAGS.use_tpu,
        model_fn=model_fn,
        config=contrib_tpu.RunConfig(
            master=FLAGS.master,
            model_dir=FLAGS.output_dir,
            save_checkpoints_steps=20,
            save_summary_steps=1,
            tpu_config=contrib_tpu.TPUConfig(iterations_per_loop=10),
        ),
        train_batch_size=8,
        predict_batch_size=FLAGS.predict_batch_size,
        export_to_tpu=False,
    )
    if FLAGS.do_train:
        estimator.train(input_fn_builder(48, 0, True), max_steps=FLAGS.num_train_steps)
    output = os.path.join(FLAGS.output_dir, "test_results.txt")
    if FLAGS.do_predict:
        with tf.gfile.GFile(output, "w") as writer:
            for result in estimator.predict(input_fn_builder(13, 1, False)):
                tags = " ".join(str(tag) for tag in result["tags"])
                writer.write("%d = %s\n" % (result["unique_ids"], tags))
                total = result["probabilities"].sum()
                writer.write("total %d = %.4f\n" % (result["unique_ids"], total))
    if FLAGS.do_export:
        path = estimator.export_savedmodel(
            os.path.join(FLAGS.output_dir, "export"), serving_input_fn
        )
        ids, _ = make_data(3, seed=1)
        with tf.Session(graph=tf.Graph()) as session:
            meta_graph = tf.saved_model.loader.load(session, ["serve"], path.decode("utf-8"))
            signature = meta_graph.signature_def["serving_default"]
            tags = session.run(
                signature.outputs["tags"].name,
                {
                    signature.inputs["ids"].name: ids,
                    signature.inputs["unique_ids"].name: np.arange(3),
                },
            )
        with tf.gfile.GFile(output, "a") as writer:
            for i, row in enumerate(tags):
                writer.write("exported %d = %s\n" % (i, " ".join(str(tag) for tag in row)))


if __name__ == "__main__":
    flags.mark_flag_as_required("output_dir")
    tf.app.run()
