"""Tests canned estimators and heads on our Estimator, RunConfig, and a script's own saver."""

import functools
import json

import legacy_script
import numpy as np
import pytest
import replay
import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.legacy import modules, wheel
from bert_estimator.legacy.stand_ins import contrib_estimator
from bert_estimator.tpu import errors
from bert_estimator.tpu.base_config import RunConfig

needs_wheel = pytest.mark.skipif(
    wheel.folder() is None, reason="needs tensorflow-estimator: the extra [estimator]"
)

NAMES = """
import importlib, json, sys
import tensorflow as tf
from bert_estimator import tpu
from bert_estimator.legacy import paths
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
    if path.replace("tf.", "tensorflow.", 1) in paths.REMOVED:
        continue
    module = importlib.import_module(path.replace("tf.", "tensorflow.", 1))
    for name in names:
        full = "tensorflow." + path[3:] + "." + name
        if full in paths.REMOVED:
            # Of some removed modules only the names are errors.
            assert hasattr(module, name) == (full in paths.IMPORTABLE), full
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
check("k_means", E.experimental.KMeans, 2, labels=None, use_mini_batch=False)
ids = {"f": X[:, 0], "id": np.array([str(i) for i in range(64)])}
check("sdca", E.LinearClassifier, [tf.feature_column.numeric_column("f")], features=ids,
      optimizer=E.experimental.LinearSDCA("id"))
sequence = tf.feature_column.sequence_numeric_column("s")
check("rnn", rnn.RNNClassifier, [sequence], units=[4], cell_type="lstm", sparse=True)
print("all")
"""


@needs_wheel
def test_every_name_of_tf_estimator_is_there_or_says_what_to_use(tmp_path):
    done = legacy_script.run(tmp_path, NAMES, replay.GOLDENS / "estimator_names.json")
    assert done.stdout.splitlines()[-1:] == ["all"]


@needs_wheel
@pytest.mark.slow
def test_canned_estimators_that_have_no_goldens_train_evaluate_and_predict(tmp_path):
    assert legacy_script.run(tmp_path, TRAINED, tmp_path).stdout.splitlines()[-1:] == ["all"]


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


def test_what_a_partial_binds_stays_bound():
    def logit_fn(features, params):
        return tf.constant(params["k"])

    with tf.Graph().as_default(), tf.Session() as session:
        bound = functools.partial(logit_fn, params={"k": 3})
        logits = contrib_estimator.call_logit_fn(bound, None, "train", {"k": 100}, None)
        assert session.run(logits) == 3

    def metric_fn(predictions, k):
        raise AssertionError

    contrib_estimator.add_metrics(tpu.Estimator(model_fn), functools.partial(metric_fn, k=1))


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


def test_arguments_by_place():
    config = RunConfig("folder", 3, 50, 7, None, None, 2, log_step_count_steps=9)
    assert (config.model_dir, config.tf_random_seed) == ("folder", 3)
    assert (config.save_summary_steps, config.save_checkpoints_steps) == (50, 7)
    assert (config.keep_checkpoint_max, config.log_step_count_steps) == (2, 9)
    assert config.replace(model_dir="other").model_dir == "other"


@pytest.mark.parametrize(
    "arguments, keywords, message",
    [
        (["folder", 3], {"tf_random_seed": 3}, r"\['tf_random_seed'\] by position and by name"),
        ([None] * 20, {}, "takes 19 arguments, but got 20"),
        ([], {"tpu_config": tpu.TPUConfig()}, r"unknown arguments \['tpu_config'\]"),
        ([], {"master": ""}, r"unknown arguments \['master'\]"),
    ],
)
def test_wrong_arguments(arguments, keywords, message):
    with pytest.raises(TypeError, match=message):
        RunConfig(*arguments, **keywords)


def test_a_config_of_contrib_learn_has_its_own_arguments(monkeypatch):
    """The first five are master, cores, log_device_placement, the share of a GPU, and the seed."""
    monkeypatch.setenv("TF_CONFIG", json.dumps({"session_master": "a"}))
    config = contrib_estimator.LearnRunConfig("", 3, True, 0.5, 7, model_dir="folder")
    assert isinstance(config, RunConfig) and not hasattr(config, "tpu_config")
    assert (config.master, config.evaluation_master, config.tf_random_seed) == ("", "", 7)
    assert (config.tf_config.intra_op_parallelism_threads, config.session_config) == (3, None)
    assert config.tf_config.gpu_options.per_process_gpu_memory_fraction == 0.5
    assert config.tf_config.log_device_placement
    assert (config.save_checkpoints_secs, config.save_checkpoints_steps) == (600, None)
    other = contrib_estimator.LearnRunConfig(evaluation_master="b", save_checkpoints_steps=3)
    assert (other.master, other.evaluation_master) == ("a", "b")
    assert (other.save_checkpoints_secs, other.save_checkpoints_steps) == (None, 3)
    never = contrib_estimator.LearnRunConfig(save_checkpoints_secs=None)
    assert (never.save_checkpoints_secs, never.save_checkpoints_steps) == (None, None)
    assert other.replace(model_dir="c").evaluation_master == "b"


