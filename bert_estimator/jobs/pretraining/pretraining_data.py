"""Finds the records that pretraining reads, the user's or the embedded corpus, and checks them."""

import dataclasses
import itertools
import os
from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator import interchange, tokenization
from bert_estimator.cluster import hosts
from bert_estimator.command_line import flags, provenance
from bert_estimator.command_line.choices import MLM, MLM_NSP
from bert_estimator.command_line.run_directory import RunDirectory, recorded_settings
from bert_estimator.interchange import network_files
from bert_estimator.jobs.pretraining.pretraining_config import PretrainingConfig, RecordFlags
from bert_estimator.recipes import embedded
from input_pipelines.embedded import default_data
from input_pipelines.records import (
    manifest,
    order,
    pretraining_features,
    record_lengths,
    record_reader,
    unmasked_records,
)

_MOST_PADDING = 127  # rows without tokens: sizes are rounded up to multiples of 8, 64 or 128


@dataclasses.dataclass(frozen=True)
class PretrainingData:
    """Holds the records to train and to evaluate on; what is not known of them is None."""

    # Files or patterns, as `pretraining_input` takes them.
    train_files: str | Sequence[str]
    eval_files: str | Sequence[str]
    num_eval_records: int
    digest: str  # a hash of the records to train on
    eval_digest: str
    # Whether the records to evaluate on are other records than the training records.
    is_held_out: bool
    # The vocabulary that made the training records, and what happened to capitals and accents.
    vocab_file: str | None = None
    casing: tokenization.Casing | None = None
    vocab_sha256: str | None = None
    # How often each token occurs in training, [vocab_size]; only evaluations need it.
    token_counts: np.ndarray | None = None
    lengths: record_lengths.RecordLengths | None = None  # of the training; None if not needed
    objective: str = MLM_NSP  # what is trained and evaluated, one of `choices.OBJECTIVES`

    def unigram_nats(self) -> np.ndarray | None:
        """Returns `manifest.unigram_nats` of the training text; None if it is not known."""
        return None if self.token_counts is None else manifest.unigram_nats(self.token_counts)

    def evaluated(self, max_records: int) -> str:
        """Returns a sentence that says which records are evaluated on, at most `max_records`."""
        number = f"{self.num_eval_records:,} records"
        is_part = max_records < self.num_eval_records
        if is_part:
            number = f"{max_records:,} of {number}"
        if self.is_held_out:
            files = self.eval_files
            names = files if isinstance(files, str) else ", ".join(files)
            return f"Evaluation reads held-out records: {number} of {names}."
        return (
            f"Evaluation reads {'' if is_part else 'the '}{number} that are trained on: there are "
            "no held-out records. --eval_fraction of create_pretraining_data makes them, "
            "--eval_input_file names them."
        )


def prepare(config: PretrainingConfig, vocab_size: int, is_new: bool) -> PretrainingData:
    """Finds the records of a configuration, or makes records of the embedded corpus, which for a
    new run replace records made with other settings."""
    train_files, eval_files = config.data.input_file, config.data.eval_input_file
    if config.embedded:
        made = _make_embedded(config, is_new)
        train_files, eval_files = made.train_files, made.held_out_files
    records = _open(config.data, vocab_size, "input_file", train_files)
    flag, token_counts = "eval_input_file", None
    if config.do_eval or config.evaluates_while_training():
        with flags.named("input_file"):
            if not eval_files:
                flag, eval_files = "input_file", manifest.find_held_out(records.files)
            token_counts = manifest.token_frequencies(record_reader.find_record_sets(train_files))
    eval_records = _open(config.data, vocab_size, flag, eval_files) if eval_files else records
    objective = _objective(config, "input_file", records.files)
    _objective(config, flag, eval_records.files, objective)
    _check_one_vocabulary("input_file", train_files, records.files, "each other")
    # What one set of records holds out may be in another, which is trained on; a named file is the
    # choice of the user.
    if not config.data.eval_input_file:
        _warn_of_text_on_both_sides(records.files)
    if config.do_train:
        _say_which_words_are_whole(records.files)
    both = [*records.files, *eval_records.files]
    _check_one_vocabulary(flag, eval_files, both, "the records of --input_file")
    start = config.network.init_checkpoint
    if is_new and not start:
        _check_rows(config.network.bert_config_file, vocab_size, both)
    # An evaluation of the run's own checkpoints has the vocabulary beside them.
    vocab_file, casing = None, next(iter(manifest.casings(both)), None)
    if config.do_train or start:
        vocab_file = _vocabulary(config.data.vocab_file, vocab_size, both)
    # Records of google-research/bert do not say it, and are taken for records of the start's.
    if start and vocab_file is None and not config.starts_from_stage():
        with flags.named("init_checkpoint"):
            source = interchange.open_source(start)
        vocab_file, casing = source.vocab_file, casing or source.casing
        rule = "has another vocabulary than the records; name theirs with --vocab_file"
        flags.check(_made(both, vocab_file), "init_checkpoint", start, rule)
    return PretrainingData(
        train_files,
        eval_files or train_files,
        eval_records.num_records,
        manifest.digest(records.files),
        manifest.digest(eval_records.files),
        set(records.files).isdisjoint(eval_records.files),
        vocab_file,
        casing,
        next(iter(manifest.vocabularies(both)), None),
        token_counts,
        _lengths(config, records) if config.do_train and config.may_pack else None,
        objective,
    )


