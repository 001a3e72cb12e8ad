"""Messages and defaults of configs that upstream does not settle; cluster resolvers."""

import inspect
import pickle

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator.tpu import RunConfig, TPUClusterResolver, TPUConfig


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        (
            {"iterations_per_loop": "30d"},
            ValueError,
            r"^Invalid TPUConfig `iterations_per_loop` value '30d': must be .* such as \"30s\"$",
        ),
        ({"num_shards": True}, TypeError, "^TPUConfig num_shards must be int, and positive"),
        (
            {"input_partition_dims": [[1, 2]], "num_cores_per_replica": 2},
            ValueError,
            r"^TPUConfig: input_partition_dims is not supported: .* TPUEstimator\(sharding=...\)",
        ),
        (
            {"experimental_host_call_every_n_steps": 0},
            ValueError,
            "^TPUConfig experimental_host_call_every_n_steps must be positive, not 0$",
        ),
    ],
)  # fmt: skip
def test_tpu_config_says_what_is_wrong(keywords, error, message):
    with pytest.raises(error, match=message):
        TPUConfig(**keywords)


def test_a_loop_of_digits_is_a_number():
    assert TPUConfig(iterations_per_loop="20").iterations_per_loop == 20
    assert type(TPUConfig(iterations_per_loop=np.int64(20)).iterations_per_loop) is int


def test_a_signature_says_the_defaults():
    parameters = inspect.signature(TPUConfig).parameters
    assert list(parameters) == list(TPUConfig._fields)
    assert parameters["iterations_per_loop"].default == 2
    assert pickle.loads(pickle.dumps(TPUConfig(num_shards=3))).num_shards == 3


@pytest.mark.parametrize("value", [[2], {}, 0, 1.5, "2"])
def test_an_input_mode_may_be_any_wrong_thing(value):
    message = (
        "per_host_input_for_training must be True, False or one of InputPipelineConfig"
        r"\.\{PER_SHARD_V1, PER_HOST_V1, PER_HOST_V2, BROADCAST, SLI"
    )
    with pytest.raises(ValueError, match=message):
        TPUConfig(per_host_input_for_training=value)


def test_run_config_takes_only_its_own_kind_of_tpu_config():
    for make in (RunConfig, RunConfig().replace):
        with pytest.raises(TypeError, match="tpu_config must be a TPUConfig, not 3"):
            make(tpu_config=3)


def test_a_field_cannot_be_set():
    with pytest.raises(AttributeError, match=r"config.replace\(model_dir=...\) returns a copy"):
        RunConfig().model_dir = "a"


class Elsewhere(RunConfig):
    @property
    def model_dir(self):
        return "elsewhere"


def test_a_subclass_may_override_any_field():
    assert Elsewhere(model_dir="a").replace(tf_random_seed=2).model_dir == "elsewhere"


@pytest.mark.parametrize(
    "name",
    [
        *["save_summary_steps", "save_checkpoints_steps", "save_checkpoints_secs"],
        *["keep_checkpoint_max", "log_step_count_steps", "keep_checkpoint_every_n_hours"],
        *["log_every_secs", "session_creation_timeout_secs"],
    ],
)
def test_run_config_names_the_number_that_is_wrong(name):
    with pytest.raises(TypeError, match=f"^RunConfig: {name} must be a number or None, not '10'$"):
        RunConfig(**{name: "10"})
    with pytest.raises(ValueError, match=f"^RunConfig: {name} should be >=? 0, but is -1$"):
        RunConfig(**{name: -1})
    assert getattr(RunConfig(**{name: 7}), name) == 7


def test_run_config_lists_what_it_knows():
    with pytest.raises(TypeError, match=r"unknown arguments \['steps'\]; known: .*'tf_random_seed"):
        RunConfig(steps=10)
    with pytest.raises(ValueError, match=r"Replacing master is not supported. Allowed .*model_dir"):
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


def test_settings_of_a_session():
    given = tf.ConfigProto(intra_op_parallelism_threads=3)
    assert RunConfig(session_config=given).session_settings() == given
    settings = RunConfig().session_settings()
    assert settings.allow_soft_placement
    rewriting = settings.graph_options.rewrite_options
    assert rewriting.meta_optimizer_iterations == rewriting.ONE
    assert settings.graph_options.optimizer_options.opt_level == tf.OptimizerOptions.L0