class Ours(RunConfig):
    """This class is a script's own configuration."""


def test_every_configuration_is_a_run_config_of_tf_estimator():
    """As in TensorFlow 1, only TPUEstimator's has a `tpu_config`: scripts ask by `hasattr`."""
    estimator = tpu.Estimator(lambda features, mode: None)
    for config in (estimator.config, RunConfig(), Ours(), Ours().replace(model_dir="a")):
        assert isinstance(config, RunConfig) and not isinstance(config, tpu.RunConfig)
        assert not hasattr(config, "tpu_config") and not hasattr(config, "cluster")
        assert "tpu_config" not in repr(config)
    assert isinstance(tpu.RunConfig(), RunConfig) and hasattr(tpu.RunConfig(), "tpu_config")


def test_a_tpu_estimator_does_not_take_the_configuration_of_tf_estimator():
    def model_fn(features, mode, params):
        """This function is never called."""

    with pytest.raises(ValueError, match=r"must be a bert_estimator\.tpu\.RunConfig, not Ours"):
        tpu.TPUEstimator(model_fn, config=Ours(), use_tpu=False)
    with pytest.raises(ValueError, match="Replacing tpu_config is not supported"):
        Ours().replace(tpu_config=tpu.TPUConfig())
    with pytest.raises(ValueError, match=r"must be a tf\.estimator\.RunConfig or .* not dict"):
        tpu.Estimator(model_fn, config={})


CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
MASTERS = {"session_master": "grpc://x:1", "eval_session_master": "grpc://y:1"}


def task(kind, index, **further):
    return {"cluster": CLUSTER, "task": {"type": kind, "index": index}, **further}


# What tf.estimator.RunConfig of TensorFlow 2.15 says: master, evaluation_master, is_chief,
# num_ps_replicas, num_worker_replicas, global_id_in_cluster. More is in tests/oracle.
UPSTREAM = [
    (MASTERS, ("grpc://x:1", "grpc://y:1", True, 0, 1, 0)),
    (task("evaluator", 0, **MASTERS), ("", "grpc://y:1", False, 0, 0, None)),
    (task("worker", 1, session_master=""), ("", "", False, 1, 3, 2)),
    (
        task("worker", 1, eval_session_master="grpc://y:1"),
        ("grpc://c:1", "", False, 1, 3, 2),
    ),
]


@pytest.mark.parametrize("tf_config, expected", UPSTREAM, ids=str)
def test_a_config_says_what_upstreams_says(monkeypatch, tf_config, expected):
    monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config))
    for config in (RunConfig(), RunConfig().replace(tf_random_seed=3)):
        assert expected == (
            config.master,
            config.evaluation_master,
            config.is_chief,
            config.num_ps_replicas,
            config.num_worker_replicas,
            config.global_id_in_cluster,
        )


def counting_model_fn(features, mode, params):
    weight = tf.get_variable("w", initializer=0.0)
    step = tf.train.get_global_step()
    train_op = tf.group(weight.assign_add(1.0), step.assign_add(1))
    return tpu.TPUEstimatorSpec(mode, loss=tf.reduce_mean(features), train_op=train_op)


def ones_input_fn(params):
    return tf.data.Dataset.from_tensors(np.ones([params["batch_size"], 1], np.float32)).repeat()


def test_the_hook_saves_in_place_of_the_estimator(tmp_path):
    config = tpu.RunConfig(model_dir=str(tmp_path), save_checkpoints_steps=3)
    estimator = tpu.TPUEstimator(
        counting_model_fn, config=config, use_tpu=False, train_batch_size=2
    )
    asked = contrib_estimator.load_global_step_from_checkpoint_dir
    assert asked(str(tmp_path)) == asked(str(tmp_path / "absent")) == 0
    hook = contrib_estimator.AsyncCheckpointSaverHook(str(tmp_path), save_steps=2)
    estimator.train(ones_input_fn, steps=5, hooks=[hook])
    saved = sorted(path.stem for path in tmp_path.glob("*.index"))
    assert saved == ["model.ckpt-0", "model.ckpt-2", "model.ckpt-4", "model.ckpt-5"]
    assert asked(str(tmp_path)) == 5
    assert estimator.get_variable_value("w") == 5


def test_its_arguments_by_place_are_those_of_tensorflow_1(tmp_path):
    with tf.Graph().as_default():
        saver, listener = tf.train.Saver([tf.Variable(0)]), tf.train.CheckpointSaverListener()
        hook = contrib_estimator.AsyncCheckpointSaverHook(
            str(tmp_path), None, 10, saver, "other.ckpt", None, [listener]
        )
    assert (hook._saver, hook._listeners) == (saver, [listener])
    assert hook._save_path == str(tmp_path / "other.ckpt")


def test_a_directory_of_broken_checkpoints_has_no_last_step(tmp_path):
    (tmp_path / "model.ckpt-7.index").write_bytes(b"broken")
    with pytest.raises(errors.NoWholeCheckpointError, match=r"model\.ckpt-7"):
        contrib_estimator.load_global_step_from_checkpoint_dir(str(tmp_path))
