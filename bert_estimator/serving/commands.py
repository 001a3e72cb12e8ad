"""What commands that answer lines of text share: texts, lines as they come, flags, exit codes."""

import argparse
import codecs
import contextlib
import io
import json
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from typing import Any, BinaryIO, TextIO

import numpy as np

from bert_estimator.command_line import console
from bert_estimator.system import disk_files, ticker
from input_pipelines.tasks.examples import Example
from input_pipelines.tasks.long_texts import WINDOWS, LongTexts

BATCH_SIZE = 32
# Commands sort the lines of up to so many batches, if that many have arrived.
BATCHES_TOGETHER = 8
_GREATEST_BATCH = 1 << 16

Text = str | tuple[str, str] | Sequence[str]


def check_batch_size(batch_size: int) -> None:
    """Raises ValueError if a batch cannot have this many texts."""
    if not isinstance(batch_size, Integral) or not 0 < batch_size <= _GREATEST_BATCH:
        raise ValueError(f"batch_size={batch_size!r}: must be from 1 to {_GREATEST_BATCH}")


def check_list(texts: Sequence[Text]) -> None:
    """Raises ValueError for a single string, whose characters would be taken for texts."""
    if isinstance(texts, str | bytes):
        raise ValueError("texts is a single string; give a list of texts")


class TooManyWindowsError(ValueError):
    """Long texts are read in too many windows; the message says how many."""


def check_windows(num_windows: int, num_texts: int, most: int | None) -> None:
    """Raises TooManyWindowsError if texts have more windows than `most`; None allows any number."""
    # Texts that are computed together, without being long, may be more than that.
    if most is not None and num_windows > max(most, num_texts):
        raise TooManyWindowsError(
            f"the texts are read in {num_windows} windows, which are more than {most}; send fewer "
            "or shorter texts"
        )


def example_of(number: int, text: Text, is_pair: bool, what: str) -> Example:
    """Returns a text or a pair of texts as an example without a label; `number` and `what`, which
    the text must be, are for errors."""
    parts = tuple(text) if isinstance(text, tuple | list) else (text,)
    if len(parts) != (2 if is_pair else 1) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"texts[{number}] is {text!r}; it must be {what}")
    check_characters(number, parts)
    return Example(parts[0], parts[1] if is_pair else None, None)


