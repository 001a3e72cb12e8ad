"""Compares the recipes with a table that gives the source of each number, and scales them."""

import math

import pytest

from bert_estimator import optimization
from bert_estimator.command_line.provenance import Origin, Provenance
from bert_estimator.recipes import plans

PAPER, ASSUMED, NVIDIA, BERT = map(
    Provenance, (Origin.PAPER, Origin.ASSUMED, Origin.NVIDIA, Origin.GOOGLE)
)

# For each stage: batch, steps, peak rate, warm-up, length, predictions, and the rows that a core
# computes at a time; each with its source.
TABLE = {
    "lamb_76min": (
        [(65536, PAPER), (7037, PAPER), (6e-3, ASSUMED), (2000, ASSUMED)],
        [(32768, PAPER), (1562, PAPER), (4e-3, ASSUMED), (200, ASSUMED)],
    ),
    "lamb_76min_sqrt": (
        [(65536, PAPER), (7037, PAPER), (7.0711e-3, ASSUMED), (2000, ASSUMED)],
        [(32768, PAPER), (1562, PAPER), (5e-3, ASSUMED), (200, ASSUMED)],
    ),
    "lamb_32k": (
        [(32768, PAPER), (14063, PAPER), (5e-3, PAPER), (3125, PAPER)],
        [(32768, PAPER), (1562, PAPER), (5e-3, PAPER), (347, ASSUMED)],
    ),
    "lamb_16k": (
        [(16384, PAPER), (28125, PAPER), (3.5355e-3, PAPER), (3125, PAPER)],
        [(16384, PAPER), (3125, PAPER), (3.5355e-3, PAPER), (347, ASSUMED)],
    ),
    "lamb_8k": (
        [(8192, PAPER), (56250, PAPER), (2.5e-3, PAPER), (3125, PAPER)],
        [(8192, PAPER), (6250, PAPER), (2.5e-3, PAPER), (347, ASSUMED)],
    ),
    "lamb_4k": (
        [(4096, PAPER), (112500, PAPER), (1.7678e-3, PAPER), (3125, PAPER)],
        [(4096, PAPER), (12500, PAPER), (1.7678e-3, PAPER), (347, ASSUMED)],
    ),
    "lamb_2k": (
        [(2048, PAPER), (225000, PAPER), (1.25e-3, PAPER), (3125, PAPER)],
        [(2048, PAPER), (25000, PAPER), (1.25e-3, PAPER), (347, ASSUMED)],
    ),
    "lamb_1k": (
        [(1024, PAPER), (450000, PAPER), (8.8388e-4, PAPER), (3125, PAPER)],
        [(1024, PAPER), (50000, PAPER), (8.8388e-4, PAPER), (347, ASSUMED)],
    ),
    "lamb_512": (
        [(512, PAPER), (900000, PAPER), (6.25e-4, PAPER), (3125, PAPER)],
        [(512, PAPER), (100000, PAPER), (6.25e-4, PAPER), (347, ASSUMED)],
    ),
    "nvidia": (
        [(65536, NVIDIA), (7038, NVIDIA), (6e-3, NVIDIA), (2000, NVIDIA)],
        [(32768, NVIDIA), (1563, NVIDIA), (4e-3, NVIDIA), (200, NVIDIA)],
    ),
}
COLUMNS = ("train_batch_size", "num_train_steps", "learning_rate", "num_warmup_steps")
LENGTHS = (
    {"max_seq_length": (128, PAPER), "max_predictions_per_seq": (20, BERT),
     "micro_batch_size": (32, ASSUMED)},
    {"max_seq_length": (512, PAPER), "max_predictions_per_seq": (77, ASSUMED),
     "micro_batch_size": (16, ASSUMED)},
)  # fmt: skip


def test_the_table_has_all_recipes():
    assert set(TABLE) == set(plans.RECIPES)


@pytest.mark.parametrize("name", TABLE)
def test_stages(name):
    assert len(plans.RECIPES[name]) == 2
    for found, row, length in zip(plans.RECIPES[name], TABLE[name], LENGTHS, strict=True):
        expected = {**length, **dict(zip(COLUMNS, row, strict=True))}
        if name == "nvidia" and found["max_seq_length"].value == 512:
            expected["max_predictions_per_seq"] = (80, NVIDIA)
        for flag, (value, source) in expected.items():
            assert found[flag].value == pytest.approx(value, rel=1e-4), flag
            assert found[flag].source == source, flag
        assert found["optimizer"] == plans.Planned("lamb", PAPER)
        as_nvidia = name == "nvidia"
        assert found["learning_rate_decay_power"].value == (0.5 if as_nvidia else 1.0)
        assert found["legacy_schedule_jump"].value == as_nvidia
        assert found["lamb_bias_correction"].value == as_nvidia
        assert found["weight_decay"] == plans.Planned(0.01, NVIDIA if as_nvidia else PAPER)


@pytest.mark.parametrize("name", [name for name in TABLE if name != "nvidia"])
def test_every_recipe_of_the_paper_sees_512_million_examples_a_tenth_of_them_long(name):
    examples = [
        stage["train_batch_size"].value * stage["num_train_steps"].value
        for stage in plans.RECIPES[name]
    ]
    assert sum(examples) == pytest.approx(512e6, rel=2e-3)
    assert examples[1] / sum(examples) == pytest.approx(0.1, abs=1e-3)


def test_the_schedule_of_the_76_minutes():
    """The rate rises to the peak, does not jump there, and falls linearly to 0."""
    for stage, points in zip(
        plans.RECIPES["lamb_76min"],
        (
            {0: 0.0, 1000: 3e-3, 2000: 6e-3, 4518.5: 3e-3, 7037: 0.0},
            {0: 0.0, 100: 2e-3, 200: 4e-3, 881: 2e-3, 1562: 0.0},
        ),
        strict=True,
    ):
        schedule = optimization.WarmupPolynomialDecay(
            *(stage[name].value for name in COLUMNS[2:0:-1]), stage[COLUMNS[3]].value
        )
        for step, rate in points.items():
            assert float(schedule(step)) == pytest.approx(rate, rel=1e-6, abs=1e-12)


def test_what_lamb_leaves_alone():
    """Decay and adaptation have the default exclusions (ALBERT; the paper's first author)."""
    decay = optimization.AddDecayedWeights(0.01, optimization.LAYER_NORM_AND_BIAS)
    layer = "bert/encoder/layer_0/attention"
    for name, expected in {
        f"{layer}/self/query/kernel": False,
        f"{layer}/self/query/bias": True,
        f"{layer}/output/LayerNorm/gamma": True,
        f"{layer}/output/LayerNorm/beta": True,
        "bert/embeddings/word_embeddings": False,
        "bert/pooler/dense/kernel": False,
        "cls/predictions/output_bias": True,
        "cls/seq_relationship/output_weights": False,
        "cls/seq_relationship/output_bias": True,
    }.items():
        assert (decay.of(name) is None) == expected, name


STAGES = plans.RECIPES["lamb_76min"]


def values(stage):
    return {name: given.value for name, given in stage.items()}


def test_the_whole_scale_changes_nothing():
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
def test_a_scale_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="must be smoke, or a number above 0 and at most 1"):
        plans.parse_scale(text)
