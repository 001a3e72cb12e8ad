"""Every canned estimator of TensorFlow 2, from weights that NumPy made; prints what came out."""

import json
import os
import sys

import numpy as np
import tensorflow as tf

FOLDER = sys.argv[1]
RANDOM = np.random.RandomState(0)
X = RANDOM.normal(size=(64, 3)).astype(np.float32)
WORDS = RANDOM.choice(["red", "green", "blue"], 64)
ONE_OF_TWO = (X.sum(axis=1) > 0).astype(np.int64)
ONE_OF_THREE = np.digitize(X[:, 0], [-0.5, 0.5]).astype(np.int64)
TARGETS = (X @ [[1.0], [-2.0], [0.5]] + 0.3).astype(np.float32)
ABS = np.abs(TARGETS)
NUMBERS = tf.feature_column.numeric_column("x", shape=[3])
WORD = tf.feature_column.categorical_column_with_vocabulary_list("word", ["red", "green", "blue"])
INDICATOR = tf.feature_column.indicator_column(WORD)
EMBEDDING = tf.feature_column.embedding_column(WORD, dimension=2)
WEIGHTS = ("kernel", "bias", "weights", "beta", "gamma", "mean", "variance")
WIDE = [NUMBERS, WORD]
DEEP = [NUMBERS, INDICATOR]


def data(labels, epochs=None, words=True):
    features = {"x": X, "word": WORDS} if words else {"x": X}
    dataset = tf.data.Dataset.from_tensor_slices((features, labels))
    return dataset.repeat(epochs).batch(16)


def losses_of(directory):
    """Reads the losses of a training's steps from its events."""
    losses = {}
    for path in tf.io.gfile.glob(os.path.join(directory, "events*")):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag == "loss":
                    losses[event.step] = value.simple_value
    return [losses[step] for step in sorted(losses)]


def weights_of(make, labels, folder):
    """Writes a checkpoint of NumPy's weights for an estimator's variables; returns its path."""
    first = make(model_dir=os.path.join(folder, "first"))
    first.train(lambda: data(labels), steps=1)
    random = np.random.RandomState(1)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, shape in tf.train.list_variables(first.model_dir):
            if name.endswith(WEIGHTS) and not name.startswith("training/"):
                value = 0.3 * random.normal(size=shape)
                value = np.abs(value) if "variance" in name else value
                tf.compat.v1.get_variable(name, initializer=value.astype(np.float32))
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver()
        return saver.save(session, os.path.join(folder, "weights"))


def report(name, make, labels):
    """Trains, resumes, evaluates, predicts and exports; prints a line of JSON."""
    folder = os.path.join(FOLDER, name)
    # Baselines begin with zeros, and take features of one shape. DNNLinearCombinedEstimator does
    # not take warm_start_from: it begins with the seed.
    warm, words = name not in COLD, "baseline" not in name
    start = weights_of(make, labels, folder) if warm else None
    settings = start and tf.estimator.WarmStartSettings(start, ".*")
    arguments = {"warm_start_from": settings} if warm else {}
    directory = os.path.join(folder, "model")
    config = tf.estimator.RunConfig(save_summary_steps=1, tf_random_seed=1)
    first = make(model_dir=directory, config=config, **arguments)
    first.train(lambda: data(labels, words=words), steps=6)
    estimator = make(model_dir=directory, config=config)
    estimator.train(lambda: data(labels, words=words), max_steps=10)
    metrics = {
        key: float(value)
        for key, value in estimator.evaluate(lambda: data(labels, 1, words)).items()
    }
    first = next(iter(estimator.predict(lambda: data(labels, 1, words))))
    predictions = {
        key: np.asarray(value).astype(str if value.dtype == object else float).tolist()
        for key, value in first.items()
    }
    specs = tf.feature_column.make_parse_example_spec([NUMBERS, WORD] if words else [NUMBERS])
    receiver = tf.estimator.export.build_parsing_serving_input_receiver_fn(specs)
    exported = estimator.export_saved_model(os.path.join(folder, "exported"), receiver)
    model = tf.saved_model.load(exported.decode() if isinstance(exported, bytes) else exported)
    seen = {
        "losses": losses_of(directory),
        "metrics": metrics,
        "predictions": predictions,
        "variables": {v: list(shape) for v, shape in tf.train.list_variables(directory)},
        "signatures": sorted(model.signatures),
    }
    print(json.dumps({name: seen}), flush=True)


