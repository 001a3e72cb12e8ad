"""Creates pretraining records from text files, with google-research/bert's flags.

```
python -m input_pipelines.create_pretraining_data --input_file=corpus/*.txt \\
    --output_file=data/train-0.tfrecord,data/train-1.tfrecord --vocab_file=vocab.txt
```
"""

import dataclasses
import os
import sys

from absl import app, flags

from bert_estimator import native_log
from bert_estimator.tokenization import open_tokenizer
from bert_estimator.tpu import lock
from input_pipelines import command_line
from input_pipelines.documents import find_files, read_documents
from input_pipelines.instances import CreationSettings


def define_flags() -> None:
    """Defines the flags of this command."""
    defaults = CreationSettings()
    flags.DEFINE_string(
        "input_file", None, "Read these text files or globs, comma-separated.", required=True
    )
    flags.DEFINE_string(
        "output_file", None, "Write these record files, comma-separated.", required=True
    )
    flags.DEFINE_string(
        "vocab_file",
        None,
        "Read the vocabulary from this file: a WordPiece vocabulary (vocab.txt), or a "
        "SentencePiece model, whose name ends in .model.",
        required=True,
    )
    flags.DEFINE_bool("do_lower_case", True, "Lower-case the text and strip accents.")
    flags.DEFINE_bool(
        "do_whole_word_mask",
        defaults.do_whole_word_mask,
        "Mask either all pieces of a word or none of them.",
    )
    flags.DEFINE_bool(
        "random_next_sentence",
        defaults.random_next_sentence,
        "Draw half of the second segments at random, as in BERT; "
        "--norandom_next_sentence swaps half of the pairs instead, as in ALBERT.",
    )
    flags.DEFINE_integer("max_seq_length", defaults.max_seq_length, "Pad examples to this length.")
    flags.DEFINE_integer(
        "max_predictions_per_seq",
        defaults.max_predictions_per_seq,
        "Mask at most this number of tokens in an example.",
    )
    flags.DEFINE_integer("random_seed", defaults.random_seed, "Seed all random choices.")
    flags.DEFINE_enum(
        "masking",
        "static",
        ["static", "dynamic"],
        "Write records with masks (static), as google-research/bert, or packed records without "
        "masks (dynamic): run_pretraining.py draws other masks in each epoch.",
    )
    flags.DEFINE_integer(
        "dupe_factor",
        None,
        "Make this number of passes over the text, each with other masks and segments; by default "
        f"{defaults.dupe_factor}, and 1 with --masking=dynamic.",
    )
    flags.DEFINE_float("masked_lm_prob", defaults.masked_lm_prob, "Mask this share of the tokens.")
    flags.DEFINE_float(
        "short_seq_prob",
        defaults.short_seq_prob,
        "Make this share of the examples shorter, of a random length.",
    )


def create(values: flags.FlagValues) -> str:
    """Creates the records that the flags ask for; returns a summary in words.

    Raises:
      ValueError: a flag or the text cannot work; the message says which.
      FileNotFoundError: the vocabulary or the directory of the output does not exist.
      lock.InUseError: another process writes these files.
    """
    given = {f.name: values[f.name].value for f in dataclasses.fields(CreationSettings)}
    if given["dupe_factor"] is None:
        given["dupe_factor"] = 1 if values.masking == "dynamic" else CreationSettings.dupe_factor
    try:
        settings = CreationSettings(**given)
    except ValueError as error:
        # The message begins with the name of a field, which is the name of its flag too.
        raise ValueError(f"--{error}") from None
    with command_line.naming("input_file"):
        input_files = find_files(values.input_file.split(","))
    output_files = values.output_file.split(",")
    for path in output_files:
        if not os.path.isdir(os.path.dirname(path) or "."):
            raise FileNotFoundError(
                f"--output_file: the directory of {path!r} does not exist. Create it first."
            )
        if os.path.isdir(path) or not path:
            raise ValueError(f"--output_file: {path!r} is not a file's name")
    if len({os.path.realpath(path) for path in output_files}) < len(output_files):
        raise ValueError("--output_file: a file is named twice; name each file once")
    with command_line.naming("vocab_file"):
        tokenizer = open_tokenizer(values.vocab_file, values.do_lower_case)

    # Imported only now, since TensorFlow takes seconds: wrong flags have been reported by here.
    from input_pipelines.pretraining_records import write_pretraining_records

    with lock.held_for(output_files[0]):
        manifest = write_pretraining_records(
            read_documents(input_files),
            tokenizer,
            values.vocab_file,
            output_files,
            settings,
            masking=values.masking,
        )
    return (
        f"{manifest.num_records} examples from {manifest.corpus['documents']} documents "
        f"({manifest.corpus['tokens']} tokens) in {len(output_files)} files."
    )


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code (see `command_line.exit_code`)."""
    return command_line.exit_code("create_pretraining_data", create, argv)


def command() -> None:
    """Runs the console command `bert-pretraining-data`."""
    define_flags()
    app.define_help_flags()
    native_log.quiet()
    sys.exit(main(sys.argv))


if __name__ == "__main__":
    command()
