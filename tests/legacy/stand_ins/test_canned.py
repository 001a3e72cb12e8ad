"""Tests tensorflow-estimator's canned estimators and heads on this project's Estimator."""

import json
import sys

import forked
import pytest
import replay
import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.legacy import modules, wheel
from bert_estimator.legacy.stand_ins import contrib_estimator

needs_wheel = pytest.mark.skipif(
    wheel.folder() is None, reason="needs tensorflow-estimator: the extra [estimator]"
)

NAMES = """
import importlib, json, sys
import tensorflow as tf
from bert_estimator import tpu
from bert_estimator.legacy import removed
from tensorflow.python.estimator.canned import head as old_head
from tensorflow_estimator.python.estimator import estimator as estimator_lib
from tensorflow_estimator.python.estimator.canned import dnn, head, metric_keys, prediction_keys
from tensorflow_estimator.python.estimator.export import function
from tensorflow_estimator.python.estimator.head import base_head
from tensorflow_estimator.python.estimator.hooks import basic_session_run_hooks, hooks
from tensorflow.python.estimator.hooks import hooks as old_hooks
from tensorflow_estimator.python.estimator.inputs.queues import feeding_functions
from tensorflow_estimator.python.estimator.inputs import numpy_io
from tensorflow_estimator.python.estimator.mode_keys import ModeKeys

for path, names in json.load(open(sys.argv[1])).items():
    if path.replace("tf.", "tensorflow.", 1) in removed.REMOVED:
        continue
    module = importlib.import_module(path.replace("tf.", "tensorflow.", 1))
    for name in names:
        full = "tensorflow." + path[3:] + "." + name
        if full in removed.REMOVED:
            # Of some removed modules only the names are errors.
            assert hasattr(module, name) == (full in removed.IMPORTABLE), full
        else:
            getattr(module, name)
for name in dir(tf.estimator):
    if name.endswith(("Classifier", "Regressor", "Estimator")):
        kind = getattr(tf.estimator, name)
        assert issubclass(kind, tpu.Estimator) and kind.train is tpu.Estimator.train, name
assert old_head is head and estimator_lib.Estimator is tpu.Estimator
assert issubclass(tf.estimator.MultiClassHead, base_head.Head)
assert hooks.InMemoryEvaluatorHook is tpu.InMemoryEvaluatorHook is old_hooks.InMemoryEvaluatorHook
assert hooks.make_stop_at_checkpoint_step_hook.__module__.startswith("bert_estimator.")
assert function.ModelFunction and feeding_functions
assert basic_session_run_hooks.StopAtStepHook is tf.train.StopAtStepHook
try:
    from tensorflow_estimator.python.estimator.tpu import error_handling
except ImportError as error:
    assert "error_handling is not supported" in str(error), error
assert metric_keys.MetricKeys.LOSS == "loss" and ModeKeys is tf.estimator.ModeKeys
assert numpy_io.numpy_input_fn is tf.estimator.inputs.numpy_input_fn
# The package sees TensorFlow 2's names, with Keras 2, while a script sees TensorFlow 1's.
assert dnn.tf.compat.v1.estimator.Estimator is tpu.Estimator
assert dnn.tf.compat.v1.placeholder is tf.placeholder and not hasattr(dnn.tf, "placeholder")
assert dnn.tf.keras.layers.Dense.__module__.startswith("tf_keras.")
print("all")
"""

TRAINED = """
import os, sys
import numpy as np
import tensorflow as tf
from tensorflow_estimator.python.estimator.canned import rnn

column = tf.feature_column.numeric_column("x", shape=[3])
X = np.random.RandomState(0).normal(size=(64, 3)).astype(np.float32)
LABELS = (X.sum(1) > 0).astype(np.int64)

def input_fn(features, labels, epochs=None, sparse=False):
    def change(features, labels):
        return {"s": tf.sparse.from_dense(features["x"])}, labels
    def function():
        elements = features if labels is None else (features, labels)
        data = tf.data.Dataset.from_tensor_slices(elements).repeat(epochs).batch(16)
        return data.map(change) if sparse else data
    return function

def check(name, kind, *args, features={"x": X}, labels=LABELS, sparse=False, **named):
    estimator = kind(*args, model_dir=os.path.join(sys.argv[1], name), **named)
    estimator.train(input_fn(features, labels, sparse=sparse), steps=5)
    results = estimator.evaluate(input_fn(features, labels, 1, sparse))
    assert np.isfinite(results["loss"]) and results["global_step"] == 5, results
    assert len(list(estimator.predict(input_fn(features, labels, 1, sparse)))) == 64
    print(name)

E = tf.estimator
check("dnn", E.DNNClassifier, [8], [column])
check("dnn_regressor", E.DNNRegressor, [8], [column], labels=X[:, :1])
check("linear", E.LinearClassifier, [column])
check("linear_regressor", E.LinearRegressor, [column], labels=X[:, :1])
check("both", E.DNNLinearCombinedRegressor, linear_feature_columns=[column],
      dnn_feature_columns=[column], dnn_hidden_units=[4], labels=X[:, :1])
check("baseline", E.BaselineClassifier)
check("baseline_head", E.BaselineEstimator, E.RegressionHead(), labels=X[:, :1])
check("k_means", E.experimental.KMeans, 2, labels=None, use_mini_batch=False)
ids = {"f": X[:, 0], "id": np.array([str(i) for i in range(64)])}
check("sdca", E.LinearClassifier, [tf.feature_column.numeric_column("f")], features=ids,
      optimizer=E.experimental.LinearSDCA("id"))
sequence = tf.feature_column.sequence_numeric_column("s")
check("rnn", rnn.RNNClassifier, [sequence], units=[4], cell_type="lstm", sparse=True)
print("all")
"""


