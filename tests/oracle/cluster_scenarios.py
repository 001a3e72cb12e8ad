"""Scenarios of TF_CONFIG: what a RunConfig says of a process, and what it refuses."""

import json
import os
from unittest import mock

import tensorflow.compat.v1 as tf
from harness import make_estimator, make_input_fn, outcome, plain, scenario, table

CHIEF = {"chief": ["a:1"]}
FULL = {"chief": ["a:1"], "ps": ["b:1", "b:2"], "worker": ["c:1", "c:2", "c:3"]}
OF_MASTER = {"master": ["a:1"], "ps": ["b:1", "b:2"], "worker": ["c:1", "c:2", "c:3"]}


def task(kind, index, cluster=None, **further):
    """Returns a TF_CONFIG with a task and, if given, its cluster."""
    return {
        "task": {"type": kind, "index": index},
        **({} if cluster is None else {"cluster": cluster}),
        **further,
    }


def configured(api, tf_config, **keywords):
    """A RunConfig made where TF_CONFIG is as given."""
    with mock.patch.dict(os.environ, TF_CONFIG=json.dumps(tf_config)):
        return api.RunConfig(**keywords)


MASTERS = {"session_master": "m", "eval_session_master": "e"}


@table(
    nothing={"tf_config": {}},
    worker_alone={"tf_config": task("worker", 0)},
    type_alone={"tf_config": {"task": {"type": "worker"}}},
    empty_cluster={"tf_config": task("worker", 0, {})},
    session_master={"tf_config": {"session_master": "m"}},
    both_masters={"tf_config": MASTERS},
    eval_session_master={"tf_config": {"eval_session_master": "e"}},
    chief_alone={"tf_config": task("chief", 0, CHIEF)},
    master_alone={"tf_config": task("master", 0, {"master": ["a:1"]})},
    chief={"tf_config": task("chief", 0, FULL)},
    worker={"tf_config": task("worker", 1, FULL)},
    worker_by_text={"tf_config": task("worker", "1", FULL)},
    worker_with_masters={"tf_config": task("worker", 1, FULL, **MASTERS)},
    ps={"tf_config": task("ps", 1, FULL)},
    evaluator={"tf_config": task("evaluator", 0, FULL)},
    second_evaluator={"tf_config": task("evaluator", 1, FULL)},
    evaluator_with_masters={"tf_config": task("evaluator", 0, FULL, **MASTERS)},
    evaluator_with_session_master={"tf_config": task("evaluator", 0, FULL, session_master="m")},
    evaluator_in_cluster={"tf_config": task("evaluator", 0, {**CHIEF, "evaluator": ["e:1"]})},
    chief_beside_evaluator={"tf_config": task("chief", 0, {**CHIEF, "evaluator": ["e:1"]})},
    worker_beside_evaluator={"tf_config": task("worker", 1, {**FULL, "evaluator": ["e:1"]})},
    master={"tf_config": task("master", 0, OF_MASTER)},
    worker_of_master={"tf_config": task("worker", 2, OF_MASTER)},
    ps_of_master={"tf_config": task("ps", 0, OF_MASTER)},
    further_type={"tf_config": task("other", 0, {**FULL, "other": ["d:1"]})},
    worker_beside_further_type={"tf_config": task("worker", 1, {**FULL, "other": ["d:1"]})},
    chief_and_ps={"tf_config": task("chief", 0, {**CHIEF, "ps": ["b:1"]})},
    tasks_by_number={"tf_config": task("worker", 1, {**CHIEF, "worker": {"1": "c:2"}})},
    service={"tf_config": {"service": {"a": {"b": 1}, "tpu_worker_job_name": "pod"}}},
    empty_service={"tf_config": {"service": {}}},
    model_dir={"tf_config": {"model_dir": "there"}},
    master_given={"tf_config": task("worker", 1, FULL), "keywords": {"master": "x"}},
    no_master_given={"tf_config": task("worker", 1, FULL), "keywords": {"master": ""}},
    evaluation_master_given={
        "tf_config": task("worker", 1, FULL),
        "keywords": {"evaluation_master": "x"},
    },
    evaluator_with_master_given={
        "tf_config": task("evaluator", 0, FULL),
        "keywords": {"master": "x"},
    },
    both_masters_and_master_given={"tf_config": MASTERS, "keywords": {"master": "x"}},
)
def described(api, folder, tf_config, keywords=()):
    """Everything a RunConfig says, also when TF_CONFIG has changed since, and of its copies."""
    config = configured(api, tf_config, **dict(keywords))
    names = [
        *["task_type", "task_id", "is_chief", "master", "evaluation_master", "model_dir"],
        *["num_ps_replicas", "num_worker_replicas", "global_id_in_cluster", "service"],
    ]
    copied = config.replace(tf_random_seed=3)
    return {
        **{name: plain(getattr(config, name)) for name in names},
        "cluster": {
            kind: list(tasks) if isinstance(tasks, list) else sorted(tasks.values())
            for kind, tasks in config.cluster_spec.as_dict().items()
        },
        "job_name": config.tpu_config.tpu_job_name,
        "a_copy_says_the_same": all(getattr(config, n) == getattr(copied, n) for n in names),
    }


