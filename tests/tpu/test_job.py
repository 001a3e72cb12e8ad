"""The batch size each user function sees, on one core and on several, by the input mode."""

import pytest

from bert_estimator import tpu
from bert_estimator.tpu.job import Job

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
    job = Job(mode, None, {}, config, tpu_rules=True, batch_size=32, num_replicas=8)
    assert (job.replica_batch_size, job.input_batch_size, job.draws_per_step) == (
        model,
        given,
        draws,
    )
    assert job.same_batch == (model == 32)
    alone = Job(mode, None, {}, config, tpu_rules=False, batch_size=32)
    assert (alone.replica_batch_size, alone.input_batch_size, alone.draws_per_step) == (32, 32, 1)
