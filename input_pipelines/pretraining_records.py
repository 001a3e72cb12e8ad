"""Writes documents as TFRecord files of pretraining examples, with their manifest.

Every example of records with masks has these features, named as in google-research/bert and padded
with zeros to fixed lengths (F: max_seq_length, P: max_predictions_per_seq):

  input_ids             int64 [F]  ids of `[CLS] A [SEP] B [SEP]`, masked tokens replaced
  input_mask            int64 [F]  1 for tokens, 0 for padding
  segment_ids           int64 [F]  0 for `[CLS] A [SEP]` and padding, 1 for `B [SEP]`
  masked_lm_positions   int64 [P]  positions of the tokens to predict, ascending
  masked_lm_ids         int64 [P]  original ids of these tokens
  masked_lm_weights     float [P]  1.0 for predictions, 0.0 for padding
  next_sentence_labels  int64 [1]  0: B follows A in the text, 1: B is random, or before A

`packed_records` describes records without masks, which are drawn while training.
"""

import array
import dataclasses
import hashlib
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.tokenization import Tokenizer
from input_pipelines import example_bytes, packed_records
from input_pipelines import manifest as manifests
from input_pipelines.example_bytes import float_feature, int64_feature
from input_pipelines.flat_document import TokenizedDocument
from input_pipelines.instances import (
    CreationSettings,
    TrainingInstance,
    create_segment_pairs,
    create_training_instances,
)
from input_pipelines.spool import Spool, SpooledDocuments

MASKINGS = {
    "static": manifests.FORMAT_VERSION,
    "dynamic": manifests.DYNAMIC_FORMAT_VERSION,
}
"""How records are masked (RoBERTa paper, section 4.1) -> their format version."""


@dataclasses.dataclass(frozen=True)
class TokenizedCorpus:
    """A text as ids, tokenized once for all passes over it.

    Attributes:
      documents: the documents that have tokens, each a list of non-empty int arrays; on disk.
      token_counts: counts of each id, int64 [vocab_size].
      description: sha256 of the text and its numbers of documents, sentences and tokens.
    """

    documents: SpooledDocuments
    token_counts: np.ndarray
    description: dict[str, Any]


def tokenize_documents(documents: Iterable[Sequence[str]], tokenizer: Tokenizer) -> TokenizedCorpus:
    """Tokenizes documents, which are sequences of sentences; skips sentences without tokens."""
    digest = hashlib.sha256()
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    num_sentences = 0

    def tokenized() -> Iterator[TokenizedDocument]:
        nonlocal counts, num_sentences
        for document in documents:
            digest.update(("\n".join(document) + "\n\n").encode())
            sentences = (array.array("i", tokenizer.encode(sentence)) for sentence in document)
            if sentences := [sentence for sentence in sentences if sentence]:
                counts += np.bincount(np.concatenate(sentences), minlength=len(counts))
                num_sentences += len(sentences)
                yield sentences

    spooled = SpooledDocuments(tokenized())
    description = {
        "sha256": digest.hexdigest(),
        "documents": len(spooled),
        "sentences": num_sentences,
        "tokens": int(counts.sum()),
    }
    return TokenizedCorpus(spooled, counts, description)


