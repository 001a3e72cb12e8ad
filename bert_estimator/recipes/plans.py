"""The named plans of `--recipe`: flags' values, each value with its source.

run_pretraining.py has RECIPES, as stages. Every recipe trains BERT-Large in two stages: 9/10 of the
examples at 128 tokens, 1/10 at 512. The second stage starts from the weights of the first stage,
with a new optimizer state and a schedule of its own.
A `Scale` makes a proportionally smaller experiment of a recipe, for --scale.

Command   python run_pretraining.py --recipe=lamb_76min --input_file='data/{max_seq_length}/*'
Cost      lamb_76min: 1.63e20 FLOP in matrix products; 76.19 minutes on 1024 TPU v3 chips (paper)

The paper is You et al., "Large batch optimization for deep learning: training BERT in 76 minutes"
(ICLR 2020). Values that it leaves open are marked as assumed here and in each run's config.json.
"""

import dataclasses
import math
from typing import Any

from bert_estimator.command_line.provenance import Origin, Provenance


@dataclasses.dataclass(frozen=True)
class Planned:
    """Holds a flag's value, and the source of that value."""

    value: Any
    source: Provenance


def paper(value: Any) -> Planned:
    return Planned(value, Provenance(Origin.PAPER))


def assumed(value: Any) -> Planned:
    return Planned(value, Provenance(Origin.ASSUMED))


def _nvidia(value):
    return Planned(value, Provenance(Origin.NVIDIA))


# This is BERT-Large (Devlin et al., 2018).
NETWORK = dict(
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
    max_position_embeddings=512,
)
VOCAB_SIZE = 30522

_COMMON = {
    "optimizer": paper("lamb"),
    "precision": assumed("bfloat16"),
    "learning_rate_decay_power": paper(1.0),
    "legacy_schedule_jump": assumed(False),
    "weight_decay": paper(0.01),
    "lamb_bias_correction": assumed(False),
    "iterations_per_loop": assumed(100),
    "save_checkpoints_steps": assumed(500),
}


def _stages(*stages):
    """Returns two stages; a stage's values override the sizes that all recipes share."""
    lengths = (
        # The micro-batch is the batch of a core of the paper's pod in lamb_76min.
        {"max_seq_length": paper(128), "micro_batch_size": assumed(32),
         "max_predictions_per_seq": Planned(20, Provenance(Origin.GOOGLE))},
        {"max_seq_length": paper(512), "max_predictions_per_seq": assumed(77),
         "micro_batch_size": assumed(16)},
    )  # fmt: skip
    return tuple(
        {**_COMMON, **length, **stage} for length, stage in zip(lengths, stages, strict=True)
    )


def square_root_rate(batch: int) -> float:
    """Returns a rate by the paper's rule: the square root of the batch, and 5e-3 at 32768."""
    return 5e-3 * math.sqrt(batch / 32768)


def _row(batch, steps_1, steps_2):
    """Returns a row of the paper's table: both stages have the same batch and rate."""
    both = {"train_batch_size": paper(batch), "learning_rate": paper(square_root_rate(batch))}
    # Warm-up is the same share of the steps in stage 2 as in stage 1, which has 3125 steps of it.
    return _stages(
        {**both, "num_train_steps": paper(steps_1), "num_warmup_steps": paper(3125)},
        {**both, "num_train_steps": paper(steps_2), "num_warmup_steps": assumed(347)},
    )


def _76min(rate_1, rate_2):
    return _stages(
        {
            "train_batch_size": paper(65536),
            "learning_rate": rate_1,
            "num_train_steps": paper(7037),
            "num_warmup_steps": assumed(2000),
        },
        {
            "train_batch_size": paper(32768),
            "learning_rate": rate_2,
            "num_train_steps": paper(1562),
            "num_warmup_steps": assumed(200),
        },
    )