def _make_embedded(config, may_replace):
    """Makes or finds the records of the embedded corpus."""
    # A run goes on with its records, and may be evaluated on them for masked words alone.
    of_run = recorded_settings(config.output_dir)
    objective = config.data.objective if may_replace else of_run.get("objective")
    made_of = dict(embedded.DATA, objective=objective)
    if objective == MLM:
        made_of["dupe_factor"] = 1  # another pass would give the same sentences together
    # The chief makes the records; the other hosts, which may share its directory, then find
    # them.
    with flags.named("output_dir"), hosts.chief_first():
        return default_data.make(
            os.path.join(config.output_dir, "data"),
            max_seq_length=config.data.max_seq_length,
            max_predictions_per_seq=config.data.max_predictions_per_seq,
            may_replace=may_replace,
            **made_of,
        )


def _objective(config, flag, record_files, trained=None):
    """Returns the objective that is asked for, or else what is trained, or else what the records of
    a flag were made for; raises FlagError if they do not have labels of sentences for it."""
    with flags.named(flag):
        made_for = manifest.objectives(record_files)
    # Records without a manifest, such as google-research/bert's, may have labels of either kind. A
    # run that is evaluated has said what its own records have, and not what others have.
    asked, sources = config.data.objective, config.sources
    is_said = asked and not (sources["objective"] == provenance.RUN != sources[flag])
    others = ""
    if None in made_for and not is_said:
        others = f" (files without a manifest for {MLM_NSP}, unless --objective says otherwise)"
        made_for.add(MLM_NSP)
    made_for = sorted(made_for - {None})
    objective = asked or trained or (made_for or [MLM_NSP])[-1]
    rule = (
        f"the records of --{flag} were made for {' and '.join(made_for)}{others}; give "
        f"--objective={MLM}, for which any records do, or make all by create_pretraining_data "
        f"--objective={objective}"
    )
    is_allowed = objective == MLM or {*made_for} <= {objective}
    flags.check(is_allowed, "objective", asked or trained, rule)
    return objective


def objective_to_compile(config: PretrainingConfig) -> str:
    """Returns what --compile_only compiles a training for, of `choices.OBJECTIVES`."""
    files = config.data.input_file
    with flags.named("input_file"):
        files = record_reader.find_record_files(files) if files else []
    return _objective(config, "input_file", files)


def lengths_to_compile(
    config: PretrainingConfig,
) -> tuple[record_lengths.RecordLengths | None, Sequence[tuple[int, int]]]:
    """Returns (the lengths of the records of --compile_only, None if no flag tells them; their
    mixture as in `order.BatchOrder`)."""
    longest = config.data.max_seq_length, config.data.max_predictions_per_seq
    if config.fill is not None:
        return record_lengths.evenly_spread(config.fill, *longest), ()
    if config.data.input_file is None or not config.may_pack:
        return None, ()
    records = _open(config.data, None, "input_file", config.data.input_file)
    return _lengths(config, records), order.mixture(records, config.data.input_file)


