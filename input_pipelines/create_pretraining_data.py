"""Creates pretraining records from text files, with google-research/bert's flags.

The records have no masks, which are drawn while training; --masking=static is for records with
masks, as google-research/bert makes them.

```
python -m input_pipelines.create_pretraining_data --input_file=corpus/*.txt \\
    --output_file=data/train.tfrecord --num_shards=8 --vocab_file=vocab.txt
```

A killed command resumes when it is given again on any machine that sees the same directory; if
--output_file is remote, on the same machine. The same text, flags and number of files give the same
bytes.
"""

import dataclasses
import functools
import os
import shlex
import shutil

from bert_estimator.command_line import console, flags
from bert_estimator.storage import remote
from bert_estimator.system import lock, paths
from bert_estimator.tokenization import open_tokenizer, unknown_warning
from input_pipelines import arguments, remote_output
from input_pipelines.creation.pools import BeamPool, WorkerPool, available_cores
from input_pipelines.creation.settings import PASSES, CreationSettings
from input_pipelines.records import record_names
from input_pipelines.text import document_filter
from input_pipelines.text.documents import no_text, split_files, total_bytes

_MOST_SHARDS = 99_999
# Less text for each process is not worth the start of another one.
_BYTES_OF_A_WORKER = 1 << 20


@flags.group()
class RecordsConfig:
    """Holds the flags of this command."""

    texts: arguments.TextInput = flags.member(arguments.TextInput)
    output_file: str | None = flags.field(
        None,
        "Write these record files, comma-separated. With --num_shards, one name for all of them.",
        heading=arguments.NEEDED,
    )
    num_shards: int | None = flags.field(
        None,
        "Write this number of files: train.tfrecord becomes train-00000-of-00008.tfrecord and so "
        "on.",
        flags.rule(lambda value: 1 <= value <= _MOST_SHARDS, f"must be from 1 to {_MOST_SHARDS}"),
    )
    num_workers: int | None = flags.field(
        None,
        "Use this number of processes, by default the number of cores. The records do not depend "
        "on it.",
        flags.positive,
    )
    runner: str | None = flags.field(
        None,
        "Run on this runner of Apache Beam, such as DirectRunner or FlinkRunner, instead of in "
        "processes of this machine. All machines must see all files under the same paths.",
    )
    beam_options: str = flags.field(
        "",
        "Give these options to Apache Beam, separated by spaces: --beam_options='--region=x'.",
    )
    vocab_file: str | None = flags.field(
        None,
        "Read the vocabulary from this file: a WordPiece vocabulary (vocab.txt), or a "
        "SentencePiece model, whose name ends in .model. Or take the vocabulary and casing of this "
        "network: a checkpoint, a directory or an archive.",
        heading=arguments.NEEDED,
    )
    casing: arguments.CasingFlags = flags.member(arguments.CasingFlags)
    eval_fraction: float = flags.field(
        0.0,
        "Leave this share of the documents out of training. run_pretraining.py evaluates on their "
        "records, which are in heldout.NAME, beside the first file NAME of --output_file.",
        flags.rule(lambda value: 0 <= value < 1, "must be 0 or more, and less than 1"),
    )
    masking: str = flags.field(
        "dynamic",
        "Write records without masks (dynamic): run_pretraining.py draws other masks in "
        "each epoch. Or write records with masks (static), for programs that read "
        "google-research/bert's.",
        flags.one_of(tuple(PASSES)),
    )
    settings: CreationSettings = flags.member(CreationSettings)


def create(config: RecordsConfig) -> str:
    """Creates the records that the flags ask for; returns a summary in words."""
    if paths.is_remote(config.output_file) and config.runner:
        raise ValueError(
            f"--output_file={config.output_file}: must be a directory that all machines of "
            "--runner see"
        )
    vocab_file, *known = arguments.vocabulary_of(config.vocab_file)
    sources = []
    if config.settings.word_segmenter:
        from input_pipelines.text import segmenters  # only now, since it loads NumPy

        with flags.named("word_segmenter"):
            sources = segmenters.source_files(config.settings.word_segmenter)
    make = functools.partial(_create, flags.changed(config, vocab_file=vocab_file), known)
    others = [*map(remote_output.hash_of, (vocab_file, *sources)), known[0]]
    return remote_output.create(config, "output_file", make, others)


def _create(config, known, output_file, there):
    """Makes record files on this machine, or for a remote directory with the names `there`; returns
    what `remote_output.create` asks for."""
    input_files = config.texts.files(config.vocab_file)
    output_files = _output_files(output_file.split(","), config.num_shards, there)
    with flags.named("vocab_file"):
        vocab_file = remote.local(config.vocab_file)
    if config.runner:  # its processes may have another working directory
        output_files, input_files = (
            [path if paths.is_remote(path) else os.path.abspath(path) for path in files]
            for files in (output_files, input_files)
        )
        vocab_file = os.path.abspath(vocab_file)
    held_out = [record_names.held_out_path(output_files[0])] if config.eval_fraction else []
    for path in [*output_files, *held_out]:
        arguments.check_output("output_file", path, [*input_files, vocab_file])
    with flags.named("vocab_file"):
        tokenizer = open_tokenizer(vocab_file, *flags.values_of(config.casing).values(), *known)
    # Two commands of one output would delete each other's unfinished work.
    with lock.held_for(output_files[0]):
        return _write(config, input_files, vocab_file, tokenizer, output_files, there)


