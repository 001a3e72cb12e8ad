"""TF_CONFIG: what it makes of a process, and that no part of it is ignored."""

import json
import re
import threading

import pytest
from toy import input_fn, make_estimator, make_model_fn

import run_pretraining
from bert_estimator import tpu
from bert_estimator.cluster import cluster_task

CLUSTER = {"chief": ["a:1"], "evaluator": ["b:1"]}


@pytest.fixture
def set_config(monkeypatch):
    def set_config(**config):
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))

    return set_config


def test_reading_does_not_depend_on_what_can_run(set_config):
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
    set_config(cluster=cluster, task={"type": "ps", "index": 0})
    task = cluster_task.of_tf_config()
    assert (task.type, task.index, task.is_chief, task.global_id) == ("ps", 0, False, 3)
    assert (task.num_ps_replicas, task.num_worker_replicas) == (1, 3)
    with pytest.raises(ValueError, match=r"tasks of type \['ps'\] cannot run here.* not supported"):
        task.hosts()


def test_alone_a_process_has_no_hosts(set_config, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert cluster_task.of_tf_config() == cluster_task.Task()
    assert cluster_task.Task().hosts() == ((), 0)
    set_config(task={"type": "worker", "index": 0})
    assert cluster_task.of_tf_config() == cluster_task.Task()


@pytest.mark.parametrize(
    ("kind", "cluster", "hosts"),
    [
        ("chief", CLUSTER, ["a:1"]),
        ("evaluator", CLUSTER, []),
        ("evaluator", {"chief": ["a:1"]}, []),
        ("master", {"master": ["a:1"], "ps": []}, ["a:1"]),
    ],
)
def test_one_trains_and_one_evaluates(set_config, kind, cluster, hosts):
    set_config(cluster=cluster, task={"type": kind, "index": 0})
    assert cluster_task.of_tf_config().hosts() == (tuple(hosts), 0)


@pytest.mark.parametrize(("kind", "index", "host"), [("chief", 0, 0), ("worker", 1, 2)])
def test_several_hosts_train_together(set_config, kind, index, host):
    cluster = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "evaluator": ["d:1"]}
    set_config(cluster=cluster, task={"type": kind, "index": index})
    assert cluster_task.of_tf_config().hosts() == (("a:1", "b:1", "c:1"), host)


def test_a_master_is_alone(set_config):
    set_config(cluster={"master": ["a"], "worker": ["b"]}, task={"type": "master", "index": 0})
    assert tpu.RunConfig().num_worker_replicas == 2
    message = "a master trains and evaluates in turn, so it must be the only host"
    with pytest.raises(ValueError, match=message):
        cluster_task.of_tf_config().hosts()


def test_the_address_of_a_task_names_no_cores(set_config):
    set_config(cluster={"chief": ["a:1"], "worker": ["b:1"]}, task={"type": "worker", "index": 0})
    config = tpu.RunConfig()
    assert (config.master, config.evaluation_master) == ("grpc://b:1", "grpc://b:1")
    assert (config.cores_of(evaluating=False), config.cores_of(evaluating=True)) == ("", "")
    config = tpu.RunConfig(evaluation_master="rehearse:2")
    assert (config.cores_of(evaluating=False), config.cores_of(evaluating=True)) == (
        "",
        "rehearse:2",
    )


