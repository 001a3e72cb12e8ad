"""Holds the settings of data creation, without NumPy: the flags and `--help` need the defaults at
once."""

import dataclasses
from typing import Any

from bert_estimator.command_line import flags
from bert_estimator.command_line.choices import (
    MASKING_UNITS,
    MLM,
    MLM_NSP,
    MLM_SOP,
    OBJECTIVES,
    SPAN,
    TOKEN,
    WORD,
)

PASSES = {"dynamic": 1, "static": 10}
"""How records are masked -> `CreationSettings.dupe_factor` by default; each epoch has other dynamic
masks without it."""
_MOST_PASSES = 10_000
# Settings that could not be chosen at first -> the values that stand for what was done then.
_LATER = {
    "objective": (MLM_NSP, MLM_SOP),
    "across_documents": (False,),
    "word_segmenter": (None, ""),
}


@flags.group()
class CreationSettings:
    """Holds the settings of data creation; names and defaults are google-research/bert's flags."""

    max_seq_length: int = flags.field(
        128, "Pad examples to this length, [CLS] and both [SEP] included."
    )
    max_predictions_per_seq: int = flags.field(
        20, "Mask at most this number of tokens in an example."
    )
    masked_lm_prob: float = flags.field(0.15, "Mask this share of the tokens.")
    short_seq_prob: float | None = flags.field(
        None,
        "Make this share of the examples shorter, of a random length; by default 0.1, and 0 with "
        "--objective=mlm.",
    )
    dupe_factor: int | None = flags.field(
        None,
        "Make this number of passes over the text, each with other pairs of segments, and with "
        f"other masks if they are static; by default {PASSES['dynamic']}, and {PASSES['static']} "
        "with --masking=static.",
    )
    do_whole_word_mask: bool | None = flags.field(
        None, "Mask whole words: an older name of --masking_unit=word."
    )
    masking_unit: str | None = flags.field(
        None,
        "Mask tokens (token); either all pieces of a word or none of them (word); or runs of 1 to "
        "10 words, as SpanBERT (span). By default, mask tokens.",
    )
    word_segmenter: str | None = flags.field(
        None,
        "Take for a word, in text whose words spaces do not cut, what jieba says, or a function "
        "that returns the words of a text, as module:function. The tokens stay as they are.",
    )
    objective: str | None = flags.field(
        None,
        "Make examples for masked words alone (mlm): whole sentences of a document, as many as "
        "fit, as in RoBERTa. Or make pairs of segments for masked words and next sentence, as in "
        "BERT (mlm_nsp, the default), or sentence order, as in ALBERT (mlm_sop).",
    )
    across_documents: bool = flags.field(
        False,
        "Fill up the examples of --objective=mlm with sentences of the next documents, too, with "
        "[SEP] between two documents.",
    )
    random_next_sentence: bool = flags.field(
        True,
        "Draw half of the second segments at random, as in BERT; "
        "--norandom_next_sentence is --objective=mlm_sop.",
    )
    random_seed: int = flags.field(12345, "Seed all random choices.")

    def __post_init__(self):
        self._check("max_seq_length", self.max_seq_length >= 5, "at least 5")
        self._check(
            "max_predictions_per_seq",
            1 <= self.max_predictions_per_seq <= self.max_seq_length,
            f"from 1 to max_seq_length ({self.max_seq_length})",
        )
        is_known = self.objective in (None, *OBJECTIVES)
        self._check("objective", is_known, f"one of {', '.join(OBJECTIVES)}")
        objective = self.objective or (MLM_NSP if self.random_next_sentence else MLM_SOP)
        draws_next = objective != MLM_SOP
        is_one = self.random_next_sentence or not draws_next
        self._check("random_next_sentence", is_one, f"True, since the objective is {objective}")
        values = {"objective": objective, "random_next_sentence": draws_next}
        if self.short_seq_prob is None:
            values["short_seq_prob"] = 0.0 if objective == MLM else 0.1
        for name, value in values.items():
            object.__setattr__(self, name, value)  # an assignment is an error: the class is frozen
        self._check(
            "across_documents",
            not self.across_documents or objective == MLM,
            f"False, since the objective is {objective}",
        )
        self._check("masked_lm_prob", 0 < self.masked_lm_prob <= 1, "above 0 and at most 1")
        self._check("short_seq_prob", 0 <= self.short_seq_prob <= 1, "from 0 to 1")
        is_number = self.dupe_factor is None or 1 <= self.dupe_factor <= _MOST_PASSES
        self._check("dupe_factor", is_number, f"from 1 to {_MOST_PASSES}")
        is_known = self.masking_unit is None or self.masking_unit in MASKING_UNITS
        self._check("masking_unit", is_known, f"one of {', '.join(MASKING_UNITS)}")
        whole = self.do_whole_word_mask
        if None not in (whole, self.masking_unit) and whole != (self.masking_unit == WORD):
            raise ValueError(
                f"masking_unit is {self.masking_unit}, but do_whole_word_mask, an older name of "
                f"masking_unit=word, is {str(whole).lower()}. Give masking_unit alone."
            )
        uses_words = not self.word_segmenter or self.unit != TOKEN
        self._check("word_segmenter", uses_words, "given with masking_unit=word or =span")

    @property
    def unit(self) -> str:
        """Returns which tokens are masked together, one of `MASKING_UNITS`."""
        return self.masking_unit or (WORD if self.do_whole_word_mask else TOKEN)

    def described(self) -> dict[str, Any]:
        """Returns name -> value of the settings that are not as they had to be at first, so that
        records and unfinished work of earlier versions count as records of these settings."""
        values = dataclasses.asdict(self)
        values["do_whole_word_mask"], values["masking_unit"] = self.unit == WORD, self.unit
        # Earlier versions of this program do not know these masks, and refuse records without it.
        is_new = self.unit == SPAN or self.word_segmenter
        del values["do_whole_word_mask" if is_new else "masking_unit"]
        return {n: value for n, value in values.items() if value not in _LATER.get(n, ())}

    # A message begins with the setting's name, so that a command can put -- before it.
    def _check(self, name: str, is_allowed: bool, allowed: str) -> None:
        if not is_allowed:
            raise ValueError(f"{name} is {getattr(self, name)}; it must be {allowed}.")
