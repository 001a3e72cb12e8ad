"""`--scale`: a recipe as a proportionally smaller experiment."""

import dataclasses
import math

from bert_estimator.recipes.plans import NETWORK, Given


@dataclasses.dataclass(frozen=True)
class Scale:
    """What a recipe's sizes are multiplied by.

    Attributes:
      name: as given to --scale.
      network: share of the weights of the network's layers; its cube root is the share of their
        number, and of each side of their matrices.
      batch: share of the batch; the result is a power of two, and at least 4.
      steps: share of the steps, and of those of warm-up.
      length: share of the sequences' length and of the predictions.
    """

    name: str
    network: float
    batch: float
    steps: float
    length: float = 1.0

    def network_sizes(self):
        """Returns the fields of a `BertConfig`, its vocabulary apart."""
        side = self.network ** (1 / 3)
        heads = max(2, round(NETWORK["num_attention_heads"] * side))
        return {
            **NETWORK,
            "num_hidden_layers": max(2, round(NETWORK["num_hidden_layers"] * side)),
            "num_attention_heads": heads,
            "hidden_size": 64 * heads,
            "intermediate_size": 256 * heads,
        }

    def stage(self, stage):
        """Returns a recipe's stage, smaller: dict of flag name -> `Given`.

        The rate goes with the square root of the batch, by the paper's rule. Each changed value's
        source says what it was.
        """
        old = {name: given.value for name, given in stage.items()}
        batch = max(4, 2 ** round(math.log2(old["train_batch_size"] * self.batch)))
        steps = max(4, round(old["num_train_steps"] * self.steps))
        new = {
            "train_batch_size": batch,
            "micro_batch_size": min(old["micro_batch_size"], batch),
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
                source = f"{stage[name].source}, scaled from {old[name]:.6g}"
                scaled[name] = Given(value, source)
        return scaled


# A few minutes on two cores.
PRESETS = {"smoke": Scale("smoke", network=1e-3, batch=2**-10, steps=2**-6, length=0.25)}


def parse(text):
    """Returns the `Scale` that --scale names: a preset, or a fraction for all sizes but the length.

    Raises:
      ValueError: it is neither.
    """
    if text in PRESETS:
        return PRESETS[text]
    try:
        fraction = float(text)
    except ValueError:
        fraction = math.nan
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"must be {', '.join(PRESETS)}, or a number above 0 and at most 1")
    return Scale(text, fraction, fraction, fraction)
