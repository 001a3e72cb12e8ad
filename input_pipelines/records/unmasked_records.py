"""Records without masks: the tokens of two segments as bytes, for masks drawn while training.

Every record is a `tf.train.Example` with these features:

  token_ids             bytes [1]  ids of A, then of B, little-endian: 2 bytes each if every id of
                                   the vocabulary fits, else 4 bytes
  segment_lengths       int64 [2]  numbers of tokens of A and of B; of B, 0 if it is for masked
                                   words alone
  next_sentence_labels  int64 [1]  0: B follows A in the text, 1: B is random, or before A; for
                                   masked words alone, 0
  continues_word        bytes [1]  only if a segmenter says what a word is: a bit for each token,
                                   the highest of a byte first, 1 if it continues the word of the
                                   token before it

Letters: B batch size, F sequence length, P predictions per sequence.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.system import json_files
from bert_estimator.tokenization import reopen_tokenizer
from input_pipelines.records import manifest as manifests
from input_pipelines.records.encoding import id_type
from input_pipelines.records.masking import MaskedExamples
from input_pipelines.records.pretraining_features import Feature
from input_pipelines.records.record_reader import RecordError, RecordFiles

SPEC = {
    "token_ids": tf.io.FixedLenFeature([], tf.string),
    "segment_lengths": tf.io.FixedLenFeature([2], tf.int64),
    "next_sentence_labels": tf.io.FixedLenFeature([1], tf.int64),
}
FEATURES = {
    "token_ids": Feature("bytes_list", 1),
    "segment_lengths": Feature("int64_list", 2),
    "next_sentence_labels": Feature("int64_list", 1, last=1),
}
"""What the features must be, for `pretraining_features.check_kinds`."""
_WORDS = "continues_word"


def open_masker(record_files: Sequence[str], seed: int | None) -> "BatchMasker | None":
    """Returns what makes batches of records without masks, or None if the records have masks; a
    seed of None is the seed that the records were made with."""
    # Lengths, vocabulary and the rules of masking come from the records' manifest.
    listed = manifests.read_manifests_of(record_files)
    rules = {}
    for path in record_files:
        rules.setdefault(_rules_of(*listed.get(path, (None, None))), path)
    if len(rules) > 1:
        path, other = list(rules.values())[:2]
        raise ValueError(
            f"{path} and {other} do not agree in --masking, --masked_lm_prob, --masking_unit or "
            "--word_segmenter of create_pretraining_data. Create their data alike."
        )
    ((rule, path),) = rules.items()
    if rule is None:
        return None
    manifest_file, manifest = listed[path]
    vocab_file = manifests.find_vocabulary([path])
    if vocab_file is None:
        raise ValueError(f"{manifest_file}: names no vocabulary. Create the data again.")
    tokenizer = reopen_tokenizer(vocab_file, manifest.casing)
    prob, unit, segmenter = rule
    if seed is None:
        seed = json_files.field(manifest.creation, "random_seed", int, manifest_file)
    lengths = manifest.max_seq_length, prob, manifest.max_predictions_per_seq
    return BatchMasker(MaskedExamples(tokenizer, *lengths, unit, seed), segmenter is not None)


def _rules_of(manifest_file, manifest):
    """Returns (masked_lm_prob, unit, segmenter) of records without masks; None of others."""
    if manifest is None or not manifest.is_dynamic:
        return None
    prob = json_files.field(manifest.creation, "masked_lm_prob", float, manifest_file)
    if not 0 < prob <= 1:
        raise ValueError(f"{manifest_file}: masked_lm_prob is {prob}. Create the data again.")
    return prob, *manifests.masking_unit(manifest, manifest_file)


class BatchMasker:
    """Makes batches of records without masks: tokens are put in their places, and masked."""

    def __init__(self, examples: MaskedExamples, has_words: bool):
        self._examples = examples
        # As `SPEC` and `FEATURES`, of these records.
        self.spec, self.kinds = SPEC, FEATURES
        if has_words:
            self.spec = {**SPEC, _WORDS: tf.io.FixedLenFeature([], tf.string)}
            self.kinds = {**FEATURES, _WORDS: Feature("bytes_list", 1)}
        self._vocab_size, self._max_seq_length = examples.vocab_size, examples.max_seq_length

    def features(
        self,
        records: RecordFiles,
        numbers: np.ndarray,  # int64 [B], of the records
        epochs: np.ndarray,  # int64 [B], how often each record has come before
        values: Mapping[str, np.ndarray],  # the features of `spec`, [B, ...]
    ) -> dict[str, np.ndarray]:
        """Returns the features of static records, int64 or float32 [B, ...]; raises RecordError
        with the number of the first record whose lengths or ids do not fit."""
        lengths, labels = values["segment_lengths"], values["next_sentence_labels"]
        bits, continues = values.get(_WORDS), None
        tokens = self._tokens(records, numbers, lengths, values["token_ids"], bits)
        if bits is not None:
            unpacked = [np.unpackbits(np.frombuffer(some, np.uint8)) for some in bits]
            sizes = lengths.sum(axis=1)
            continues = np.concatenate([b[:n] for b, n in zip(unpacked, sizes, strict=True)]) > 0
        return self._examples.features(tokens, lengths, labels, numbers, epochs, continues)

    def _tokens(self, records, numbers, lengths, token_ids, bits):
        """Returns the checked tokens of all records, int64 [number of tokens]; checks the bits."""
        longest = self._max_seq_length - 2 - (lengths[:, 1] > 0)
        totals = lengths.sum(axis=1)
        sizes = np.array([len(ids) for ids in token_ids])
        dtype = id_type(self._vocab_size)
        width = dtype.itemsize
        # Each length is compared before their sum, which could wrap around.
        fits = ((lengths >= 0) & (lengths <= longest[:, None])).all(axis=1) & (totals <= longest)
        fits &= totals > 0
        # A record whose sizes are wrong would shift the tokens of all records after it.
        rules = [
            (fits, "segment_lengths must be two numbers from 0 to {} in sum"),
            (sizes == totals * width, f"token_ids must have {width} bytes for each token"),
        ]
        if bits is not None:
            are_enough = np.array([len(some) for some in bits]) == (totals + 7) // 8
            rules.append((are_enough, f"{_WORDS} must have a bit for each token"))
        for is_good, rule in rules:
            if not is_good.all():
                row = int(np.argmin(is_good))
                number = int(numbers[row])
                raise RecordError(
                    f"{records.location(number)}: segment_lengths holds {lengths[row].tolist()} "
                    f"and token_ids {sizes[row]} bytes; {rule.format(longest[row])}, since "
                    f"max_seq_length is {self._max_seq_length}. Create the data again.",
                    number,
                )
        tokens = np.frombuffer(b"".join(token_ids), dtype).astype(np.int64)
        if tokens.size and tokens.max() >= self._vocab_size:
            place = int(np.argmax(tokens >= self._vocab_size))
            number = int(np.repeat(numbers, totals)[place])
            raise RecordError(
                f"{records.location(number)}: token_ids holds {tokens[place]}; it must be from 0 "
                f"to {self._vocab_size - 1}, since the vocabulary has {self._vocab_size} tokens. "
                "Create the data again.",
                number,
            )
        return tokens
