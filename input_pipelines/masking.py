"""Chooses the masked tokens of a sequence, as google-research/bert's data creation does."""

import dataclasses
import random
from collections.abc import Sequence

from bert_estimator.tokenization import Tokenizer


@dataclasses.dataclass(frozen=True)
class Masking:
    """The rules of masking, and the facts about the vocabulary that they need.

    Attributes:
      masked_lm_prob: share of a sequence's tokens to predict (0.15 in the BERT paper).
      max_predictions_per_seq: largest number of tokens to predict in a sequence.
      do_whole_word_mask: whether either all pieces of a word are masked or none of them.
      vocab_size: number of ids; random replacements are drawn from all of them.
      mask_id: id of `[MASK]`.
      unmaskable: ids that are never masked: `[CLS]` and `[SEP]`.
      continuations: ids of the pieces that continue a word.
    """

    masked_lm_prob: float
    max_predictions_per_seq: int
    do_whole_word_mask: bool
    vocab_size: int
    mask_id: int
    unmaskable: frozenset[int]
    continuations: frozenset[int]

    @classmethod
    def for_tokenizer(
        cls,
        tokenizer: Tokenizer,
        masked_lm_prob: float,
        max_predictions_per_seq: int,
        do_whole_word_mask: bool,
    ) -> "Masking":
        """Makes the rules for a tokenizer; the other arguments are attributes."""
        tokens = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
        return cls(
            masked_lm_prob=masked_lm_prob,
            max_predictions_per_seq=max_predictions_per_seq,
            do_whole_word_mask=do_whole_word_mask,
            vocab_size=tokenizer.vocab_size,
            mask_id=tokenizer.mask_id,
            unmaskable=frozenset((tokenizer.cls_id, tokenizer.sep_id)),
            continuations=frozenset(
                index for index, token in enumerate(tokens) if tokenizer.is_continuation(token)
            ),
        )


def create_masked_lm_predictions(
    token_ids: Sequence[int], masking: Masking, rng: random.Random
) -> tuple[list[int], list[int], list[int]]:
    """Masks a sequence: of the chosen tokens, 80 % become `[MASK]`, 10 % stay and 10 % become a
    random token.

    The number of chosen tokens is `masked_lm_prob` of the sequence's length, `[CLS]` and `[SEP]`
    included, at least 1 and at most `max_predictions_per_seq`. It is smaller if whole words do not
    fit, or if the sequence has too few tokens (BERT paper, section 3.1, task 1).

    Args:
      token_ids: the sequence, `[CLS] A [SEP] B [SEP]`, without padding.
      masking: the rules.
      rng: source of all random choices.

    Returns:
      (masked ids, positions of the chosen tokens in ascending order, their original ids).
    """
    num_to_predict = min(
        masking.max_predictions_per_seq,
        max(1, round(len(token_ids) * masking.masked_lm_prob)),
    )
    if masking.do_whole_word_mask:
        words = _words(token_ids, masking)
    else:
        unmaskable = masking.unmaskable
        words = [p for p, token_id in enumerate(token_ids) if token_id not in unmaskable]
    masked_ids = list(token_ids)
    positions: list[int] = []
    uniform, random_bits = rng.random, rng.getrandbits
    while words and len(positions) < num_to_predict:
        # Drawing without replacement is cheaper than a shuffle, most of which would go unused. This
        # draws as `rng.randrange` does, which takes several times as long.
        number = len(words)
        bits = number.bit_length()
        while (drawn := random_bits(bits)) >= number:
            pass
        word = words[drawn]
        words[drawn] = words[-1]
        words.pop()
        pieces = word if masking.do_whole_word_mask else (word,)
        if len(positions) + len(pieces) > num_to_predict:
            continue  # A shorter word may still fit.
        for position in pieces:
            if uniform() < 0.8:
                masked_ids[position] = masking.mask_id
            elif uniform() >= 0.5:
                masked_ids[position] = rng.randrange(masking.vocab_size)
            positions.append(position)
    positions.sort()
    return masked_ids, positions, [token_ids[position] for position in positions]


def _words(token_ids: Sequence[int], masking: Masking) -> list[list[int]]:
    """Returns the positions of the pieces of each word."""
    words: list[list[int]] = []
    previous_maskable = False
    for position, token_id in enumerate(token_ids):
        maskable = token_id not in masking.unmaskable
        if maskable:
            # If a truncated segment begins inside a word, its first piece begins a word.
            if token_id in masking.continuations and previous_maskable:
                words[-1].append(position)
            else:
                words.append([position])
        previous_maskable = maskable
    return words
