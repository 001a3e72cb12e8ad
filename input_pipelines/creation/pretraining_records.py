"""Writes documents as TFRecord files of pretraining examples, with their manifest.

Every example of records with masks has these features, named as in google-research/bert and padded
with zeros to fixed lengths (F: max_seq_length, P: max_predictions_per_seq):

  input_ids             int64 [F]  ids of `[CLS] A [SEP] B [SEP]`, masked tokens replaced; for
                                   masked words alone, `[CLS] A [SEP]`
  input_mask            int64 [F]  1 for tokens, 0 for padding
  segment_ids           int64 [F]  0 for `[CLS] A [SEP]` and padding, 1 for `B [SEP]`
  masked_lm_positions   int64 [P]  positions of the tokens to predict, ascending
  masked_lm_ids         int64 [P]  original ids of these tokens
  masked_lm_weights     float [P]  1.0 for predictions, 0.0 for padding
  next_sentence_labels  int64 [1]  0: B follows A in the text, 1: B is random, or before A; for
                                   masked words alone, 0
  continues_word        int64 [F]  1 for tokens that continue the word of the token before them;
                                   only if a segmenter says what a word is

`unmasked_records` describes records without masks, which are drawn while training.
"""

import collections
import contextlib
import dataclasses
import functools
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.command_line.choices import MLM, TOKEN
from bert_estimator.system.ticker import Progress
from bert_estimator.tokenization import Tokenizer
from input_pipelines.creation import instances, stages, tokenized_text
from input_pipelines.creation.pools import BeamPool, WorkerPool
from input_pipelines.creation.settings import PASSES, CreationSettings
from input_pipelines.creation.tokenized_text import TokenizedText
from input_pipelines.records import manifest as manifests
from input_pipelines.records import record_names
from input_pipelines.records.masking import budgets
from input_pipelines.text import segmenters
from input_pipelines.text.document_filter import in_words
from input_pipelines.text.documents import TextPart, no_text

MASKINGS = {
    "static": manifests.FORMAT_VERSION,
    "dynamic": manifests.DYNAMIC_FORMAT_VERSION,
}
"""How records are masked (RoBERTa paper, section 4.1) -> their format version."""
_MOST_UNMASKED = 0.5  # share of the tokens


