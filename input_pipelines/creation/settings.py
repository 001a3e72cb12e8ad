"""Holds the settings of data creation, without NumPy: the flags and `--help` need the defaults at
once."""

import dataclasses

_MOST_PASSES = 10_000


@dataclasses.dataclass(frozen=True)
class CreationSettings:
    """Holds the settings of data creation; names and defaults are google-research/bert's flags."""

    max_seq_length: int = 128  # tokens, `[CLS]` and both `[SEP]` included
    max_predictions_per_seq: int = 20  # the most tokens to predict in an instance
    masked_lm_prob: float = 0.15  # share of an instance's tokens to predict
    short_seq_prob: float = 0.1  # share of the instances of a random shorter length
    dupe_factor: int = 10  # passes over the text, each with other random choices
    do_whole_word_mask: bool = False  # either all pieces of a word are masked or none of them
    # Half of the second segments are random (BERT), or half of the pairs are swapped (ALBERT, which
    # has the name).
    random_next_sentence: bool = True
    random_seed: int = 12345

    def __post_init__(self):
        self._check("max_seq_length", self.max_seq_length >= 5, "at least 5")
        self._check(
            "max_predictions_per_seq",
            1 <= self.max_predictions_per_seq <= self.max_seq_length,
            f"from 1 to max_seq_length ({self.max_seq_length})",
        )
        self._check("masked_lm_prob", 0 < self.masked_lm_prob <= 1, "above 0 and at most 1")
        self._check("short_seq_prob", 0 <= self.short_seq_prob <= 1, "from 0 to 1")
        self._check(
            "dupe_factor", 1 <= self.dupe_factor <= _MOST_PASSES, f"from 1 to {_MOST_PASSES}"
        )

    # A message begins with the setting's name, so that a command can put -- before it.
    def _check(self, name: str, is_allowed: bool, allowed: str) -> None:
        if not is_allowed:
            raise ValueError(f"{name} is {getattr(self, name)}; it must be {allowed}.")
