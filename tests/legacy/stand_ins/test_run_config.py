"""Tests the old order of the arguments of tf.estimator.RunConfig."""

import json

import pytest

from bert_estimator import tpu
from bert_estimator.legacy.stand_ins.contrib_estimator import RunConfig


def test_arguments_by_place():
    config = RunConfig("folder", 3, 50, 7, keep_checkpoint_max=2)
    assert isinstance(config, tpu.RunConfig)
    assert (config.model_dir, config.tf_random_seed) == ("folder", 3)
    assert (config.save_summary_steps, config.save_checkpoints_steps) == (50, 7)
    assert config.keep_checkpoint_max == 2
    assert config.replace(model_dir="other").model_dir == "other"


def test_more_than_the_first_four_need_names():
    with pytest.raises(TypeError, match="by position"):
        RunConfig("folder", 3, 50, 7, 600)


class Ours(RunConfig):
    """This class is a script's own configuration."""


def test_every_configuration_is_a_run_config_of_tf_estimator():
    """In TensorFlow, `isinstance(estimator.config, tf.estimator.RunConfig)` always holds."""
    estimator = tpu.Estimator(lambda features, mode: None)
    for config in (estimator.config, tpu.RunConfig(), RunConfig(), Ours(), Ours().replace()):
        assert isinstance(config, RunConfig) and issubclass(type(config), RunConfig)
    assert not isinstance(tpu.TPUConfig(), RunConfig) and not issubclass(int, RunConfig)
    assert isinstance(Ours(), Ours) and issubclass(Ours, tpu.RunConfig)
    assert not isinstance(RunConfig(), Ours) and not isinstance(tpu.RunConfig(), Ours)


CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
MASTERS = {"session_master": "grpc://x:1", "eval_session_master": "grpc://y:1"}


def task(kind, index, **further):
    return {"cluster": CLUSTER, "task": {"type": kind, "index": index}, **further}


# What tf.estimator.RunConfig of TensorFlow 2.15 says: master, evaluation_master, is_chief,
# num_ps_replicas, num_worker_replicas, global_id_in_cluster.
UPSTREAM = [
    ({}, ("", "", True, 0, 1, 0)),
    ({"session_master": "grpc://x:1"}, ("grpc://x:1", "", True, 0, 1, 0)),
    ({"eval_session_master": "grpc://y:1"}, ("", "grpc://y:1", True, 0, 1, 0)),
    (MASTERS, ("grpc://x:1", "grpc://y:1", True, 0, 1, 0)),
    (task("chief", 0), ("grpc://a:1", "", True, 1, 3, 0)),
    (task("worker", 1), ("grpc://c:1", "", False, 1, 3, 2)),
    (task("ps", 0), ("grpc://d:1", "", False, 1, 3, 3)),
    (task("evaluator", 0), ("", "", False, 0, 0, None)),
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