def run(folder, text, *arguments):
    (folder / "script.py").write_text(text)
    return forked.run(
        [sys.executable, "-m", "bert_estimator.legacy", str(folder / "script.py"), *arguments],
        cwd=replay.ROOT,
        capture_output=True,
        text=True,
    )


@needs_wheel
def test_every_name_of_tf_estimator_is_there_or_says_what_to_use(tmp_path):
    done = run(tmp_path, NAMES, str(replay.GOLDENS / "estimator_names.json"))
    assert done.stdout.splitlines()[-1:] == ["all"], done.stderr


@needs_wheel
@pytest.mark.slow
def test_canned_estimators_train_evaluate_and_predict(tmp_path):
    done = run(tmp_path, TRAINED, str(tmp_path))
    assert done.stdout.splitlines()[-1:] == ["all"], done.stderr


def test_every_name_of_tf_estimator_is_documented():
    text = (replay.ROOT / "docs" / "legacy.md").read_text(encoding="utf-8")
    names = json.loads((replay.GOLDENS / "estimator_names.json").read_text())
    paths = [f"{module}.{name}" for module in names for name in names[module]]
    assert not [path for path in paths if f"\n| `{path}`" not in text and path not in names]


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(wheel, "folder", lambda: None)
    says = r"needs the tensorflow-estimator package: pip install 'bert-estimator\[estimator\]'"
    tensorflow = modules.LegacyModule("tensorflow.estimator")
    with pytest.raises(AttributeError, match=f"DNNClassifier {says}"):
        tensorflow.DNNClassifier  # noqa: B018
    for package in ("tensorflow_estimator.python.estimator", "tensorflow.python.estimator"):
        with pytest.raises(ModuleNotFoundError, match=f"{package}.canned {says}"):
            modules.Finder().find_spec(f"{package}.canned")
    with pytest.raises(ImportError, match=says):
        contrib_estimator.multi_class_head(3)


def model_fn(features, labels, mode, config):
    weight = tf.get_variable("w", [], initializer=tf.ones_initializer())
    loss = tf.reduce_sum(tf.square(weight * features["x"] - labels))
    step = tf.train.get_global_step()
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, step)
    return tpu.EstimatorSpec(
        mode,
        predictions={"y": weight * features["x"]},
        loss=loss,
        train_op=train_op,
        eval_metric_ops={"mine": tf.metrics.mean(weight)},
    )


def input_fn():
    return tf.data.Dataset.from_tensors(({"x": [1.0, 2.0]}, [2.0, 4.0])).repeat(3)


def test_added_metrics_are_evaluated_and_win(tmp_path):
    def metric_fn(predictions, labels, features, config):
        assert config.model_dir == str(tmp_path)
        return {
            "mine": tf.metrics.mean(predictions["y"] * 0 + 7),
            "ratio": tf.metrics.mean(labels / features["x"]),
        }

    estimator = contrib_estimator.add_metrics(tpu.Estimator(model_fn, str(tmp_path)), metric_fn)
    estimator.train(input_fn, steps=2)
    results = estimator.evaluate(input_fn)
    assert (results["mine"], results["ratio"], results["global_step"]) == (7, 2, 2)


def test_a_metric_fn_with_other_arguments():
    with pytest.raises(ValueError, match=r"metric_fn takes \['label'\], which are not expected"):
        contrib_estimator.add_metrics(tpu.Estimator(model_fn), lambda label: {})


def test_call_logit_fn_gives_what_the_function_takes():
    with tf.Graph().as_default():
        features = {"x": tf.constant(2.0)}
        called = contrib_estimator.call_logit_fn(
            lambda features, params: params * features["x"], features, "train", 3.0, None
        )
        assert isinstance(called, tf.Tensor)
        with pytest.raises(ValueError, match="logit_fn should return a Tensor or a dictionary"):
            contrib_estimator.call_logit_fn(lambda features: 1.0, features, "train", None, None)


def test_gradients_are_clipped_by_their_global_norm():
    with tf.Graph().as_default(), tf.Session() as session:
        a, b = tf.Variable(0.0), tf.Variable(0.0)
        optimizer = contrib_estimator.clip_gradients_by_norm(
            tf.train.GradientDescentOptimizer(1.0), 1.0
        )
        train = optimizer.minimize(3 * a + 4 * b)
        session.run(tf.global_variables_initializer())
        session.run(train)
        assert session.run([a, b]) == pytest.approx([-0.6, -0.8])