def write_pretraining_records(
    documents: Iterable[Sequence[str]],
    tokenizer: Tokenizer,
    vocab_file: str,
    output_files: Sequence[str],
    settings: CreationSettings,
    corpus_description: Mapping[str, Any] | None = None,
    masking: str = "static",
) -> manifests.Manifest:
    """Makes the instances of documents and writes them, shuffled, to record files in turn.

    A file gets its name when it is complete, and the manifest is written last. The same arguments
    give the same bytes. Ids and examples wait on disk, in `$TMPDIR`; memory holds a few bytes of
    each document and 16 bytes of each example.

    Args:
      documents: documents as sequences of sentences.
      tokenizer: tokenizer of the vocabulary in `vocab_file`.
      vocab_file: copied beside the output files, and hashed into the manifest.
      output_files: files in one directory, which exists; existing files are replaced.
      settings: the settings of the instances.
      corpus_description: more facts about the text, for the manifest.
      masking: one of `MASKINGS`: "static" masks are in the records; "dynamic" ones are drawn while
        training, by the settings in the manifest.

    Returns:
      The manifest.

    Raises:
      ValueError: the text does not give any instance, or the output files lie in different
        directories or are not distinct, or the masking is unknown.
    """
    if masking not in MASKINGS:
        raise ValueError(f"masking is {masking!r}; it must be one of {', '.join(MASKINGS)}.")
    directory = os.path.dirname(output_files[0])
    if {os.path.dirname(path) for path in output_files} != {directory}:
        raise ValueError(
            f"output_files: {', '.join(output_files)} lie in different directories; give one."
        )
    if len(set(output_files)) < len(output_files):
        raise ValueError(
            f"output_files: {', '.join(output_files)} name a file twice; give each file once."
        )
    corpus = tokenize_documents(documents, tokenizer)
    examples = Spool(_examples(corpus.documents, tokenizer, settings, masking))
    if not examples:
        raise ValueError(
            f"{corpus.description['documents']} documents with {corpus.description['tokens']} "
            "tokens give 0 instances: an instance needs two tokens. Give more text."
        )
    order = array.array("q", range(len(examples)))
    random.Random(f"{settings.random_seed}/order").shuffle(order)

    # An old manifest must not describe new files if this program ends between the two.
    path = manifests.manifest_path(output_files[0])
    if tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)
    counts_path = manifests.token_counts_path(output_files[0])
    with tf.io.gfile.GFile(counts_path, "wb") as file:
        np.save(file, corpus.token_counts, allow_pickle=False)
    entries = tuple(
        _write_file(map(examples.__getitem__, order[shard :: len(output_files)]), output_file)
        for shard, output_file in enumerate(output_files)
    )
    kept_vocab_file, vocab_sha256 = manifests.keep_vocabulary(vocab_file, directory)
    creation = dataclasses.asdict(settings)
    manifest = manifests.Manifest(
        max_seq_length=creation.pop("max_seq_length"),
        max_predictions_per_seq=creation.pop("max_predictions_per_seq"),
        vocab_size=tokenizer.vocab_size,
        vocab_sha256=vocab_sha256,
        do_lower_case=tokenizer.do_lower_case,
        num_records=len(examples),
        files=entries,
        token_counts=os.path.basename(counts_path),
        token_counts_sha256=manifests.sha256_of_file(counts_path),
        corpus={**corpus.description, **(corpus_description or {})},
        creation=creation,
        vocab_file=kept_vocab_file,
        format_version=MASKINGS[masking],
    )
    manifests.write_manifest(manifest, path)
    return manifest


def _examples(documents, tokenizer, settings, masking) -> Iterator[bytes]:
    """Yields the serialized examples of documents, in the documents' order."""
    if masking == "dynamic":
        for pair in create_segment_pairs(documents, tokenizer, settings):
            yield packed_records.serialized(
                pair.tokens_a, pair.tokens_b, pair.is_random_next, tokenizer.vocab_size
            )
        return
    for instance in create_training_instances(documents, tokenizer, settings):
        yield serialized_example(
            instance, settings.max_seq_length, settings.max_predictions_per_seq
        )


def serialized_example(
    instance: TrainingInstance, max_seq_length: int, max_predictions_per_seq: int
) -> bytes:
    """Serializes an instance as a padded `tf.train.Example`; the module's docstring has a table."""

    num_tokens, num_predictions = len(instance.input_ids), len(instance.masked_lm_ids)
    by_prediction = max_predictions_per_seq
    return example_bytes.example(
        {
            "input_ids": int64_feature(instance.input_ids, max_seq_length),
            "input_mask": int64_feature(b"\1" * num_tokens, max_seq_length),
            "segment_ids": int64_feature(instance.segment_ids, max_seq_length),
            "masked_lm_positions": int64_feature(instance.masked_lm_positions, by_prediction),
            "masked_lm_ids": int64_feature(instance.masked_lm_ids, by_prediction),
            "masked_lm_weights": float_feature([1.0] * num_predictions, by_prediction),
            "next_sentence_labels": int64_feature([int(instance.is_random_next)], 1),
        }
    )


def _write_file(examples: Iterable[bytes], path: str) -> manifests.RecordFile:
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f"temporary.{name}.part")
    num_records = 0
    with tf.io.TFRecordWriter(temporary) as writer:
        for example in examples:
            writer.write(example)
            num_records += 1
    entry = manifests.RecordFile(
        name=name,
        num_records=num_records,
        num_bytes=tf.io.gfile.stat(temporary).length,
        sha256=manifests.sha256_of_file(temporary),
    )
    tf.io.gfile.rename(temporary, path, overwrite=True)
    return entry
