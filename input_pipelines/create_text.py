"""Makes one text file of texts of any format: sentences split, duplicates and short texts left out.

```
python -m input_pipelines.create_text --input_file=dumps --output_file=corpus.txt \\
    --deduplicate=near --min_words=20
```
"""

import os

from absl import flags

from bert_estimator import atomic_file
from bert_estimator.tpu import lock
from input_pipelines import command_line, text_flags
from input_pipelines.deduplication import ExactDuplicates, NearDuplicates
from input_pipelines.documents import find_files, read_documents, total_bytes
from input_pipelines.progress import Progress

_DUPLICATES = {"no": None, "exact": ExactDuplicates, "near": NearDuplicates}


def define_flags() -> None:
    """Defines the flags of this command."""
    flags.DEFINE_string(
        "input_file",
        None,
        "Read these text files, globs or directories, comma-separated.",
        required=True,
    )
    text_flags.define()
    flags.DEFINE_string(
        "output_file",
        None,
        "Write the text to this file: a sentence in each line, an empty line between documents.",
        required=True,
    )
    flags.DEFINE_enum(
        "deduplicate",
        "exact",
        list(_DUPLICATES),
        "Leave out documents with the same words as a document before them (exact), or with most "
        "of its sequences of 5 words (near).",
    )
    flags.DEFINE_integer("min_words", 0, "Leave out documents with fewer words than this.")
    flags.DEFINE_float(
        "min_letters",
        0.0,
        "Leave out documents of which a smaller share of the characters, without spaces, are "
        "letters.",
    )


def create(values: flags.FlagValues) -> str:
    """Creates the text that the flags ask for; returns a summary in words.

    Raises:
      ValueError: a flag or the text cannot work; the message says which.
      FileNotFoundError: the directory of the output does not exist.
      OSError: the output cannot be written.
      lock.InUseError: another process writes it.
    """
    path = values.output_file
    if not os.path.isdir(os.path.dirname(path) or "."):
        raise FileNotFoundError(
            f"--output_file: the directory of {path!r} does not exist. Create it first."
        )
    if os.path.isdir(path) or not path:
        raise ValueError(f"--output_file={path}: is not a file's name")
    if values.min_words < 0:
        raise ValueError(f"--min_words={values.min_words}: must be 0 or more")
    if not 0 <= values.min_letters <= 1:
        raise ValueError(f"--min_letters={values.min_letters}: must be from 0 to 1")
    with command_line.naming("input_file"):
        files = find_files(values.input_file.split(","))
        progress = Progress("Reading text", total_bytes(files), "B")
    if os.path.realpath(path) in map(os.path.realpath, files):
        raise ValueError(f"--output_file={path}: is one of the files of --input_file")
    documents = read_documents(files, progress, text_flags.options(values))
    with lock.held_for(path), atomic_file.writer(path) as file:
        return _write(documents, file, values)


def _write(documents, file, values):
    """Writes the documents that are kept; returns a summary in words."""
    duplicates = _DUPLICATES[values.deduplicate]
    duplicates = duplicates and duplicates()
    number = words = short = foreign = repeated = 0
    for document in documents:
        size = sum(len(sentence.split()) for sentence in document)
        if size < values.min_words:
            short += 1
        elif values.min_letters and _share_of_letters(document) < values.min_letters:
            foreign += 1
        elif duplicates and not duplicates.is_new(document):
            repeated += 1
        else:
            file.write(("\n" if number else "") + "\n".join(document) + "\n")
            number += 1
            words += size
    left_out = f"{repeated} duplicates, {short} short, {foreign} of too few letters"
    if not number:
        raise ValueError(f"all documents are left out: {left_out}. Change the flags.")
    return f"{number} documents ({words} words) in {values.output_file}. Left out: {left_out}."


def _share_of_letters(document):
    characters = "".join("".join(document).split())
    return sum(map(str.isalpha, characters)) / len(characters)


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code (see `command_line.exit_code`)."""
    return command_line.exit_code("create_text", create, argv)


def command() -> None:
    """Runs the console command `bert-text`."""
    command_line.run(define_flags, main)


if __name__ == "__main__":
    command()
