"""Tests what TF_CONFIG makes of a process, and that every part of it counts."""

import json
import threading

import pytest
from toy import input_fn, make_estimator, make_model_fn

from bert_estimator import tpu
from bert_estimator.tpu.program import cluster_task

CLUSTER = {"chief": ["a:1"], "evaluator": ["b:1"]}


@pytest.fixture
def set_config(monkeypatch):
    def set_config(**config):
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))

    return set_config


def test_alone_a_process_does_everything(set_config, monkeypatch):
    everything = ("worker", 0, True, True)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert cluster_task.of_tf_config()[:4] == everything
    set_config(task={"type": "worker", "index": 0})
    assert cluster_task.of_tf_config()[:4] == everything


@pytest.mark.parametrize(
    ("kind", "cluster", "trains", "evaluates"),
    [
        ("chief", CLUSTER, True, False),
        ("chief", {"chief": ["a:1"]}, True, False),
        ("evaluator", CLUSTER, False, True),
        ("evaluator", {"chief": ["a:1"]}, False, True),
        ("master", {"master": ["a:1"], "ps": []}, True, True),
    ],
)
def test_one_trains_and_one_evaluates(set_config, kind, cluster, trains, evaluates):
    set_config(cluster=cluster, task={"type": kind, "index": 0})
    assert cluster_task.of_tf_config()[:4] == (kind, 0, trains, evaluates)
    config = tpu.RunConfig(master="rehearse:2")
    assert (config.task_type, config.task_id, config.is_chief) == (kind, 0, trains)
    assert config.evaluation_master == ("rehearse:2" if trains else "")


@pytest.mark.parametrize(("kind", "index", "host"), [("chief", 0, 0), ("worker", 1, 2)])
def test_several_hosts_train_together(set_config, kind, index, host):
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "evaluator": ["d:1"]}
    set_config(cluster=cluster, task={"type": kind, "index": index})
    task = cluster_task.of_tf_config()
    assert task == (kind, index, True, False, ("a:1", "b:1", "c:1"))
    config = tpu.RunConfig()
    assert (config.task_type, config.task_id) == (kind, index)
    assert (config.is_chief, config.global_id_in_cluster) == (host == 0, host)
    assert config.num_worker_replicas == 3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"task": {"type": "ps", "index": 0}}, "without a cluster, only type worker"),
        ({"task": {"type": "worker", "index": 1}}, "without a cluster"),
        ({"cluster": {"worker": ["a"]}}, "must have one chief"),
        ({"cluster": {"chief": ["a", "b"]}}, "must have one chief"),
        ({"cluster": {"chief": ["a"], "master": ["b"]}}, "must have one chief"),
        ({"cluster": {"chief": ["a"], "ps": ["b"]}}, r"type \['ps'\] are not supported"),
        ({"cluster": CLUSTER}, "needs a task with type and index"),
        ({"cluster": CLUSTER, "task": {"type": "chief"}}, "needs a task with type and index"),
        ({"cluster": CLUSTER, "task": {"type": "master", "index": 0}}, "is not in the cluster"),
        ({"cluster": CLUSTER, "task": {"type": "chief", "index": 1}}, "is not in the cluster"),
        ({"cluster": CLUSTER, "task": {"type": "worker", "index": 0}}, "is not in the cluster"),
        ({"cluster": CLUSTER, "task": {"type": "chief", "index": "x"}}, "is not in the cluster"),
        (
            {"cluster": {"master": ["a"], "worker": ["b"]}, "task": {"type": "master", "index": 0}},
            "a master trains and evaluates in turn, so it must be the only host",
        ),
        ({"model_dir": ""}, "model_dir must not be empty"),
    ],
)
def test_other_clusters_are_refused(set_config, config, message):
    set_config(**config)
    with pytest.raises(ValueError, match=message):
        tpu.RunConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"cluster":', r"TF_CONFIG='{\"cluster\":' is not JSON: Expecting value"),
        ('["a:1"]', r"TF_CONFIG='\[\"a:1\"\]' is not a JSON object"),
        ('{"cluster": ["a:1"]}', r"TF_CONFIG: the cluster \['a:1'\] must map names to lists"),
        ('{"cluster": {"chief": "a:1"}}', "cluster {'chief': 'a:1'} must map names to lists"),
        ('{"task": "chief"}', "TF_CONFIG: the task 'chief' is not a JSON object"),
    ],
)
def test_malformed_tf_config_is_an_error_with_an_example(monkeypatch, text, message):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match=message + r'.*\. A valid value is {"cluster": {"chief"'):
        tpu.RunConfig()


def test_a_service_is_a_dict(set_config):
    set_config(service="there")
    with pytest.raises(TypeError, match="service must be a dict, not 'there'"):
        tpu.TPUConfig()


def test_the_model_dir(set_config):
    set_config(model_dir="a")
    assert tpu.RunConfig().model_dir == tpu.RunConfig(model_dir="a").model_dir == "a"
    with pytest.raises(ValueError, match="'b' differs from TF_CONFIG's 'a'"):
        tpu.RunConfig(model_dir="b")


def test_an_evaluator_does_not_train(set_config, tmp_path):
    set_config(cluster=CLUSTER, task={"type": "evaluator", "index": 0})
    with pytest.raises(ValueError, match="this process the evaluator, which does not train"):
        make_estimator(tmp_path).train(input_fn, steps=1)


def test_a_chief_trains_and_an_evaluator_evaluates_what_it_wrote(set_config, tmp_path):
    train_spec = tpu.TrainSpec(input_fn, max_steps=4)
    eval_spec = tpu.EvalSpec(input_fn, steps=1, start_delay_secs=0, throttle_secs=0)
    set_config(cluster=CLUSTER, task={"type": "evaluator", "index": 0})
    evaluator = make_estimator(tmp_path, make_model_fn())
    set_config(cluster=CLUSTER, task={"type": "chief", "index": 0})
    chief = make_estimator(tmp_path, make_model_fn(), save_checkpoints_steps=2)
    found = []
    thread = threading.Thread(
        target=lambda: found.append(tpu.train_and_evaluate(evaluator, train_spec, eval_spec))
    )
    thread.start()
    assert tpu.train_and_evaluate(chief, train_spec, eval_spec) == (None, None)
    thread.join()
    ((results, exports),) = found
    assert results == {"loss": 5.0, "global_step": 4}
    assert exports == []