def _lengths(config, records):
    """Returns the lengths of records; those counted are kept in the run's directory."""
    asked, kept_in = config.data, None
    if not config.plan.compile_only:
        kept_in = os.path.join(config.directory_to_write(), "record_lengths.npz")
    expected = pretraining_features.PretrainingFeatures(
        asked.max_seq_length, asked.max_predictions_per_seq, has_sentences=asked.has_sentences
    ).kinds
    with flags.named("input_file"):
        return record_lengths.read(records, expected, kept_in, asked.max_bad_records)


def check_text(output_dir: str, records: RecordFlags, data: PretrainingData) -> None:
    """Checks that the records are of the vocabulary and casing of the run that goes on or is
    evaluated, as far as the files beside its checkpoints say."""
    with flags.named("output_dir"):
        casing = network_files.casing(output_dir)
    vocab_file = RunDirectory(output_dir).vocab_file()
    learned = vocab_file and manifest.sha256_of_file(vocab_file), casing
    _check_same_text(records.input_file, learned, data, f"the run in {output_dir} was trained with")


def check_stages(stages: Sequence[tuple[str, PretrainingData]]) -> None:
    """Checks that the records of all stages of a recipe, named by --input_file, have one vocabulary
    and casing."""
    for (_, before), (input_file, data) in itertools.pairwise(stages):
        learned = before.vocab_sha256, before.casing
        _check_same_text(input_file, learned, data, "the records of the stage before")


def _check_same_text(input_file, learned, data, what):
    flags_of_text = "--do_lower_case or --strip_accents"
    rule = f"its records were made with another vocabulary, {flags_of_text} than {what}"
    for pair in zip(learned, (data.vocab_sha256, data.casing), strict=True):
        flags.check(None in pair or pair[0] == pair[1], "input_file", input_file, rule)


def _warn_of_text_on_both_sides(record_files):
    with flags.named("input_file"):
        warning = manifest.held_out_disagreement(record_files)
    if warning:
        tf.logging.warning("%s", warning)


def _say_which_words_are_whole(record_files):
    """Logs a line for each set of records that are masked by words while they are read."""
    manifests = {path: made for path, made in manifest.read_manifests_of(record_files).values()}
    for path, made in manifests.items():
        line = made.is_dynamic and manifest.whole_words(made, path)
        if line:
            tf.logging.info("%s: %s", path, line)


def _check_one_vocabulary(flag, value, files, others):
    is_one = len(manifest.vocabularies(files)) < 2 and len(manifest.casings(files)) < 2
    rule = f"its records and {others} were not made with one vocabulary and casing"
    flags.check(is_one, flag, value, rule)


def _vocabulary(vocab_file, vocab_size, record_files):
    """Returns the path of the vocabulary to keep with the run, or None if it is not known."""
    with flags.named("vocab_file" if vocab_file else "input_file"):
        found = vocab_file or manifest.find_vocabulary(record_files)
        if found:
            size = tokenization.reopen_tokenizer(found, tokenization.Casing(True)).vocab_size
            tokenization.check_rows(found, size, vocab_size)
    rule = "is not the vocabulary that the records were made with; give that one, or leave it out"
    flags.check(_made(record_files, found), "vocab_file", vocab_file, rule)
    return found


def _made(record_files, vocab_file):
    """Returns whether a vocabulary made records, as far as manifests say; None is not known."""
    made_with = manifest.vocabularies(record_files) if vocab_file else set()
    return not made_with or made_with == {manifest.sha256_of_file(vocab_file)}


def _check_rows(bert_config_file, vocab_size, record_files):
    """Checks that a network from scratch has no more rows for tokens than padding would add."""
    for path, made in manifest.read_manifests_of(record_files).values():
        rule = (
            f"the network's vocab_size is {vocab_size}, but the records have {made.vocab_size} "
            f"tokens, as {path} says. Give a file with that number, or at most {_MOST_PADDING} more"
        )
        is_padded = vocab_size - made.vocab_size <= _MOST_PADDING
        flags.check(is_padded, "bert_config_file", bert_config_file, rule)


def _open(flags_of_records, vocab_size, flag, files):
    with flags.named(flag):
        lengths = flags_of_records.max_seq_length, flags_of_records.max_predictions_per_seq
        records = pretraining_features.open_pretraining_records(
            files, *lengths, vocab_size, flags_of_records.has_sentences
        )
        unmasked_records.open_masker(records.files, seed=None)  # for its errors, before step 0
    return records
