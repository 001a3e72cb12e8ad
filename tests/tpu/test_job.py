"""The batch size each user function sees, on one core and on several."""

import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.tpu.job import Job


def make_job(**keywords):
    seen = []

    def model_fn(features, params):
        seen.append(params)
        with tf.Graph().as_default():
            return tpu.TPUEstimatorSpec("train", loss=tf.zeros([]), train_op=tf.no_op())

    fields = {
        "mode": tpu.ModeKeys.TRAIN,
        "params": {"a": 1},
        "config": tpu.RunConfig(),
        "tpu_rules": True,
        "batch_size": 32,
        **keywords,
    }
    return Job(model_fn=model_fn, **fields), seen


@pytest.mark.parametrize(
    ("keywords", "model_params", "input_params"),
    [
        ({}, {"batch_size": 32, "use_tpu": True}, {"batch_size": 32, "use_tpu": True}),
        (
            {"num_replicas": 8},
            {"batch_size": 4, "use_tpu": True},
            {"batch_size": 32, "use_tpu": True},
        ),
        ({"tpu_rules": False}, {"batch_size": 32, "use_tpu": False}, {"batch_size": 32}),
        ({"tpu_rules": False, "batch_size": None}, {"use_tpu": False}, {}),
    ],
)
def test_params(keywords, model_params, input_params):
    job, seen = make_job(**keywords)
    job.call_model_fn("features", None)
    (of_model,) = seen
    context = of_model.pop("context", None)
    assert of_model == {"a": 1, **model_params}
    assert (context is not None) == job.tpu_rules
    assert context is None or context.num_replicas == job.num_replicas
    given = job.input_params(start_step=5)
    context = given.pop("context")
    assert given == {"a": 1, **input_params}
    assert context.global_step == 5
    assert context.num_replicas == keywords.get("num_replicas", 1)


MODES = tpu.InputPipelineConfig


@pytest.mark.parametrize(
    ("mode", "fields", "model", "given", "draws"),
    [
        ("train", {"per_host_input_for_training": MODES.PER_HOST_V2}, 4, 4, 8),
        ("eval", {"per_host_input_for_training": MODES.PER_HOST_V2}, 4, 4, 8),
        ("train", {"per_host_input_for_training": MODES.BROADCAST}, 32, 32, 1),
        ("eval", {"per_host_input_for_training": MODES.PER_SHARD_V1}, 4, 32, 1),
        ("train", {"eval_training_input_configuration": MODES.SLICED}, 4, 32, 1),
        (
            "eval",
            {
                "per_host_input_for_training": MODES.PER_HOST_V2,
                "eval_training_input_configuration": MODES.SLICED,
            },
            4,
            32,
            1,
        ),
    ],
)
def test_batch_sizes_by_input_mode(mode, fields, model, given, draws):
    config = tpu.RunConfig(tpu_config=tpu.TPUConfig(**fields))
    job, _ = make_job(mode=mode, config=config, num_replicas=8)
    assert (job.replica_batch_size, job.input_batch_size, job.draws_per_step) == (
        model,
        given,
        draws,
    )
    assert job.same_batch == (model == 32)
    alone, _ = make_job(mode=mode, config=config, tpu_rules=False)
    assert (alone.replica_batch_size, alone.input_batch_size, alone.draws_per_step) == (32, 32, 1)
