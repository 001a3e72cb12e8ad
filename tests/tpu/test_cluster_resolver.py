"""Tests the name that a cluster resolver carries."""

import pytest
import toy

from bert_estimator.tpu import RunConfig, TPUClusterResolver


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