@table(
    lone_second_worker={"tf_config": task("worker", 1), "says": ["task index must be 0"]},
    lone_chief={"tf_config": task("chief", 0), "says": ["task type must be WORKER"]},
    lone_ps={"tf_config": task("ps", 0), "says": ["task type must be WORKER"]},
    lone_evaluator={"tf_config": task("evaluator", 0), "says": ["task type must be WORKER"]},
    no_chief={"tf_config": task("worker", 0, {"worker": ["a:1"]}), "says": ['one "chief" node']},
    no_chief_for_evaluator={
        "tf_config": task("evaluator", 0, {"worker": ["a:1"]}),
        "says": ['one "chief" node'],
    },
    chief_without_tasks={"tf_config": task("worker", 0, {"chief": [], "worker": ["a:1"]})},
    two_chiefs={
        "tf_config": task("chief", 0, {"chief": ["a:1", "a:2"]}),
        "says": ['must have only one "chief" node'],
    },
    two_masters={
        "tf_config": task("master", 0, {"master": ["a:1", "a:2"]}),
        "says": ['must have only one "master" node'],
    },
    master_and_chief={
        "tf_config": task("master", 0, {**CHIEF, "master": ["b:1"]}),
        "says": ["If `master` node exists in `cluster`, job `chief` is not supported"],
    },
    evaluator_of_master={
        "tf_config": task("evaluator", 0, {"master": ["a:1"]}),
        "says": ["If `master` node exists in `cluster`, task_type `evaluator` is not supported"],
    },
    no_task={"tf_config": {"cluster": FULL}, "says": ["task type must be set"]},
    no_type={"tf_config": task(None, 0, FULL), "says": ["task type must be set"]},
    no_index={"tf_config": task("worker", None, FULL), "says": ["task index must be set"]},
    negative_index={"tf_config": task("worker", -1, FULL), "says": ["must be non-negative number"]},
    large_index={
        "tf_config": task("worker", 3, FULL),
        "says": ["3 is not a valid task_id for task_type worker in the cluster_spec"],
    },
    index_of_text={"tf_config": task("worker", "x", FULL)},
    unknown_type={
        "tf_config": task("other", 0, FULL),
        "says": ["other is not a valid task_type in the cluster_spec"],
    },
    chief_of_master={
        "tf_config": task("chief", 0, OF_MASTER),
        "says": ["chief is not a valid task_type in the cluster_spec"],
    },
    cluster_of_list={"tf_config": {"cluster": ["a:1"]}, "says": ["`cluster` must be a dictionary"]},
    tasks_of_text={
        "tf_config": task("chief", 0, {"chief": "a:1"}),
        "says": ["The tasks for job 'chief' must be a list or a dictionary"],
    },
    service_of_text={
        "tf_config": {"service": "there"},
        "says": ['If "service" is set in TF_CONFIG, it must be a dict'],
    },
    model_dir_empty={
        "tf_config": {"model_dir": ""},
        "says": ["model_dir in TF_CONFIG should be non-empty"],
    },
    model_dir_differs={
        "tf_config": {"model_dir": "a"},
        "keywords": {"model_dir": "b"},
        "says": ["`model_dir` provided in RunConfig construct, if set, must have the same value"],
    },
)
def refuses(api, folder, tf_config, keywords=(), says=()):
    return outcome(lambda: configured(api, tf_config, **dict(keywords)), says)


@scenario
def text_that_is_not_json(api, folder):
    with mock.patch.dict(os.environ, TF_CONFIG="{"):
        return outcome(api.RunConfig)


@table(
    evaluator={"tf_config": task("evaluator", 0, FULL)},
    ps={"tf_config": task("ps", 0, FULL)},
)
def train_refuses(api, folder, tf_config):
    with mock.patch.dict(os.environ, TF_CONFIG=json.dumps(tf_config)):
        estimator = make_estimator(api, folder)
        return outcome(lambda: estimator.train(make_input_fn(), steps=1))


@table(evaluator={"kind": "evaluator"}, ps={"kind": "ps"}, worker={"kind": "worker"})
def overridden_task_type(api, folder, kind):
    """A subclass says what this process is."""

    class Own(api.RunConfig):
        @property
        def task_type(self):
            return kind

    config = Own(model_dir=folder)
    estimator = api.TPUEstimator(
        make_estimator(api, folder).model_fn, config=config, use_tpu=False, train_batch_size=4
    )
    seen = {"task_type": config.task_type, "of_a_copy": config.replace(model_dir="a").task_type}
    train = outcome(
        lambda: estimator.train(lambda params: tf.data.Dataset.range(0), steps=1),
        ["Train has been called wrong configuration"],
    )
    return {**seen, "refused": "says" in train and bool(train["says"])}
