"""The batch size each user function sees, on one core and on several."""

import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.tpu.job import Job


def make_job(returned=None, **keywords):
    seen = []

    def model_fn(features, params):
        seen.append(params)
        return returned or tpu.TPUEstimatorSpec("train")

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
    assert seen == [{"a": 1, **model_params}]
    given = job.input_params(start_step=5)
    context = given.pop("context")
    assert given == {"a": 1, **input_params}
    assert context.global_step == 5
    assert context.num_replicas == keywords.get("num_replicas", 1)


def test_what_a_model_fn_must_return():
    with tf.Graph().as_default():
        job, _ = make_job(returned={"loss": 0.0})
        with pytest.raises(ValueError, match=r"must return a TPUEstimatorSpec .*, not dict"):
            job.call_model_fn("features", None)