def test_the_masters_of_a_session_name_cores(set_config, tmp_path):
    set_config(session_master="grpc://a:1", eval_session_master="grpc://b:1")
    estimator = make_estimator(tmp_path, master=None)
    with pytest.raises(RuntimeError, match="grpc://a:1"):
        estimator.train(input_fn, steps=1)
    with pytest.raises(RuntimeError, match="grpc://b:1"):
        estimator.evaluate(input_fn, steps=1)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('{"cluster":', ValueError, "TF_CONFIG: is not JSON: Expecting value"),
        ('["a:1"]', ValueError, "TF_CONFIG: must be an object, not "),
        ('{"task": "chief"}', ValueError, "TF_CONFIG: the task 'chief' is not an object"),
    ],
)
def test_what_is_not_a_tf_config_is_named_with_what_one_is(monkeypatch, text, error, message):
    monkeypatch.setenv("TF_CONFIG", text)
    message += r'.*\. A valid value is {"cluster": {"chief"'
    with pytest.raises(error, match=message):
        tpu.RunConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "TF_CONFIG: is not JSON of at most 64 levels: it is nested deeper"),
        ('{"task": {"type": ["worker"], "index": 0}}', r"must be a string, not \['worker'"),
        ('{"task": {"type": {}, "index": 0}}', "the type of the task must be a string, not {}"),
        ('{"task": {"type": "worker", "index": 1e400}}', "task index must be a number, not inf"),
        ('{"task": {"type": "worker", "index": []}}', r"task index must be a number, not \[\]"),
        ('{"cluster": {"chief": [3]}, "task": {"type": "chief", "index": 0}}', "chief 0 must be a"),
        ('{"cluster": {"chief": {"x": "a:1"}}}', "the task index must be a number, not 'x'"),
        ('{"model_dir": 3}', "TF_CONFIG: model_dir must be a string, not 3"),
        ('{"session_master": []}', r"TF_CONFIG: session_master must be a string, not \[\]"),
        ('{"eval_session_master": {}}', "TF_CONFIG: eval_session_master must be a string, not {}"),
    ],
)
def test_values_of_other_types(monkeypatch, capsys, tmp_path, text, message):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match=message):
        tpu.RunConfig()
    assert run_pretraining.main(["script", f"--output_dir={tmp_path}"]) == 2
    err = capsys.readouterr().err
    assert re.search(message, err)
    assert "Traceback" not in err


def test_nothing_runs_with_parameter_servers(set_config, tmp_path):
    cluster = {"chief": ["a:1"], "ps": ["b:1"]}
    for kind in cluster:
        set_config(cluster=cluster, task={"type": kind, "index": 0})
        for use_tpu in (False, True):
            estimator = make_estimator(tmp_path, use_tpu=use_tpu, predict_batch_size=4)
            for call in (
                lambda of=estimator: of.train(input_fn, steps=1),
                lambda of=estimator: of.evaluate(input_fn, steps=1),
                lambda of=estimator: next(of.predict(input_fn)),
                lambda of=estimator: tpu.train_and_evaluate(
                    of, tpu.TrainSpec(input_fn, 1), tpu.EvalSpec(input_fn)
                ),
            ):
                with pytest.raises(ValueError, match=r"\['ps'\] cannot run here: every host"):
                    call()


class Evaluator(tpu.RunConfig):
    """A process that knows by other means than TF_CONFIG what it is."""

    task_type = "evaluator"


def test_a_listener_ends_an_evaluator_that_waits(set_config, tmp_path):
    """Only a listener can end it: there is no max_steps, and no new checkpoint."""
    heard = []

    class UntilItWaits(tpu.ContinuousEvalListener):
        def after_eval(self, eval_result):
            heard.append(eval_result)
            if len(heard) == 1:
                make_estimator(tmp_path).train(input_fn, steps=3)
            return len(heard) < 3

    config = Evaluator(model_dir=str(tmp_path), master="")
    evaluator = tpu.TPUEstimator(
        make_model_fn(), config=config, train_batch_size=4, eval_batch_size=4
    )
    specs = (
        tpu.TrainSpec(input_fn),
        tpu.EvalSpec(input_fn, steps=1, start_delay_secs=0, throttle_secs=0),
    )
    results, _ = tpu.train_with_listener(evaluator, *specs, UntilItWaits())
    assert [(told.status, told.metrics) for told in heard] == [
        ("missing checkpoint", None),
        ("evaluated", results),
        ("no new checkpoint", None),
    ]
    assert results["global_step"] == 3

    class Never(tpu.ContinuousEvalListener):
        def before_eval(self):
            return False

    assert tpu.train_with_listener(evaluator, *specs, Never()) == (None, None)


def test_an_evaluator_does_not_train(set_config, tmp_path):
    set_config(cluster=CLUSTER, task={"type": "evaluator", "index": 0})
    with pytest.raises(ValueError, match="the task type of this process is 'evaluator'"):
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
