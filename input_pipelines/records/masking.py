"""The rules by which tokens are masked, as in google-research/bert's data creation."""

import dataclasses

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
      continuations: ids of the pieces that continue a word.
    """

    masked_lm_prob: float
    max_predictions_per_seq: int
    do_whole_word_mask: bool
    vocab_size: int
    mask_id: int
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
            continuations=frozenset(
                index for index, token in enumerate(tokens) if tokenizer.is_continuation(token)
            ),
        )
