"""Pretraining instances: two segments for next-sentence prediction, with masked tokens.

The instances are made as in google-research/bert's data creation (BERT paper, section 3.1 and
appendix A.2), with three differences:

1. Each document has a random generator of its own, derived from (seed, turn, document number), so
   that documents can be processed in any order.
2. If there is no other document to draw a random next segment from, the label stays true to the
   text.
3. Whether an instance is short is drawn for each instance, not once for a whole document.

Without `random_next_sentence` the task is sentence order instead (ALBERT paper, section 3.1): B
is always a neighbour of A in the text, and half of the time the two are swapped.
"""

import dataclasses
import random
from collections.abc import Iterator, Sequence

from bert_estimator.tokenization import Tokenizer
from input_pipelines.flat_document import FlatDocument, TokenizedDocument
from input_pipelines.masking import Masking, create_masked_lm_predictions


@dataclasses.dataclass(frozen=True)
class TrainingInstance:
    """Holds one example before padding.

    Attributes:
      input_ids: ids of `[CLS] A [SEP] B [SEP]` with masked tokens replaced.
      segment_ids: 0 up to and including the first `[SEP]`, then 1.
      is_random_next: True if B does not follow A in the text, but is random or comes before A.
      masked_lm_positions: positions of the tokens to predict, ascending.
      masked_lm_ids: their original ids.
    """

    input_ids: list[int]
    segment_ids: list[int]
    is_random_next: bool
    masked_lm_positions: list[int]
    masked_lm_ids: list[int]


@dataclasses.dataclass(frozen=True)
class CreationSettings:
    """Holds the settings of data creation; names and defaults are google-research/bert's flags.

    Attributes:
      max_seq_length: largest number of tokens of an instance, `[CLS]` and both `[SEP]` included.
      max_predictions_per_seq: largest number of tokens to predict in an instance.
      masked_lm_prob: share of an instance's tokens to predict.
      short_seq_prob: share of the instances that are made for a random shorter length.
      dupe_factor: number of passes over the text, each with other random choices.
      do_whole_word_mask: whether either all pieces of a word are masked or none of them.
      random_next_sentence: whether half of the second segments are random (BERT); if not, half of
        the pairs are swapped (ALBERT). The name is ALBERT's.
      random_seed: seed of all random choices.

    Raises:
      ValueError: a value is out of its range; the message begins with its name.
    """

    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    masked_lm_prob: float = 0.15
    short_seq_prob: float = 0.1
    dupe_factor: int = 10
    do_whole_word_mask: bool = False
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
        self._check("dupe_factor", self.dupe_factor >= 1, "at least 1")

    def _check(self, name: str, is_allowed: bool, allowed: str) -> None:
        if not is_allowed:
            raise ValueError(f"{name} is {getattr(self, name)}; it must be {allowed}.")


@dataclasses.dataclass(frozen=True)
class SegmentPair:
    """Holds the segments of one example, before special tokens and masks are put in.

    Attributes:
      tokens_a, tokens_b: ids of A and of B; together at most `max_seq_length` - 3.
      is_random_next: as in `TrainingInstance`.
    """

    tokens_a: list[int]
    tokens_b: list[int]
    is_random_next: bool


