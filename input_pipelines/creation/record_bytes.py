"""Turns pairs of segments into serialized examples: with masks, or packed without masks.

`pretraining_records` describes the features of examples with masks, `packed_records` the features
of packed examples. This module does not import TensorFlow.
"""

import numpy as np

from bert_estimator.tokenization import Tokenizer
from input_pipelines.creation import example_bytes
from input_pipelines.creation.example_bytes import bytes_feature, float_feature, int64_feature
from input_pipelines.creation.instances import Pairs
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.records.dynamic_masking import DynamicMasking
from input_pipelines.records.masked_examples import MaskedExamples
from input_pipelines.records.masking import Masking
from input_pipelines.records.packed_records import id_type

# The tables of so many examples stay in the processor's cache.
_AT_ONCE = 256


class StaticRecords:
    """Serializes pairs as `tf.train.Example`s with masks, which depend on seed, turn and key.

    Args:
      tokenizer: tokenizer of the pairs' tokens.
      settings: the settings of data creation.
    """

    def __init__(self, tokenizer: Tokenizer, settings: CreationSettings):
        rules = Masking.for_tokenizer(
            tokenizer,
            settings.masked_lm_prob,
            settings.max_predictions_per_seq,
            settings.do_whole_word_mask,
        )
        masking = DynamicMasking(rules, settings.random_seed)
        self._examples = MaskedExamples(tokenizer, settings.max_seq_length, masking)

    def serialized(self, pairs: Pairs) -> list[bytes]:
        """Returns the records of pairs."""
        records = []
        for part in pairs.blocks(_AT_ONCE):
            features = self._examples.features(
                part.tokens, part.lengths, part.labels[:, None], part.keys, part.turns
            )
            records += example_bytes.examples(
                {
                    name: (float_feature if values.dtype == np.float32 else int64_feature)(values)
                    for name, values in features.items()
                }
            )
        return records


class PackedRecords:
    """Serializes pairs as `tf.train.Example`s without masks.

    Args:
      tokenizer: tokenizer of the pairs' tokens.
    """

    def __init__(self, tokenizer: Tokenizer):
        self._dtype = id_type(tokenizer.vocab_size)

    def serialized(self, pairs: Pairs) -> list[bytes]:
        """Returns the records of pairs."""
        records = []
        for part in pairs.blocks(_AT_ONCE):
            sizes = part.lengths.sum(axis=1)
            is_token = np.arange(sizes.max()) < sizes[:, None]
            ids = np.zeros(is_token.shape, self._dtype)
            ids[is_token] = part.tokens
            width = ids.dtype.itemsize
            records += example_bytes.examples(
                {
                    "token_ids": bytes_feature(
                        ids.view(np.uint8), np.repeat(is_token, width, axis=1)
                    ),
                    "segment_lengths": int64_feature(part.lengths),
                    "next_sentence_labels": int64_feature(part.labels[:, None]),
                }
            )
        return records
