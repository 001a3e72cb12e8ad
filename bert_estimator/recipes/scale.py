"""Makes a proportionally smaller experiment of a recipe, for `--scale`."""

import dataclasses
import math

from bert_estimator.recipes.plans import NETWORK, Planned


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
PRESETS = {"smoke": Scale("smoke", network=1e-3, batch=2**-10, steps=2**-6, length=0.25)}


def parse(text: str) -> Scale:
    """Returns a preset `Scale`, or a `Scale` with one fraction for all sizes but the length; it
    raises ValueError for another text, which the caller explains."""
    if text in PRESETS:
        return PRESETS[text]
    try:
        fraction = float(text)
    except ValueError:
        fraction = math.nan
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"must be {', '.join(PRESETS)}, or a number above 0 and at most 1")
    return Scale(text, fraction, fraction, fraction)
