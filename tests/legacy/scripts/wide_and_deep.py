"""The census tutorial's wide and deep model, on people who are made up."""

from __future__ import absolute_import, division, print_function

import os

import numpy as np
import one_model
import tensorflow as tf

FLAGS = one_model.FLAGS

JOBS = ["Craft-repair", "Sales", "Tech-support", "Exec-managerial", "Other-service"]
EDUCATION = ["Bachelors", "HS-grad", "11th", "Masters", "Doctorate"]


def make_people(number, seed):
    random = np.random.RandomState(seed)
    age = random.randint(17, 80, number)
    hours = random.randint(10, 60, number)
    education = random.choice(EDUCATION, number)
    job = random.choice(JOBS, number)
    score = age / 20.0 + hours / 15.0 + 2.0 * (education == "Doctorate") - 1.0 * (job == "Sales")
    features = {
        "age": age.astype(np.float32),
        "hours_per_week": hours.astype(np.float32),
        "education": education,
        "occupation": job,
    }
    return features, np.where(score > 5.0, ">50K", "<=50K")


def build_model_columns():
    age = tf.feature_column.numeric_column("age")
    hours = tf.feature_column.numeric_column("hours_per_week")
    education = tf.feature_column.categorical_column_with_vocabulary_list("education", EDUCATION)
    occupation = tf.feature_column.categorical_column_with_hash_bucket("occupation", 20)
    age_buckets = tf.feature_column.bucketized_column(age, [18, 25, 35, 45, 55, 65])
    wide = [
        education,
        occupation,
        age_buckets,
        tf.feature_column.crossed_column(["education", "occupation"], 50),
        tf.feature_column.crossed_column([age_buckets, "education"], 50),
    ]
    deep = [
        tf.feature_column.numeric_column("age", normalizer_fn=lambda x: x / 80.0),
        tf.feature_column.numeric_column("hours_per_week", normalizer_fn=lambda x: x / 60.0),
        tf.feature_column.indicator_column(education),
        tf.feature_column.embedding_column(occupation, dimension=4),
    ]
    assert hours.key == "hours_per_week"
    return wide, deep


def input_fn(seed, repeat):
    dataset = tf.data.Dataset.from_tensor_slices(make_people(192, seed))
    return dataset.repeat(repeat).batch(32)


def main(unused_argv):
    tf.logging.set_verbosity(tf.logging.INFO)
    wide, deep = build_model_columns()
    config = tf.estimator.RunConfig(
        model_dir=FLAGS.output_dir, save_checkpoints_steps=20, save_summary_steps=1
    )
    model = tf.estimator.DNNLinearCombinedClassifier(
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_hidden_units=[16, 8],
        dnn_optimizer=tf.train.AdagradOptimizer(0.05),
        label_vocabulary=["<=50K", ">50K"],
        loss_reduction=tf.losses.Reduction.SUM_OVER_BATCH_SIZE,
        config=config,
    )
    model = tf.contrib.estimator.add_metrics(
        model,
        lambda labels, predictions: {
            "mean_logistic": tf.metrics.mean(predictions["logistic"]),
        },
    )
    model.train(lambda: input_fn(0, None), max_steps=FLAGS.train_steps)
    results = model.evaluate(lambda: input_fn(1, 1))
    predictions = list(model.predict(lambda: input_fn(2, 1)))
    results["classes"] = "".join(p["classes"][0].decode()[0] for p in predictions[:40])
    for i in range(5):
        results["probability_%d" % i] = predictions[i]["probabilities"][1]
    spec = tf.feature_column.make_parse_example_spec(wide + deep)
    serving = tf.estimator.export.build_parsing_serving_input_receiver_fn(spec)
    exported = model.export_saved_model(os.path.join(FLAGS.output_dir, "export"), serving)
    with tf.Graph().as_default(), tf.Session() as session:
        meta = tf.saved_model.load(session, [tf.saved_model.tag_constants.SERVING], exported)
        results["signatures"] = " ".join(sorted(meta.signature_def))
    one_model.write_results(results)


if __name__ == "__main__":
    tf.flags.mark_flag_as_required("output_dir")
    tf.app.run()