def write_pretraining_records(
    documents: Iterable[Sequence[str]] | Sequence[TextPart],
    tokenizer: Tokenizer,
    vocab_file: str,
    output_files: Sequence[str],
    settings: CreationSettings,
    corpus_description: Mapping[str, Any] | None = None,
    *,
    masking: str,
    pool: WorkerPool | BeamPool | None = None,
    progress: str | None = None,
) -> manifests.Manifest:
    """Makes the instances of documents and writes them, shuffled, to record files.

    A file gets its name when it is complete, and the manifest is written last. The same arguments
    give the same bytes, whatever the number of workers; a worker takes 0.4 to 0.6 GB of memory,
    whatever the text is. If the documents are parts of files, the same call resumes what a killed
    one has left in a directory beside the first file, `.<name>.work`.

    Args:
      documents: parts of text files, or documents as sequences of sentences.
      tokenizer: tokenizer of the vocabulary in `vocab_file`.
      vocab_file: copied beside the output files, and hashed into the manifest.
      output_files: files in one directory, which exists; existing files are replaced.
      settings: the settings of the instances.
      corpus_description: more facts about the text, for the manifest.
      masking: "static" masks are in the records; "dynamic" ones are drawn while training, by the
        settings in the manifest.
      pool: what runs the tasks; None for this process itself.
      progress: what is created, for the lines on stderr; None for silence.

    Returns:
      The manifest.

    Raises:
      ValueError: the text does not give any instance, or the output files lie in different
        directories or are not distinct, or the masking is unknown, or a file is not text, or the
        vocabulary has changed meanwhile.
      WorkerError: a worker failed.
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
    if settings.dupe_factor is None:
        settings = dataclasses.replace(settings, dupe_factor=PASSES[masking])
    work = stages.Work(
        directory=record_names.work_directory(output_files[0]),
        vocab_file=vocab_file,
        vocab_sha256=manifests.sha256_of_file(vocab_file),
        casing=tokenizer.casing,
        settings=settings,
        is_dynamic=masking == "dynamic",
        output_files=tuple(output_files),
        segmenter_sha256=_sha256_of_segmenter(settings.word_segmenter),
    )
    with _directory_of_work(work), pool or WorkerPool(0) as pool:
        run = functools.partial(_run, pool, progress)
        text, identity = _tokenized(documents, tokenizer, work, run)
        _check_words(text, work.settings)
        work = work.planned(text, identity)
        os.makedirs(work.stage, exist_ok=True)
        stages.remove_other_stages(work)
        run(stages.write_pairs, stages.pair_tasks(work), "making pairs")
        if not any(map(instances.num_pairs, work.pair_files())):
            raise _NothingToWriteError(
                f"the text (documents: {text.num_documents}, tokens: {text.num_tokens}) gives 0 "
                "instances: an instance needs two tokens. Give more text."
            )
        # The stages may have taken hours, in which the vocabulary's file may have changed.
        _check_vocabulary(work)
        # An old manifest must not describe new files if this program ends between the two.
        path = manifests.manifest_path(output_files[0])
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
        run(stages.write_piece, stages.piece_tasks(work), "writing records")
        tasks = [(work, number) for number in range(len(output_files))]
        facts = run(stages.join_pieces, tasks, "joining files")
        manifest = _manifest(work, text, tokenizer, facts, corpus_description or {}, masking)
        manifests.write_manifest(manifest, path)
    return manifest


def _sha256_of_segmenter(name):
    files = segmenters.source_files(name) if name else []
    return " ".join(map(manifests.sha256_of_file, files)) or None


class _NothingToWriteError(ValueError):
    """Says that there are no records to write, so there is nothing to resume."""


class EmptySideError(_NothingToWriteError):
    """Says that all documents are held out, or none of them."""


@contextlib.contextmanager
def _directory_of_work(work: stages.Work) -> Iterator[None]:
    """Makes a directory, and removes it unless it has what the same command can resume from."""
    directory = work.directory
    os.makedirs(directory, exist_ok=True)
    # What an earlier command has left for its own resumption stays if this command fails.
    was_of_use = _is_of_use(directory)
    try:
        record_names.list_files(directory, work.output_files)
        yield
    except BaseException as error:
        makes_nothing = isinstance(error, _NothingToWriteError)
        if not was_of_use and (makes_nothing or not _is_of_use(directory)):
            shutil.rmtree(directory, ignore_errors=True)
        raise
    shutil.rmtree(directory)


def _is_of_use(directory):
    files = [name for _, _, names in os.walk(directory) for name in names]
    return any(name.endswith((".npz", ".json")) for name in files)


def _run(pool, progress, function, tasks, what, sizes=None, unit="parts") -> list[Any]:
    """Runs tasks; returns their results in order. `what` is a text, or a function of a task."""
    sizes = sizes or [1] * len(tasks)
    describe = what if callable(what) else lambda _: what
    line = Progress(f"{progress}, {describe(tasks[0])}", sum(sizes), unit) if progress else None
    # Results come as they are ready. Without sizes, the progress counts the tasks.
    results = {}
    for number, result in pool.run(function, tasks, describe):
        results[number] = result
        if line:
            line.add(sizes[number])
    return [results[number] for number in range(len(tasks))]


def _tokenized(documents, tokenizer, work, run) -> tuple[TokenizedText, str]:
    """Tokenizes the text; returns it, with a hash of what it was made of."""
    documents = documents if isinstance(documents, Sequence) else list(documents)
    parts = [part for part in documents if isinstance(part, TextPart)]
    # Documents in memory have no file by which a later call could tell that they are the same.
    if not parts:
        path = os.path.join(work.directory, "tokens")
        segmenter = work.settings.word_segmenter
        tokenized_text.write_part(documents, tokenizer, path, segmenter=segmenter)
        return TokenizedText([path]), "in memory"
    paths, identity = stages.token_paths(work, parts)
    os.makedirs(os.path.dirname(paths[0]), exist_ok=True)
    tasks = [(work, part, path) for part, path in zip(parts, paths, strict=True)]
    sizes = [part.size for part in parts]
    run(stages.tokenize, tasks, lambda task: f"reading {task[1].path}", sizes, "B")
    text = TokenizedText(paths)
    if not text.num_read:
        raise _no_documents(parts, text.left_out)
    return text, identity


def check_has_documents(parts: Sequence[TextPart]) -> None:
    """Reads the parts until the first document.

    Without one, this is a ValueError; if all are on the other side, an EmptySideError."""
    left_out = collections.Counter()
    for part in parts:
        chosen = part.options.new_filter()
        if next(part.documents(chosen), None) is not None:
            return
        left_out.update(chosen.left_out)
    raise _no_documents(parts, left_out)


def _no_documents(parts, left_out) -> ValueError:
    if parts[0].side is None:
        paths = list(dict.fromkeys(part.path for part in parts))
        return _NothingToWriteError(no_text(paths, left_out, parts[0].options))
    fraction, are_held_out = parts[0].side
    part, other = ("none", "more") if are_held_out else ("all", "less")
    besides = f" (left out by flags: {in_words(left_out)})" if any(left_out.values()) else ""
    return EmptySideError(
        f"the fraction {fraction} holds out {part} of the documents{besides}. Give {other}, or "
        "more text."
    )


def _check_words(text, settings):
    """Raises ValueError if most tokens are in words that are too long to be masked."""
    lengths = np.array([settings.max_seq_length])
    longest = int(budgets(lengths, settings.masked_lm_prob, settings.max_predictions_per_seq)[0])
    share = text.tokens_of_words(longest + 1) / max(1, text.num_tokens)
    if settings.unit != TOKEN and share > _MOST_UNMASKED:
        raise _NothingToWriteError(
            f"--masking_unit={settings.unit}: {share:.0%} of the tokens would never be masked: "
            f"their words have more than {longest} tokens, the most that an example masks. "
            f"{manifests.UNCUT}"
        )


def _check_vocabulary(work):
    """Raises ValueError if the vocabulary's file is not what the tokens were made with any more."""
    now = manifests.sha256_of_file(work.vocab_file)
    stages.check_unchanged(work.vocab_file, work.vocab_sha256, now)


