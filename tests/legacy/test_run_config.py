"""Tests the old order of the arguments of tf.estimator.RunConfig."""

import pytest

from bert_estimator import tpu
from bert_estimator.legacy.run_config import RunConfig


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
