"""The embedded default data: corpus, vocabulary and records, made in a directory."""

import dataclasses
import functools
import json
import os
import shutil
import time
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator.system import json_files, lock
from bert_estimator.tokenization import open_tokenizer, train_vocabulary, write_vocab
from input_pipelines.creation.pretraining_records import MASKINGS, write_pretraining_records
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.embedded import embedded_corpus
from input_pipelines.records import manifest as manifests

VOCAB_FILE = "vocab.txt"
TRAIN_FILE = "train-00000-of-00001.tfrecord"
HELD_OUT_FILE = "heldout-00000-of-00001.tfrecord"

_SETTINGS_FILE = "default_data.json"
_CORPUS = "corpus_fingerprint"  # a key in it


@dataclasses.dataclass(frozen=True)
class DefaultData:
    """Names the files of the embedded default data."""

    vocab_file: str
    train_files: list[str]
    held_out_files: list[str]


def make(
    output_dir: str,
    vocab_size: int,  # tokens of the vocabulary, which is trained on the corpus
    max_seq_length: int,  # tokens of an example, padding included
    max_predictions_per_seq: int,
    dupe_factor: int,  # passes over the training text; the held-out text gets one pass
    seed: int,
    *,
    masking: str,  # one of `pretraining_records.MASKINGS`
    do_whole_word_mask: bool = False,
    may_replace: bool = True,
) -> DefaultData:
    """Makes the data in a directory of its own, unless complete data with the same settings is
    there; if it may not be replaced, other data is an error."""
    creation = CreationSettings(
        max_seq_length=max_seq_length,
        max_predictions_per_seq=max_predictions_per_seq,
        dupe_factor=dupe_factor,
        do_whole_word_mask=do_whole_word_mask,
        random_seed=seed,
    )
    settings = {
        "format_version": MASKINGS[masking],
        "vocab_size": vocab_size,
        **creation.described(),
        _CORPUS: embedded_corpus.fingerprint(),
    }
    if not _is_made(output_dir, settings, may_replace):
        with lock.held_for(output_dir):
            # Another process may have made it just now.
            if not _is_made(output_dir, settings, may_replace):
                _make(output_dir, settings, creation, masking)
    return _paths(output_dir)


def _is_made(output_dir: str, settings: dict[str, Any], may_replace: bool) -> bool:
    """Returns whether the directory holds the data; raises ValueError if it may not hold it."""
    if not os.path.isdir(output_dir) or not os.listdir(output_dir):
        return False
    if not os.path.isfile(os.path.join(output_dir, _SETTINGS_FILE)):
        raise ValueError(
            f"{output_dir} holds files that the embedded default data would replace. Give an "
            "empty or a new directory."
        )
    # A training goes on with the data that it began with, whichever version made it of its corpus.
    if _is_complete(output_dir, settings, any_corpus=not may_replace):
        tf.logging.info("Using the embedded default data in %s.", output_dir)
        return True
    if not may_replace:
        raise ValueError(
            f"the data in {output_dir} is damaged, or was made with other settings. A training "
            "that began with it cannot go on with new data: use the original settings, or another "
            "directory."
        )
    return False


def _make(
    output_dir: str, settings: dict[str, Any], creation: CreationSettings, masking: str
) -> None:
    """Makes the data beside its directory, and replaces the directory with it."""
    if os.path.isdir(output_dir) and os.listdir(output_dir):
        tf.logging.info(
            "Replacing the data in %s: it is incomplete, or has other settings.", output_dir
        )
    started = time.monotonic()
    incomplete = output_dir.rstrip(os.sep) + ".incomplete"
    shutil.rmtree(incomplete, ignore_errors=True)
    os.makedirs(incomplete)
    summary = _build(incomplete, settings["vocab_size"], creation, masking)
    # Written last, since a directory without this file does not count as complete.
    with open(os.path.join(incomplete, _SETTINGS_FILE), "w", encoding="utf-8") as file:
        json.dump(settings, file, indent=2)
    # The old data goes only when the new data is complete. A directory with files in it cannot be
    # replaced by renaming, so the old one is moved out of the way first.
    replaced = output_dir.rstrip(os.sep) + ".replaced"
    shutil.rmtree(replaced, ignore_errors=True)
    if os.path.isdir(output_dir):
        os.rename(output_dir, replaced)
    os.rename(incomplete, output_dir)
    shutil.rmtree(replaced, ignore_errors=True)
    tf.logging.info("%s in %s (%.1f s).", summary, output_dir, time.monotonic() - started)


