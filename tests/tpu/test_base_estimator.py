"""The plain Estimator: functions without params, local rules, all verbs."""

import json
import types

import pytest
import tensorflow.compat.v1 as tf
from toy import QUICK

from bert_estimator import tpu


def model_fn(features, labels, mode):
    weight = tf.get_variable("w", initializer=1.0)
    predictions = {"y": weight * features}
    if mode == tpu.ModeKeys.PREDICT:
        return tpu.EstimatorSpec(mode, predictions=predictions)
    loss = tf.reduce_mean(tf.square(labels - predictions["y"]))
    with tf.control_dependencies([loss]):
        train_op = tf.group(weight.assign_add(1.0), tf.train.get_global_step().assign_add(1))
    return tpu.EstimatorSpec(
        mode,
        predictions=predictions,
        loss=loss,
        train_op=train_op,
        eval_metric_ops={"mean": tf.metrics.mean(labels)},
    )


def input_fn():
    x = tf.constant([1.0, 2.0, 3.0])
    return tf.data.Dataset.from_tensor_slices((x, 4 * x)).batch(2)


def make(folder, model_fn=model_fn, **keywords):
    return tpu.Estimator(
        model_fn, config=tpu.RunConfig(model_dir=str(folder), session_config=QUICK), **keywords
    )


def test_the_verbs(tmp_path):
    estimator = make(tmp_path).train(input_fn)  # to the end of the data: two batches
    assert estimator.global_step() == 2
    assert estimator.evaluate(input_fn)["mean"] == 8.0
    assert [each["y"] for each in estimator.predict(input_fn)] == [3.0, 6.0, 9.0]


def test_params_are_handed_on_as_they_are(tmp_path):
    seen = []

    def with_params(features, labels, mode, params, config):
        seen.append((params, config.model_dir))
        return model_fn(features, labels, mode)

    def with_all(params, mode, config):
        seen.append((params, mode))
        return input_fn()

    estimator = make(tmp_path, with_params, params={"batch_size": 3})
    estimator.train(with_all, steps=1)
    assert seen == [({"batch_size": 3}, "train"), ({"batch_size": 3}, str(tmp_path))]
    features = tf.constant([1.0])
    assert estimator.params == {"batch_size": 3}
    with tf.Graph().as_default():
        features, labels = tf.data.make_one_shot_iterator(input_fn()).get_next()
        spec = estimator.model_fn(features, labels, tpu.ModeKeys.PREDICT, estimator.config)
    assert spec.mode == tpu.ModeKeys.PREDICT


def test_several_hosts_do_not_train_models_of_their_own(tmp_path, monkeypatch):
    cluster = {"chief": ["a:1"], "worker": ["b:1"]}
    for kind in cluster:
        task = {"type": kind, "index": 0}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
        estimator = make(tmp_path)
        message = "TF_CONFIG names 2 hosts, but an Estimator runs on one.* use a TPUEstimator"
        with pytest.raises(RuntimeError, match=message):
            estimator.train(input_fn)
        with pytest.raises(RuntimeError, match=message):
            estimator.evaluate(input_fn)
        with pytest.raises(RuntimeError, match=message):
            next(estimator.predict(input_fn))


def test_a_chief_and_its_evaluator_are_one_host_each(tmp_path, monkeypatch):
    cluster = {"chief": ["a:1"], "evaluator": ["b:1"]}
    found = []
    for kind in cluster:
        task = {"type": kind, "index": 0}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
        found.append(
            tpu.train_and_evaluate(
                make(tmp_path),
                tpu.TrainSpec(lambda: input_fn().repeat(), 3),
                tpu.EvalSpec(input_fn, start_delay_secs=0, throttle_secs=0),
            )
        )
    (nothing, _), (results, _) = found
    assert nothing is None
    assert results["global_step"] == 3


def test_the_config_is_a_run_config():
    with pytest.raises(ValueError, match=r"tf\.estimator\.RunConfig or a .*, not str"):
        tpu.Estimator(model_fn, config="there")


@pytest.mark.parametrize(
    "strategy",
    [tf.distribute.OneDeviceStrategy, lambda name: tf.distribute.MirroredStrategy([name])],
)
def test_a_strategy_of_one_replica_trains_as_no_strategy_does(tmp_path, strategy):
    strategy = strategy("/cpu:0")
    config = tpu.RunConfig(
        model_dir=str(tmp_path),
        session_config=QUICK,
        train_distribute=strategy,
        eval_distribute=strategy,
    )
    contexts = []

    def with_context(input_context=None):
        contexts.append(input_context)
        return input_fn()

    estimator = tpu.Estimator(model_fn, config=config).train(with_context)
    assert estimator.global_step() == 2 and estimator.evaluate(with_context)["mean"] == 8.0
    next(estimator.predict(with_context))
    *of_strategy, of_prediction = contexts
    for context in of_strategy:
        assert (context.num_input_pipelines, context.input_pipeline_id) == (1, 0)
        assert context.get_per_replica_batch_size(8) == 8
    assert of_prediction is None


@pytest.mark.parametrize("name", ["train_distribute", "eval_distribute", "experimental_distribute"])
def test_a_strategy_of_several_replicas_is_refused(tmp_path, name):
    config = tpu.RunConfig(
        model_dir=str(tmp_path), **{name: types.SimpleNamespace(num_replicas_in_sync=2)}
    )
    with pytest.raises(
        ValueError,
        match=rf"RunConfig\.{name} only takes a strategy that has one replica.*"
        r"on all cores of RunConfig\(master=\.\.\.\)",
    ):
        tpu.Estimator(model_fn, config=config)


def overriding(*bases, name="Own", **members):
    return type(name, bases, members)


@pytest.mark.parametrize("base", [tpu.Estimator, tpu.TPUEstimator])
def test_what_a_user_s_class_may_override(tmp_path, base):
    config = tpu.RunConfig(model_dir=str(tmp_path))
    keywords = {"train_batch_size": 1} if base is tpu.TPUEstimator else {}
    own = overriding(base, latest_checkpoint=lambda self: "a", eval_dir=lambda self: "c")
    below = overriding(own, config="d")(model_fn, config=config, **keywords)
    assert (below.latest_checkpoint(), below.eval_dir(), below.config) == ("a", "c", "d")
    assert below._model_dir == str(tmp_path)
    assert below._session_config == config.session_settings()
    with tf.Graph().as_default() as graph:
        assert below._create_and_assert_global_step(graph) is tf.train.get_global_step()