def batches_by_length(lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Yields the numbers of examples in batches, the longest examples first."""
    # A batch takes the time of its longest example, so examples of similar length go together. The
    # greatest batch is the first: if memory does not suffice, it fails at once.
    order = np.argsort(-lengths, kind="stable")
    for first in range(0, len(order), batch_size):
        yield order[first : first + batch_size]


def check_characters(number: int, parts: Sequence[str]) -> None:
    """Raises ValueError if strings of texts[number] cannot be written in UTF-8."""
    try:
        "".join(parts).encode()
    except UnicodeEncodeError:
        raise ValueError(f"texts[{number}] holds half of a character") from None


LONGEST_LINE = 1 << 20  # bytes; no network reads more of a text than its first few thousand

_CHUNK_BYTES = 1 << 16


class LineError(ValueError):
    """A line cannot be answered; the message says why."""


def arriving(reader: BinaryIO) -> Iterator[list[bytes | None]]:
    """Yields lines without their ends, each time as many as are available without waiting; a line
    longer than LONGEST_LINE is None."""
    line = b""
    # `read1` returns what has arrived; `read` would wait until the chunk is full, so that a program
    # that waits for the answer to its only line would wait forever.
    while chunk := reader.read1(_CHUNK_BYTES):
        first, *others = chunk.split(b"\n")
        if len(line) <= LONGEST_LINE:  # what follows in a line that is too long is not kept
            line += first
        *lines, line = line, *others
        yield list(map(_if_short, lines))
    # The last line may lack its end.
    if line:
        yield [_if_short(line)]


def _if_short(line):
    return line if len(line) <= LONGEST_LINE else None


def text_of(line: bytes | None, is_pair: bool | None) -> str | tuple[str, str]:
    """Returns the text or the pair of texts of a line that `arriving` yields, or raises LineError;
    if `is_pair` is None, the line may have either."""
    if line is None:
        raise LineError(f"is longer than {LONGEST_LINE} bytes; shorten the text")
    try:
        parts = line.removesuffix(b"\r").decode("utf-8").split("\t")
    except UnicodeDecodeError as error:
        raise LineError(f"byte {error.start} is not UTF-8") from None
    if is_pair is None and len(parts) > 2:
        raise LineError(f"has {len(parts) - 1} tabs; a tab stands between the two texts of a pair")
    if is_pair is not None and len(parts) != (2 if is_pair else 1):
        rule = (
            "pairs: two texts per line, with one tab between"
            if is_pair
            else "single texts: no tabs"
        )
        raise LineError(f"has {len(parts) - 1} tabs, but the model's task is about {rule}")
    return (parts[0], parts[1]) if len(parts) == 2 else parts[0]


def answered(
    reader: BinaryIO,
    batch_size: int,
    is_pair: bool | None,
    answer: Callable[[list[str | tuple[str, str]]], Sequence[Any]],
) -> Iterator[list[tuple[Any, str | None]]]:
    """Yields, as soon as lines arrive, a list of (answer, None), or (None, error) for a line that
    cannot be answered, in order; no line ends the service."""
    number = 0
    for arrived in arriving(reader):
        # Editors on Windows write a byte-order mark before the first line.
        if number == 0 and arrived and arrived[0]:
            arrived[0] = arrived[0].removeprefix(codecs.BOM_UTF8)
        for first in range(0, len(arrived), batch_size):
            part = arrived[first : first + batch_size]
            yield _answers(part, number + 1, is_pair, answer)
            number += len(part)


def write_answers(
    reader: BinaryIO,
    writer: TextIO,
    batch_size: int,
    is_pair: bool | None,
    answer: Callable[[list[str | tuple[str, str]]], Sequence[Any]],
) -> int:
    """Writes what `answered` yields as lines of JSON, and flushes them before it waits for more
    lines; returns the number of lines that got an error."""
    errors = 0
    for answers in answered(reader, batch_size, is_pair, answer):
        for value, error in answers:
            errors += error is not None
            writer.write(json.dumps(value if error is None else {"error": error}) + "\n")
        writer.flush()
    return errors


def _answers(part, first_number, is_pair, answer):
    """Returns (answer, error) for each line of a part; one of the two is None."""
    answers, texts = {}, {}
    for number, line in enumerate(part, first_number):
        try:
            texts[number] = text_of(line, is_pair)
        except LineError as error:
            answers[number] = None, f"line {number}: {error}"
    try:
        for number, of_text in zip(texts, answer(list(texts.values())), strict=True):
            answers[number] = of_text, None
    except Exception as error:  # whatever it is, the other lines are answered
        # One text may make the whole batch fail, so each line is answered by itself.
        if len(part) > 1:
            return [
                of_line
                for number, line in enumerate(part, first_number)
                for of_line in _answers([line], number, is_pair, answer)
            ]
        why = str(error).removeprefix("texts[0] ") or repr(error)
        answers[first_number] = None, f"line {first_number}: {why}"
    return [answers[number] for number in sorted(answers)]


def parser(
    module: str, description: str, model_help: str, takes_file: bool = True
) -> argparse.ArgumentParser:
    """Returns a parser with MODEL, perhaps FILE, --batch_size and --version; `module` is the name
    after `python -m`."""
    arguments = console.parser(module, description)
    arguments.add_argument("model", metavar="MODEL", help=model_help)
    if takes_file:
        arguments.add_argument(
            "file",
            metavar="FILE",
            nargs="?",
            help="read lines from this file (default: standard input)",
        )
    arguments.add_argument(
        "--batch_size",
        type=int,
        default=BATCH_SIZE,
        help="compute at most this many texts at a time (default %(default)s)",
    )
    return arguments


def opening() -> contextlib.AbstractContextManager[None]:
    """Says that the model is being opened, if that takes long."""
    return ticker.never_silent("Opening the model")


@contextlib.contextmanager
def lines_of(file: str | None) -> Iterator[BinaryIO]:
    """Opens the reader of lines: a file, or standard input."""
    if file:
        if os.path.exists(file) and (why := disk_files.why_unreadable(file)):
            raise ValueError(f"{file}: {why}")
        with open(file, "rb") as reader:
            _check_is_not_output(reader, file)
            yield reader
    else:
        _check_is_not_output(sys.stdin.buffer, "standard input")
        yield sys.stdin.buffer


def _check_is_not_output(reader, name):
    """Raises ValueError for a file to which `>>` would add answers that are then read as lines."""
    with contextlib.suppress(io.UnsupportedOperation):  # a stream in memory
        read, written = (os.fstat(stream.fileno()) for stream in (reader, sys.stdout))
        if stat.S_ISREG(read.st_mode) and os.path.samestat(read, written):
            raise ValueError(f"{name}: is standard output, too; write to another file")


def exit_code(name: str, argv: list[str], answer: Callable[[], int]) -> int:
    """Returns the exit code of a command, which is 1 if `answer` returns that some lines could not
    be answered, and else is as for `console.exit_code`."""
    # TensorFlow warns that sessions should not load SavedModels, which users cannot change.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)

    def body():
        if errors := answer():
            lines = "1 line was" if errors == 1 else f"{errors} lines were"
            print(f"{lines} answered with an error.", file=sys.stderr)
        return int(errors > 0)

    expected = ValueError, OSError
    return console.exit_code(name, argv, body, expected=expected, doing=None, prints_results=True)


def report_cuts(
    num_cut: int, max_seq_length: int, what: str = "texts", long_texts: LongTexts | None = None
) -> None:
    """Says how many of the texts, or of their words, were cut or read in windows."""
    is_cut = long_texts is None or long_texts.choice != WINDOWS
    done = "were cut to" if is_cut else "were read in windows of"
    if num_cut:
        print(f"{num_cut} of the {what} {done} {max_seq_length} tokens.", file=sys.stderr)