# The paper gives the batches, the steps and the lengths of its runs, the square-root rule for
# rates, and 3125 steps of warm-up for every batch. It does not give the rates and warm-ups of the
# 65536/32768 run.
RECIPES = {
    "lamb_76min": _76min(assumed(6e-3), assumed(4e-3)),
    "lamb_76min_sqrt": _76min(assumed(square_root_rate(65536)), assumed(square_root_rate(32768))),
    "lamb_32k": _row(32768, 14063, 1562),
    "lamb_16k": _row(16384, 28125, 3125),
    "lamb_8k": _row(8192, 56250, 6250),
    "lamb_4k": _row(4096, 112500, 12500),
    "lamb_2k": _row(2048, 225000, 25000),
    "lamb_1k": _row(1024, 450000, 50000),
    "lamb_512": _row(512, 900000, 100000),
    # Of DeepLearningExamples' PyTorch code, whose LAMB is rule B of `LAMBOptimizer`.
    "nvidia": tuple(
        {
            **stage,
            "learning_rate_decay_power": _nvidia(0.5),
            "legacy_schedule_jump": _nvidia(True),
            "lamb_bias_correction": _nvidia(True),
            "weight_decay": _nvidia(0.01),
        }
        for stage in _stages(
            {
                "train_batch_size": _nvidia(65536),
                "learning_rate": _nvidia(6e-3),
                "num_train_steps": _nvidia(7038),
                "num_warmup_steps": _nvidia(2000),
            },
            {
                "train_batch_size": _nvidia(32768),
                "learning_rate": _nvidia(4e-3),
                "num_train_steps": _nvidia(1563),
                "num_warmup_steps": _nvidia(200),
                "max_predictions_per_seq": _nvidia(80),
            },
        )
    ),
}


@dataclasses.dataclass(frozen=True)
class Scale:
    """Holds the factors of a recipe's sizes; `name` is the value of --scale."""

    name: str
    # Factor of the number of weights in the layers. Its cube root is the factor of the number of
    # layers, and of each side of their matrices.
    network: float
    batch: float  # the result is a power of two, and at least 4
    steps: float  # of training and of the warm-up
    length: float = 1.0  # of the sequence and of the number of predictions

    def network_sizes(self) -> dict[str, int]:
        """Returns the fields of a `BertConfig`, without the vocabulary."""
        side = self.network ** (1 / 3)
        heads = max(2, round(NETWORK["num_attention_heads"] * side))
        return {
            **NETWORK,
            "num_hidden_layers": max(2, round(NETWORK["num_hidden_layers"] * side)),
            "num_attention_heads": heads,
            "hidden_size": 64 * heads,
            "intermediate_size": 256 * heads,
        }

    def stage(self, stage: dict[str, Planned]) -> dict[str, Planned]:
        """Scales a recipe's stage, a dict of flag name -> `Planned`."""
        old = {name: planned.value for name, planned in stage.items()}
        batch = max(4, 2 ** round(math.log2(old["train_batch_size"] * self.batch)))
        steps = max(4, round(old["num_train_steps"] * self.steps))
        new = {
            "train_batch_size": batch,
            "micro_batch_size": min(old["micro_batch_size"], batch),
            # The rate is proportional to the square root of the batch, by the paper's rule.
            "learning_rate": old["learning_rate"] * math.sqrt(batch / old["train_batch_size"]),
            "num_train_steps": steps,
            "num_warmup_steps": max(1, round(old["num_warmup_steps"] * self.steps)),
            "max_seq_length": max(16, round(old["max_seq_length"] * self.length)),
            "max_predictions_per_seq": max(2, round(old["max_predictions_per_seq"] * self.length)),
            "iterations_per_loop": max(1, min(old["iterations_per_loop"], steps // 8)),
            "save_checkpoints_steps": max(1, min(old["save_checkpoints_steps"], steps // 3)),
        }
        scaled = dict(stage)
        for name, value in new.items():
            if value != old[name]:
                source = dataclasses.replace(stage[name].source, scaled_from=old[name])
                scaled[name] = Planned(value, source)
        return scaled


# "smoke" takes a few minutes on two cores.
SCALES = {"smoke": Scale("smoke", network=1e-3, batch=2**-10, steps=2**-6, length=0.25)}


def parse_scale(text: str) -> Scale:
    """Returns a preset `Scale`, or a `Scale` with one fraction for all sizes but the length; it
    raises ValueError for another text, which the caller explains."""
    if text in SCALES:
        return SCALES[text]
    try:
        fraction = float(text)
    except ValueError:
        fraction = math.nan
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"must be {', '.join(SCALES)}, or a number above 0 and at most 1")
    return Scale(text, fraction, fraction, fraction)
