"""Classifies texts by their words, by feature columns over strings: a linear and a deep model."""

from __future__ import absolute_import, division, print_function

import os

import numpy as np
import one_model
import tensorflow as tf

FLAGS = one_model.FLAGS

WORDS = "the a film plot actor was is very good great bad awful dull bright slow".split()
GOOD, BAD = {"good", "great", "bright"}, {"bad", "awful", "dull", "slow"}


def make_reviews(number, seed):
    random = np.random.RandomState(seed)
    texts, labels = [], []
    while len(texts) < number:
        words = list(random.choice(WORDS, random.randint(3, 9)))
        score = len(GOOD.intersection(words)) - len(BAD.intersection(words))
        texts.append(" ".join(words))
        labels.append("positive" if score > 0 else "negative" if score < 0 else "neutral")
    return {"text": np.array(texts), "weight": random.uniform(0.5, 1.5, number)}, np.array(labels)


def split(features, label):
    words = tf.string_split([features["text"]]).values
    return {"words": words, "weight": tf.cast(features["weight"], tf.float32)}, label


def input_fn(seed, num_epochs=None):
    dataset = tf.data.Dataset.from_tensor_slices(make_reviews(160, seed)).map(split)
    dataset = dataset.repeat(num_epochs)
    shapes = {"words": [None], "weight": []}, []
    return dataset.padded_batch(32, shapes)


def serving_input_receiver_fn():
    texts = tf.placeholder(tf.string, [None], name="texts")
    words = tf.sparse_tensor_to_dense(tf.string_split(texts), default_value="")
    weights = tf.ones_like(tf.strings.length(texts), tf.float32)
    features = {"words": words, "weight": weights}
    return tf.estimator.export.ServingInputReceiver(features, {"texts": texts})


def make_estimator(model_dir, deep):
    words = tf.feature_column.categorical_column_with_vocabulary_list(
        "words", WORDS, num_oov_buckets=2
    )
    config = tf.estimator.RunConfig(
        model_dir=model_dir, save_checkpoints_steps=20, save_summary_steps=1
    )
    common = dict(
        n_classes=3,
        label_vocabulary=["negative", "neutral", "positive"],
        weight_column="weight",
        loss_reduction=tf.losses.Reduction.SUM_OVER_BATCH_SIZE,
        config=config,
    )
    if deep:
        return tf.estimator.DNNClassifier(
            feature_columns=[tf.feature_column.embedding_column(words, 8, combiner="sqrtn")],
            hidden_units=[12],
            optimizer=tf.train.AdamOptimizer(0.02),
            batch_norm=True,
            **common,
        )
    return tf.estimator.LinearClassifier([words], sparse_combiner="mean", **common)


def main(unused_argv):
    tf.logging.set_verbosity(tf.logging.INFO)
    results = {}
    deep_dir, linear_dir = FLAGS.output_dir, os.path.join(FLAGS.output_dir, "linear")
    for name, deep, model_dir in (("deep", True, deep_dir), ("linear", False, linear_dir)):
        estimator = make_estimator(model_dir, deep)
        estimator.train(lambda: input_fn(0), max_steps=FLAGS.train_steps)
        for key, value in estimator.evaluate(lambda: input_fn(1, 1)).items():
            results["%s_%s" % (name, key)] = value
        exported = estimator.export_saved_model(
            os.path.join(FLAGS.output_dir, "export_" + name), serving_input_receiver_fn
        )
        with tf.Graph().as_default(), tf.Session() as session:
            meta = tf.saved_model.load(session, [tf.saved_model.tag_constants.SERVING], exported)
            signature = meta.signature_def["serving_default"]
            scores = session.run(
                signature.outputs["scores"].name,
                {signature.inputs["inputs"].name: ["a very good film", "awful"]},
            )
        for i, score in enumerate(scores.flatten()):
            results["%s_score_%d" % (name, i)] = score
    weights = estimator.get_variable_value("linear/linear_model/words/weights")
    results["linear_weights"] = np.sum(np.abs(weights))
    one_model.write_results(results)


if __name__ == "__main__":
    tf.flags.mark_flag_as_required("output_dir")
    tf.app.run()
