"""Makes one text file of texts of any format: sentences split, duplicates and short texts left out.

```
python -m input_pipelines.create_text --input_file=dumps --output_file=corpus.txt \\
    --deduplicate=near --min_words=20
```
"""

import functools

from bert_estimator.command_line import console, flags
from bert_estimator.storage import remote
from bert_estimator.system import disk_files, lock
from bert_estimator.system.ticker import Progress
from input_pipelines import arguments, remote_output
from input_pipelines.text import document_filter, text_files, text_formats
from input_pipelines.text.documents import read_pieces, total_bytes


@flags.group()
class TextConfig:
    """Holds the flags of this command."""

    texts: arguments.TextInput = flags.member(arguments.TextInput)
    output_file: str | None = flags.field(
        None,
        "Write the text to this file: a sentence in each line, an empty line between documents.",
        heading=arguments.NEEDED,
    )
    deduplicate: str = flags.field(
        "exact",
        "Leave out documents with the same words as a document before them (exact), or with most "
        "of its sequences of 5 words (near), or none (no).",
        flags.one_of(("no", "exact", "near")),
    )


def create(config: TextConfig) -> str:
    """Creates the text that the flags ask for; returns a summary in words."""
    return remote_output.create(config, "output_file", functools.partial(_create, config))


def _create(config, path, there):
    """Makes the text in a file of this machine; returns what `remote_output.create` asks for."""
    del there
    arguments.check_names_a_file("output_file", path)
    _check_is_read_as_text(path)
    options = config.texts.options
    chosen = options.new_filter()
    files = config.texts.files()
    with flags.named("input_file"):
        progress = Progress("Reading text", total_bytes(files), "B")
    arguments.check_output("output_file", path, files)
    pieces = read_pieces(files, progress, options, chosen)
    with lock.held_for(path), disk_files.writer(path) as file:
        number, size, repeated = _write(pieces, file, config.deduplicate)
    left_out = document_filter.in_words({"duplicates": repeated, **chosen.left_out})
    return f"{number} documents ({size} words) in {path}. Left out: {left_out}.", [path]


def _check_is_read_as_text(path):
    """Checks that the commands that read the output will not look for another format in it."""
    shown = remote.shown(path)
    if text_files.packing(path) or text_files.is_archive(path):
        raise ValueError(f"--output_file={shown}: is written without packing; end it in .txt")
    kind = text_formats.of_file(path, b"")
    if kind != "plain":
        raise ValueError(
            f"--output_file={shown}: a file of this name is read as {kind}, but plain text is "
            "written; end it in .txt"
        )


def _write(pieces, file, kind):
    """Writes the documents that are new; returns numbers: of them, their words, and the others."""
    # Imported only now, since NumPy takes a third of the time of --help.
    from input_pipelines.text.deduplication import ExactDuplicates, NearDuplicates

    duplicates = {"no": lambda: None, "exact": ExactDuplicates, "near": NearDuplicates}[kind]()
    number = size = repeated = 0
    is_written = False  # whether the last piece is
    for piece in pieces:
        # A document in several pieces is written from the first new piece on. Each is remembered.
        is_new = duplicates is None or duplicates.is_new(piece.sentences)
        goes_on = is_written and not piece.is_first
        repeated += piece.is_first and not is_new
        is_written = is_new or goes_on
        if not is_written:
            continue
        if not number:
            file.write(text_formats.before_plain(piece.sentences[0]))
        elif not goes_on:
            file.write("\n")
        file.write("\n".join(piece.sentences) + "\n")
        number += not goes_on
        size += len(document_filter.words_of(piece.sentences))
    return number, size, repeated


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code (see `console.exit_code`)."""
    return arguments.exit_code("create_text", __doc__, TextConfig, create, argv)


def command() -> None:
    """Runs the console command `bert-text`."""
    console.run(main)


if __name__ == "__main__":
    command()
