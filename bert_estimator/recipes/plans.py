"""The named plans of `--recipe`: flags' values, each value with its source.

run_pretraining.py has RECIPES, as stages. Every recipe trains BERT-Large in two stages: 9/10 of the
examples at 128 tokens, 1/10 at 512. The second stage starts from the weights of the first stage,
with a new optimizer state and a schedule of its own.

Command   python run_pretraining.py --recipe=lamb_76min --input_file='data/{max_seq_length}/*'
Cost      lamb_76min: 1.63e20 FLOP in matrix products; 76.19 minutes on 1024 TPU v3 chips (paper)
Result    SQuAD 1.1 F1 on the development set, from the paper's table: see `EXPECTED_F1`

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


def _bert(value):
    return Planned(value, Provenance(Origin.GOOGLE))


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
    "lamb_bias_correction": assumed(False),
    "iterations_per_loop": assumed(100),
    "save_checkpoints_steps": assumed(500),
}


def _stages(*stages):
    """Returns two stages; a stage's values override the sizes that all recipes share."""
    lengths = (
        # The micro-batch is the batch of a core of the paper's pod in lamb_76min.
        {"max_seq_length": paper(128), "max_predictions_per_seq": _bert(20),
         "micro_batch_size": assumed(32)},
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
    "nvidia": tuple(
        {
            **stage,
            "learning_rate_decay_power": _nvidia(0.5),
            "legacy_schedule_jump": _nvidia(True),
            "lamb_bias_correction": _nvidia(True),
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

# The sources are the paper's table, and for "nvidia" NVIDIA's README.
EXPECTED_F1 = {
    "lamb_76min": 90.584,
    "lamb_32k": 91.475,
    "lamb_16k": 91.345,
    "lamb_8k": 91.263,
    "lamb_4k": 91.137,
    "lamb_2k": 91.946,
    "lamb_1k": 91.761,
    "lamb_512": 91.752,
    "nvidia": 90.93,
}
