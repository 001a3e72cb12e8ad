"""Tests smaller experiments of a recipe."""

import math

import pytest

from bert_estimator.command_line.provenance import Origin, Provenance
from bert_estimator.recipes import plans

STAGES = plans.RECIPES["lamb_76min"]


def values(stage):
    return {name: given.value for name, given in stage.items()}


def test_the_whole_changes_nothing():
    whole = plans.parse_scale("1")
    assert [whole.stage(stage) for stage in STAGES] == list(STAGES)
    assert whole.network_sizes() == plans.NETWORK


def test_a_fraction_of_network_batch_and_steps_with_the_rate_by_the_square_root():
    small = plans.parse_scale("0.015625")
    found = [values(small.stage(stage)) for stage in STAGES]
    assert [stage["train_batch_size"] for stage in found] == [1024, 512]
    assert [stage["num_train_steps"] for stage in found] == [110, 24]
    assert [stage["num_warmup_steps"] for stage in found] == [31, 3]
    assert [stage["learning_rate"] for stage in found] == pytest.approx([6e-3 / 8, 4e-3 / 8])
    assert [stage["max_seq_length"] for stage in found] == [128, 512]
    assert [stage["micro_batch_size"] for stage in found] == [32, 16]
    assert small.network_sizes() == {
        "hidden_size": 256,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "max_position_embeddings": 512,
    }


def test_a_changed_value_says_what_it_was():
    stage = plans.SCALES["smoke"].stage(STAGES[0])
    assert stage["train_batch_size"] == plans.Planned(
        64, Provenance(Origin.PAPER, scaled_from=65536)
    )
    assert stage["learning_rate"].source == Provenance(Origin.ASSUMED, scaled_from=0.006)
    assert stage["optimizer"] == STAGES[0]["optimizer"]


@pytest.mark.parametrize("name", plans.RECIPES)
@pytest.mark.parametrize("size", ["smoke", "1e-9", "0.3"])
def test_every_recipe_at_every_scale_can_run(name, size):
    for stage in plans.RECIPES[name]:
        small = values(plans.parse_scale(size).stage(stage))
        assert math.log2(small["train_batch_size"]).is_integer()
        assert small["train_batch_size"] % small["micro_batch_size"] == 0
        assert 0 < small["num_warmup_steps"] < small["num_train_steps"]
        assert small["max_predictions_per_seq"] <= small["max_seq_length"] <= 512
        assert small["iterations_per_loop"] <= small["num_train_steps"]


@pytest.mark.parametrize("text", ["0", "2", "-1", "nan", "tiny"])
def test_refuses(text):
    with pytest.raises(ValueError, match="must be smoke, or a number above 0 and at most 1"):
        plans.parse_scale(text)
