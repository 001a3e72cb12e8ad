"""The configs' messages and defaults that upstream's behaviour does not settle.

What upstream accepts and refuses is in tests/oracle.
"""

import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.tpu import InputPipelineConfig, RunConfig, TPUConfig

V2 = InputPipelineConfig.PER_HOST_V2


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        (
            {"iterations_per_loop": "30"},
            ValueError,
            r"^TPUConfig\.iterations_per_loop='30': a time must be .* such as \"30s\"$",
        ),
        ({"num_shards": True}, TypeError, r"^TPUConfig\.num_shards=True: must be a positive int"),
        (
            {"per_host_input_for_training": 9},
            ValueError,
            r"one of InputPipelineConfig\.\{PER_SHARD_V1, PER_HOST_V1, PER_HOST_V2, BROADCAST, SLI",
        ),
        (
            {"input_partition_dims": [1, 2, 3], "per_host_input_for_training": V2,
             "num_cores_per_replica": 2},
            ValueError,
            "one element .* or two .*, not 3",
        ),
        (
            {"input_partition_dims": [1], "num_cores_per_replica": 2},
            ValueError,
            "input_partition_dims needs PER_HOST_V2",
        ),
        (
            {"input_partition_dims": [1], "per_host_input_for_training": V2},
            ValueError,
            "input_partition_dims needs num_cores_per_replica",
        ),
        (
            {"experimental_host_call_every_n_steps": 0},
            ValueError,
            r"^TPUConfig\.experimental_host_call_every_n_steps=0: must be a positive integer$",
        ),
    ],
)  # fmt: skip
def test_tpu_config_says_what_is_wrong(keywords, error, message):
    with pytest.raises(error, match=message):
        TPUConfig(**keywords)


def test_input_partition_dims_are_kept():
    dims = [{"x": [1, 2, 1]}]
    config = TPUConfig(
        input_partition_dims=dims, per_host_input_for_training=V2, num_cores_per_replica=2
    )
    assert config.input_partition_dims is dims


def test_the_job_name_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"service": {"tpu_worker_job_name": "workers"}}')
    assert TPUConfig().tpu_job_name == "workers"
    assert TPUConfig(tpu_job_name="mine").tpu_job_name == "mine"
    assert RunConfig().service == {"tpu_worker_job_name": "workers"}


@pytest.mark.parametrize(
    "name",
    [
        *["save_summary_steps", "save_checkpoints_steps", "save_checkpoints_secs"],
        *["keep_checkpoint_max", "log_step_count_steps", "keep_checkpoint_every_n_hours"],
        "session_creation_timeout_secs",
    ],
)
def test_run_config_names_the_number_that_is_wrong(name):
    with pytest.raises(TypeError, match=rf"^RunConfig\.{name}='10': must be a number or None$"):
        RunConfig(**{name: "10"})
    with pytest.raises(ValueError, match=rf"^RunConfig\.{name}=-1: must be "):
        RunConfig(**{name: -1})
    assert getattr(RunConfig(**{name: 7}), name) == 7


def test_run_config_lists_what_it_knows():
    with pytest.raises(TypeError, match=r"unknown arguments \['steps'\]; known: .*'tf_random_seed"):
        RunConfig(steps=10)
    with pytest.raises(ValueError, match=r"cannot change \['master'\]; it can change .*model_dir"):
        RunConfig().replace(master="grpc://a:1")


class Cluster:
    def master(self):
        return "grpc://pod:8470"

    def cluster_spec(self):
        return tf.train.ClusterSpec({"worker": ["pod:8470"]})


def test_a_cluster_gives_master_and_cluster_spec():
    config = RunConfig(cluster=Cluster())
    assert (config.master, config.evaluation_master) == ("grpc://pod:8470",) * 2
    assert config.cluster_spec.as_dict() == {"worker": ["pod:8470"]}
    assert RunConfig().cluster_spec.as_dict() == {}


def test_a_config_prints_its_fields():
    text = repr(RunConfig(model_dir="a", save_checkpoints_steps=5))
    assert "model_dir='a'" in text
    assert "save_checkpoints_steps=5" in text
    assert "tpu_config=TPUConfig(iterations_per_loop=2, " in text