class InstanceMaker:
    """Makes the instances of documents."""

    def __init__(self, tokenizer: Tokenizer, settings: CreationSettings):
        self._settings = settings
        self._masking = Masking.for_tokenizer(
            tokenizer,
            settings.masked_lm_prob,
            settings.max_predictions_per_seq,
            settings.do_whole_word_mask,
        )
        self._cls_id = tokenizer.cls_id
        self._sep_id = tokenizer.sep_id

    def of_document(
        self, documents: Sequence[TokenizedDocument], number: int, turn: int
    ) -> Iterator[TrainingInstance]:
        """Yields the instances of `documents[number]`.

        Args:
          documents: all documents; random next segments are drawn from them.
          number: number of the document, from 0.
          turn: number of the pass, from 0 to `dupe_factor` - 1; each has other random choices.
        """
        rng = self._generator(number, turn)
        for tokens_a, tokens_b, is_random_next in self._segments(documents, number, rng):
            ids = [self._cls_id, *tokens_a, self._sep_id, *tokens_b, self._sep_id]
            segment_ids = [0] * (len(tokens_a) + 2) + [1] * (len(tokens_b) + 1)
            masked_ids, positions, labels = create_masked_lm_predictions(ids, self._masking, rng)
            yield TrainingInstance(masked_ids, segment_ids, is_random_next, positions, labels)

    def pairs_of_document(
        self, documents: Sequence[TokenizedDocument], number: int, turn: int
    ) -> Iterator[SegmentPair]:
        """Yields the segments of `documents[number]` without masks; see `of_document`."""
        rng = self._generator(number, turn)
        for segments in self._segments(documents, number, rng):
            yield SegmentPair(*segments)

    def _generator(self, number: int, turn: int) -> random.Random:
        return random.Random(f"{self._settings.random_seed}/{turn}/{number}")

    def _segments(
        self, documents: Sequence[TokenizedDocument], number: int, rng: random.Random
    ) -> Iterator[tuple[list[int], list[int], bool]]:
        """Yields (A, B, whether B is random or swapped with A), truncated; neither is empty."""
        most = self._settings.max_seq_length - 3
        for tokens_a, tokens_b, is_random_next in self._whole_segments(documents, number, rng):
            yield *truncated_pair(tokens_a, tokens_b, most, rng), is_random_next

    def _whole_segments(
        self, documents: Sequence[TokenizedDocument], number: int, rng: random.Random
    ) -> Iterator[tuple[list[int], list[int], bool]]:
        """Yields as `_segments`; together A and B may be too long."""
        document = FlatDocument.of(documents[number])
        max_num_tokens = self._settings.max_seq_length - 3
        num_sentences = len(document)
        start = 0
        while start < num_sentences:
            target_length = max_num_tokens
            if rng.random() < self._settings.short_seq_prob:
                target_length = rng.randint(2, max_num_tokens)
            end = document.end_of(start, target_length)
            a_end = start + 1 if end - start == 1 else rng.randint(start + 1, end - 1)
            tokens_a = document.tokens(start, a_end)
            draws_next = self._settings.random_next_sentence
            other = None
            if draws_next and (end - start == 1 or rng.random() < 0.5):
                other = _random_position(documents, number, start, end, rng)
            if other is not None:
                other_document, first = other
                length = max(1, target_length - len(tokens_a))
                yield (
                    tokens_a,
                    other_document.tokens(first, other_document.end_of(first, length)),
                    True,
                )
                # The sentences that would have followed are used by the next instance.
                start = a_end
            else:
                tokens_b = document.tokens(a_end, end)
                if not tokens_b:
                    # A single sentence without other text is split in halves.
                    half = (len(tokens_a) + 1) // 2
                    tokens_a, tokens_b = tokens_a[:half], tokens_a[half:]
                if tokens_b and not draws_next and rng.random() < 0.5:
                    yield tokens_b, tokens_a, True
                elif tokens_b:
                    yield tokens_a, tokens_b, False
                start = end


def create_training_instances(
    documents: Sequence[TokenizedDocument],
    tokenizer: Tokenizer,
    settings: CreationSettings,
) -> Iterator[TrainingInstance]:
    """Yields the instances of all documents, `dupe_factor` times, in the documents' order."""
    maker = InstanceMaker(tokenizer, settings)
    for turn in range(settings.dupe_factor):
        for number in range(len(documents)):
            yield from maker.of_document(documents, number, turn)


def create_segment_pairs(
    documents: Sequence[TokenizedDocument],
    tokenizer: Tokenizer,
    settings: CreationSettings,
) -> Iterator[SegmentPair]:
    """Yields the segments of all documents without masks, as `create_training_instances`."""
    maker = InstanceMaker(tokenizer, settings)
    for turn in range(settings.dupe_factor):
        for number in range(len(documents)):
            yield from maker.pairs_of_document(documents, number, turn)


def truncated_pair(
    tokens_a: list[int], tokens_b: list[int], max_num_tokens: int, rng: random.Random
) -> tuple[list[int], list[int]]:
    """Shortens the longer segment, token by token, at a random one of its two ends."""
    begin_a, end_a, begin_b, end_b = 0, len(tokens_a), 0, len(tokens_b)
    # Tokens go at both ends, so that neither beginnings nor ends of sentences are favoured.
    for _ in range(end_a + end_b - max_num_tokens):
        if end_a - begin_a > end_b - begin_b:
            if rng.random() < 0.5:
                begin_a += 1
            else:
                end_a -= 1
        elif rng.random() < 0.5:
            begin_b += 1
        else:
            end_b -= 1
    return tokens_a[begin_a:end_a], tokens_b[begin_b:end_b]


def _random_position(
    documents: Sequence[TokenizedDocument], number: int, start: int, end: int, rng: random.Random
) -> tuple[FlatDocument, int] | None:
    """Draws a random sentence of another document; returns (document, sentence number).

    If there is only one document, the sentence is drawn from it, but not from `start` to `end` and
    not the sentence after them. Returns None if it has no other sentence.
    """
    if len(documents) > 1:
        other = rng.randrange(len(documents) - 1)
        document = FlatDocument.of(documents[other + (other >= number)])
        return document, rng.randrange(len(document))
    document = FlatDocument.of(documents[number])
    before, after = start, max(0, len(document) - end - 1)
    if before + after == 0:
        return None
    position = rng.randrange(before + after)
    return document, position if position < before else position + end + 1 - before