E = tf.estimator
LEGACY = tf.keras.optimizers.legacy

# Name -> a function that makes an estimator, and its labels.
TWO_COLUMNS = {"linear_feature_columns": WIDE, "dnn_feature_columns": DEEP}
CASES = {
    "linear": (lambda **k: E.LinearClassifier(WIDE, **k), ONE_OF_TWO),
    "linear_of_three": (
        lambda **k: E.LinearClassifier(WIDE, n_classes=3, optimizer="Adam", **k),
        ONE_OF_THREE,
    ),
    "linear_regressor": (
        lambda **k: E.LinearRegressor(WIDE, optimizer=LEGACY.SGD(0.1), **k),
        TARGETS,
    ),
    "linear_estimator": (
        lambda **k: E.LinearEstimator(
            E.LogisticRegressionHead(), WIDE, optimizer=lambda: LEGACY.Ftrl(0.1), **k
        ),
        ONE_OF_TWO.astype(np.float32)[:, None],
    ),
    "dnn": (lambda **k: E.DNNClassifier([4, 3], DEEP, n_classes=3, **k), ONE_OF_THREE),
    "dnn_normalized": (
        lambda **k: E.DNNClassifier([4], [NUMBERS, EMBEDDING], batch_norm=True, **k),
        ONE_OF_TWO,
    ),
    "dnn_regressor": (
        lambda **k: E.DNNRegressor([4], DEEP, optimizer=LEGACY.Adam(0.01), **k),
        TARGETS,
    ),
    "dnn_estimator": (
        lambda **k: E.DNNEstimator(E.BinaryClassHead(), [4], DEEP, optimizer="RMSProp", **k),
        ONE_OF_TWO,
    ),
    "combined": (
        lambda **k: E.DNNLinearCombinedClassifier(**TWO_COLUMNS, dnn_hidden_units=[4], **k),
        ONE_OF_TWO,
    ),
    "combined_regressor": (
        lambda **k: E.DNNLinearCombinedRegressor(**TWO_COLUMNS, dnn_hidden_units=[4], **k),
        TARGETS,
    ),
    "combined_estimator": (
        lambda **k: E.DNNLinearCombinedEstimator(
            E.RegressionHead(), **TWO_COLUMNS, dnn_hidden_units=[4], **k
        ),
        TARGETS,
    ),
    "baseline": (lambda **k: E.BaselineClassifier(n_classes=3, **k), ONE_OF_THREE),
    "baseline_regressor": (lambda **k: E.BaselineRegressor(**k), TARGETS),
    "baseline_estimator": (lambda **k: E.BaselineEstimator(E.PoissonRegressionHead(), **k), ABS),
    "old_dnn": (
        lambda **k: tf.compat.v1.estimator.DNNClassifier([4, 3], DEEP, n_classes=3, **k),
        ONE_OF_THREE,
    ),
    "old_linear": (lambda **k: tf.compat.v1.estimator.LinearClassifier(WIDE, **k), ONE_OF_TWO),
    "old_combined": (
        lambda **k: tf.compat.v1.estimator.DNNLinearCombinedClassifier(
            **TWO_COLUMNS, dnn_hidden_units=[4], **k
        ),
        ONE_OF_TWO,
    ),
}

COLD = ("baseline", "baseline_regressor", "baseline_estimator", "combined_estimator")

for case in sys.argv[2:] or CASES:
    report(case, *CASES[case])