def test_sessions_that_train_may_have_settings_of_their_own():
    one, other = (tf.ConfigProto(intra_op_parallelism_threads=n) for n in (1, 2))
    config = RunConfig(session_config=one)
    assert config.session_settings(training=True) == one
    config = config.replace(train_session_config=other)
    assert config.session_settings(training=True) == other
    assert config.session_settings() == one
    config.session_settings(training=True).intra_op_parallelism_threads = 7  # of a copy
    assert config.session_settings(training=True) == other
    config = RunConfig(train_session_config=other)
    assert config.session_settings() == RunConfig().session_settings()
    with pytest.raises(ValueError, match="train_session_config must be instance of ConfigProto"):
        RunConfig(train_session_config={})


def test_sessions_without_gpus_keep_their_other_settings():
    one, other = (tf.ConfigProto(intra_op_parallelism_threads=n) for n in (1, 2))
    given = RunConfig(session_config=one, train_session_config=other, tf_random_seed=3)
    config = given.without_gpus()
    assert config.tf_random_seed == 3
    for training, threads in ((False, 1), (True, 2)):
        settings = config.session_settings(training)
        assert settings.intra_op_parallelism_threads == threads
        assert settings.device_count["GPU"] == 0
    assert "GPU" not in given.session_settings().device_count
    assert RunConfig().without_gpus().session_settings(training=True).allow_soft_placement


@pytest.mark.parametrize("tpu", ["rehearse:2", b"rehearse:2", ["rehearse:2"]])
def test_the_name_becomes_the_master(tpu):
    resolver = TPUClusterResolver(tpu, zone="us-central1-b", project="mine")
    config = RunConfig(cluster=resolver)
    assert (config.master, config.evaluation_master) == ("rehearse:2", "rehearse:2")
    assert resolver.get_master() == "rehearse:2"
    assert not config.cluster_spec.jobs


def test_without_a_name_it_is_tpu_name(monkeypatch):
    monkeypatch.setenv("TPU_NAME", "rehearse:4")
    assert TPUClusterResolver().master() == "rehearse:4"


@pytest.mark.parametrize("tpu_name", [None, "rehearse:4"])
@pytest.mark.parametrize("tpu", ["", b"", [""]])
def test_an_empty_name_is_the_local_master(monkeypatch, tpu, tpu_name):
    """Scripts write `TPUClusterResolver(FLAGS.tpu if FLAGS.use_tpu else "")`."""
    monkeypatch.delenv("TPU_NAME", raising=False)
    if tpu_name:
        monkeypatch.setenv("TPU_NAME", tpu_name)
    config = RunConfig(cluster=TPUClusterResolver(tpu))
    assert (config.master, config.evaluation_master) == ("", "")


@pytest.mark.parametrize("tpu_name", [None, ""])
def test_no_name_at_all(monkeypatch, tpu_name):
    monkeypatch.delenv("TPU_NAME", raising=False)
    if tpu_name is not None:
        monkeypatch.setenv("TPU_NAME", tpu_name)
    with pytest.raises(ValueError, match=r"provide a TPU name .* TPU_NAME"):
        TPUClusterResolver()


@pytest.mark.usefixtures("xla_runtime")
def test_an_estimator_runs_on_the_cores_it_names(tmp_path):
    seen = []

    def model_fn(features, mode, params):
        seen.append(params["batch_size"])
        return toy.make_model_fn()(features, mode, params)

    cluster = TPUClusterResolver("rehearse:2")
    toy.make_estimator(tmp_path, model_fn, cluster=cluster).train(toy.input_fn, steps=1)
    assert seen == [toy.BATCH_SIZE // 2]


@pytest.mark.usefixtures("xla_runtime")
def test_tpu_name_alone_is_enough_for_an_estimator(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_NAME", "rehearse:4")
    estimator = toy.make_estimator(tmp_path, num_shards=2)
    with pytest.raises(ValueError, match="master='rehearse:4' has 4 cores"):
        estimator.train(toy.input_fn, steps=1)
