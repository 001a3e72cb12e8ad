"""Makes one text file of texts of any format: sentences split, duplicates and short texts left out.

```
python -m input_pipelines.create_text --input_file=dumps --output_file=corpus.txt \\
    --deduplicate=near --min_words=20
```
"""

import functools

from absl import flags

from bert_estimator import atomic_file
from bert_estimator.tpu import lock
from input_pipelines import command_line, document_filter, remote_output, text_flags, words
from input_pipelines.documents import find_files, read_documents, total_bytes
from input_pipelines.progress import Progress

_DUPLICATES = ("no", "exact", "near")


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
        _DUPLICATES,
        "Leave out documents with the same words as a document before them (exact), or with most "
        "of its sequences of 5 words (near).",
    )


def create(values: flags.FlagValues) -> str:
    """Creates the text that the flags ask for; returns a summary in words.

    Raises:
      ValueError: a flag or the text cannot work; the message says which.
      FileNotFoundError: the directory of the output does not exist.
      OSError: the output cannot be written.
      lock.InUseError: another process writes it.
    """
    return remote_output.create(values, "output_file", functools.partial(_create, values))


def _create(values, path, there):
    """Makes the text in a file of this machine; returns what `remote_output.create` asks for."""
    del there
    command_line.check_names_a_file("output_file", path)
    options = text_flags.options(values)
    chosen = options.new_filter()
    with command_line.naming("input_file"):
        files = find_files(values.input_file.split(","))
        progress = Progress("Reading text", total_bytes(files), "B")
    command_line.check_output("output_file", path, files)
    documents = read_documents(files, progress, options, chosen)
    with lock.held_for(path), atomic_file.writer(path) as file:
        number, size, repeated = _write(documents, file, values.deduplicate)
    left_out = document_filter.in_words({"duplicates": repeated, **chosen.left_out})
    return f"{number} documents ({size} words) in {path}. Left out: {left_out}.", [path]


def _write(documents, file, kind):
    """Writes the documents that are new; returns numbers: of them, their words, and the others."""
    # Imported only now, since NumPy takes a third of the time of --help.
    from input_pipelines.deduplication import ExactDuplicates, NearDuplicates

    duplicates = {"no": lambda: None, "exact": ExactDuplicates, "near": NearDuplicates}[kind]()
    number = size = repeated = 0
    for document in documents:
        if duplicates and not duplicates.is_new(document):
            repeated += 1
            continue
        file.write(("\n" if number else "") + "\n".join(document) + "\n")
        number += 1
        size += len(words.of_document(document))
    return number, size, repeated


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code (see `command_line.exit_code`)."""
    return command_line.exit_code("create_text", create, argv)


def command() -> None:
    """Runs the console command `bert-text`."""
    command_line.run(define_flags, main, __doc__)


if __name__ == "__main__":
    command()