def write_vocabulary(vocab_file: str, vocab_size: int) -> None:
    """Writes the vocabulary of this data, without the records."""
    _write_vocabulary(embedded_corpus.load(), vocab_file, vocab_size)


def _write_vocabulary(corpus: embedded_corpus.Corpus, vocab_file: str, vocab_size: int) -> None:
    sentences = (sentence for document in corpus.train for sentence in document)
    write_vocab(train_vocabulary(sentences, vocab_size), vocab_file)


def _build(directory: str, vocab_size: int, creation: CreationSettings, masking: str) -> str:
    """Makes the files of the directory; returns a summary in words."""
    paths = _paths(directory)
    corpus = embedded_corpus.load()
    tf.logging.info(
        "Making the embedded default data from Python %s's own documentation: %d documents.",
        corpus.python_version,
        len(corpus.train) + len(corpus.held_out),
    )
    _write_vocabulary(corpus, paths.vocab_file, vocab_size)
    tokenizer = open_tokenizer(paths.vocab_file)
    description = {
        "source": "embedded",
        "python_version": corpus.python_version,
        "embedded_sha256": corpus.sha256,
    }
    write = functools.partial(
        write_pretraining_records, corpus_description=description, masking=masking
    )
    train = write(corpus.train, tokenizer, paths.vocab_file, paths.train_files, creation)
    creation = dataclasses.replace(creation, dupe_factor=1)
    held_out = write(corpus.held_out, tokenizer, paths.vocab_file, paths.held_out_files, creation)
    return (
        f"{train.num_records} training and {held_out.num_records} held-out examples from "
        f"{train.corpus['tokens']} and {held_out.corpus['tokens']} tokens"
    )


def _paths(directory: str) -> DefaultData:
    train_file = os.path.join(directory, TRAIN_FILE)
    return DefaultData(
        vocab_file=os.path.join(directory, VOCAB_FILE),
        train_files=[train_file],
        held_out_files=[os.path.join(directory, HELD_OUT_FILE)],
    )


def _is_complete(directory: str, settings: dict[str, Any], any_corpus: bool) -> bool:
    """Returns whether the directory was made with these settings, and its files are unchanged."""
    paths = _paths(directory)
    try:
        made_with = json_files.read(os.path.join(directory, _SETTINGS_FILE))
        if any_corpus:
            # The corpus of another Python, or of another version of this program, counts as this
            # one.
            made_with[_CORPUS] = settings[_CORPUS]
        if made_with != settings:
            return False
        for record_file in [*paths.train_files, *paths.held_out_files]:
            manifest = manifests.read_manifest(manifests.manifest_path(record_file))
            checksums = {entry.name: entry.sha256 for entry in manifest.files}
            checksums[manifest.token_counts] = manifest.token_counts_sha256
            checksums[VOCAB_FILE] = manifest.vocab_sha256
            if manifest.lengths_file is not None:
                checksums[manifest.lengths_file] = manifest.corpus["record_lengths"]["sha256"]
            # A training that resumes must read the same bytes, so all files are hashed.
            for name, sha256 in checksums.items():
                if manifests.sha256_of_file(os.path.join(directory, name)) != sha256:
                    return False
    except (OSError, ValueError, tf.errors.OpError):
        return False
    return True