def _output_files(output_files, num_shards, there):
    """Returns the checked names of the record files."""
    if num_shards is not None:
        if len(output_files) > 1:
            raise ValueError(
                f"--num_shards={num_shards}: --output_file names {len(output_files)} files. Give "
                "one name, to which the number of each file is added"
            )
        if os.path.basename(output_files[0]):
            output_files = record_names.shard_names(output_files[0], num_shards)
    for path in output_files:
        arguments.check_names_a_file("output_file", path)
        if os.path.basename(path).startswith(record_names.HELD_OUT_PREFIX):
            raise ValueError(
                f"--output_file={path}: names that begin with {record_names.HELD_OUT_PREFIX!r} are "
                "for the held-out records that --eval_fraction makes, which a training does not "
                "read. Give another name"
            )
    if len({os.path.realpath(path) for path in output_files}) < len(output_files):
        raise ValueError("--output_file: a file is named twice; name each file once")
    if len({os.path.dirname(path) for path in output_files}) > 1:
        raise ValueError(
            "--output_file: the files lie in different directories; give one directory"
        )
    if others := record_names.other_sets(output_files, there):
        more = f" and {len(others) - 1} more" if others[1:] else ""
        raise ValueError(
            f"--output_file: {others[0]}{more} belong to records of this name in another number of "
            "files, and would be mixed up with the new records. Remove them, give another name, or "
            "make as many files as before"
        )
    return output_files


def _write(config, input_files, vocab_file, tokenizer, output_files, there):
    """Writes the held-out records, if there are to be any, and the training records."""
    # Imported only now, since TensorFlow takes seconds: wrong flags have been reported by here.
    from input_pipelines.creation import pretraining_records
    from input_pipelines.records import manifest as manifests

    fraction, options = config.eval_fraction, config.texts.options
    settings = config.settings
    pool = _pool(config, total_bytes(input_files), output_files[0])

    def parts_of(are_held_out):
        parts = split_files(input_files, options, (fraction, are_held_out) if fraction else None)
        if not parts:
            raise ValueError(no_text(input_files, {}))
        return parts

    def write(files, settings, description, are_held_out, what):
        return pretraining_records.write_pretraining_records(
            parts_of(are_held_out),
            tokenizer,
            vocab_file,
            files,
            settings,
            description,
            masking=config.masking,
            pool=pool,
            progress=what,
        )

    summary, files, description = [], [], {}
    path = record_names.held_out_path(output_files[0])
    if fraction:
        once = dataclasses.replace(settings, dupe_factor=1)
        try:
            # First, so that no held-out records are written without training records.
            pretraining_records.check_has_documents(parts_of(are_held_out=False))
            manifest = write([path], once, {}, True, "Held-out records")
        except pretraining_records.EmptySideError as error:
            raise ValueError(f"--eval_fraction: {error}") from None
        # The manifest of the training records names the held-out ones by their hash, so that
        # records of another creation are not taken for them.
        description = {"held_out": manifests.held_out_description(fraction, manifest)}
        summary.append(f"Held out: {_in_words(manifest)} in {path}.")
        files += manifests.files_of(path, manifest)
    manifest = write(output_files, settings, description, False, "Records")
    files += manifests.files_of(output_files[0], manifest)
    # A killed command with another --eval_fraction may have left it.
    shutil.rmtree(record_names.work_directory(path), ignore_errors=True)
    names = os.listdir(os.path.dirname(path) or ".") if there is None else there
    if not fraction and os.path.basename(path) in names:
        summary.append(f"{path} belongs to other records. Its text may be in these: remove it.")
    summary.append(f"{_in_words(manifest)} in {len(output_files)} files.")
    if left_out := manifest.corpus.get("left_out"):
        summary.append(f"Left out: {document_filter.in_words(left_out)}.")
    if line := manifests.whole_words(manifest):
        summary.append(line)
    share = manifest.corpus["unknown"] / manifest.corpus["tokens"]
    if warning := unknown_warning(share, "the tokens"):
        summary.append(warning)
    return "\n".join(summary), files


def _pool(config, num_bytes, output_file):
    if config.runner:
        if config.num_workers:
            raise ValueError(
                f"--num_workers={config.num_workers}: --runner has an option of its own. Give it "
                "in --beam_options"
            )
        with flags.named("beam_options"):
            options = shlex.split(config.beam_options)
        return BeamPool(config.runner, options, os.path.dirname(output_file) or ".")
    most = num_bytes // _BYTES_OF_A_WORKER
    # Workers do not have TensorFlow, whose import takes as much memory as the work.
    return WorkerPool(min(config.num_workers or available_cores(), most) if most > 1 else 0)


def _in_words(manifest):
    corpus = manifest.corpus
    fill = corpus["record_lengths"]["mean"] / manifest.max_seq_length
    # Only records for masked words alone name their objective.
    what = "examples of whole sentences" if "objective" in manifest.creation else "examples"

    def share(key):
        return f"{100 * corpus[key] / corpus['tokens']:.3g}"

    return (
        f"{manifest.num_records} {what}, {fill:.0%} full, from {corpus['documents']} documents "
        f"({corpus['tokens']} tokens, {share('unknown')} % [UNK], {share('in_no_example')} % in no "
        "example)"
    )


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code (see `console.exit_code`)."""
    return arguments.exit_code("create_pretraining_data", __doc__, RecordsConfig, create, argv)


def command() -> None:
    """Runs the console command `bert-pretraining-data`."""
    console.run(main)


if __name__ == "__main__":
    command()