def _manifest(work, text, tokenizer, facts, corpus_description, masking) -> manifests.Manifest:
    """Writes what lies beside the record files; returns the manifest."""
    _check_vocabulary(work)
    counts_path = manifests.token_counts_path(work.output_files[0])
    with tf.io.gfile.GFile(counts_path, "wb") as file:
        np.save(file, text.token_counts, allow_pickle=False)
    kept_vocab_file, vocab_sha256 = manifests.keep_vocabulary(
        work.vocab_file, os.path.dirname(counts_path)
    )
    lengths, lengths_path = (
        stages.lengths_of_records(work),
        manifests.lengths_path(work.output_files[0]),
    )
    with tf.io.gfile.GFile(lengths_path, "wb") as file:
        np.save(file, lengths, allow_pickle=False)
    # The lengths are fields of the manifest itself; the other settings are its `creation`.
    settings = work.settings.described()
    format_version = MASKINGS[masking]
    if work.is_dynamic and work.settings.objective == MLM:
        format_version = manifests.ONE_SEGMENT_FORMAT_VERSION
    return manifests.Manifest(
        max_seq_length=settings.pop("max_seq_length"),
        max_predictions_per_seq=settings.pop("max_predictions_per_seq"),
        vocab_size=tokenizer.vocab_size,
        vocab_sha256=vocab_sha256,
        **tokenizer.casing._asdict(),
        num_records=sum(of_file["num_records"] for of_file in facts),
        files=tuple(
            manifests.RecordFile(name=os.path.basename(path), **of_file)
            for path, of_file in zip(work.output_files, facts, strict=True)
        ),
        token_counts=os.path.basename(counts_path),
        token_counts_sha256=manifests.sha256_of_file(counts_path),
        corpus={
            "sha256": text.sha256,
            "documents": text.num_documents,
            "sentences": text.num_sentences,
            "tokens": text.num_tokens,
            "unknown": int(text.token_counts[tokenizer.unk_id]),
            "whole_words": text.num_tokens - text.tokens_of_words(2),
            "long_words": text.tokens_of_words(manifests.LONG_WORD),
            "in_no_example": text.num_tokens - stages.num_used(work),
            "record_lengths": {
                "file": os.path.basename(lengths_path),
                "sha256": manifests.sha256_of_file(lengths_path),
                "mean": round(float(lengths.mean()), 2),
            },
            **({"left_out": dict(text.left_out)} if text.left_out else {}),
            **corpus_description,
        },
        creation=settings,
        vocab_file=kept_vocab_file,
        format_version=format_version,
    )
