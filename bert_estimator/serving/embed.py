"""Gives vectors for texts, from any layer of a network.

    python -m bert_estimator.serving.embed uncased_L-12_H-768_A-12 < texts.txt > vectors.npy

The command reads a text per line, or two texts with a tab between them, and writes one array:
float32 [number of lines, width], which numpy.load opens. Row i is of line i. MODEL is the directory
of a run, a checkpoint of google-research/bert, a directory of Hugging Face, or a zip archive.

--pooling says how the vectors of a text's tokens become one vector, and --layers which layers they
are from. --format=jsonl writes the vectors of all tokens instead, a line of JSON for each text, in
the layout of google-research/bert's extract_features.py:

    {"linex_index": 0, "features": [{"token": "[CLS]", "layers": [{"index": -1, "values": [...]}]}]}

A line that cannot be answered (not UTF-8, several tabs, longer than 1 MiB) gets a row of NaN, or
{"linex_index": 6, "error": "line 7: ..."}; standard error says why, and the exit code is then 1.
"""

import argparse
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any, BinaryIO, TextIO

import numpy as np

from bert_estimator.command_line import console, flags
from bert_estimator.command_line.choices import LONG_TEXTS, POOLINGS
from bert_estimator.serving import commands
from bert_estimator.serving.commands import BATCHES_TOGETHER
from bert_estimator.system import disk_files, memory, standard_streams

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None

_HEADER_BYTES = 128  # what NumPy writes for two dimensions


class VectorFile:
    """Writes rows of float32 [width] in NumPy's format, as they come."""

    def __init__(self, writer: BinaryIO, width: int):
        # The header has the number of rows, so it is written last: a file whose writer was killed
        # cannot be opened by mistake. If the output cannot be written from its start again, such as
        # a pipe, rows wait in a temporary file until `finish`.
        self._target, self._width, self._num_rows = writer, width, 0
        self._rows = writer if _is_rewritable(writer) else tempfile.TemporaryFile()  # noqa: SIM115
        self._start = self._rows.tell()
        self._rows.write(bytes(_HEADER_BYTES))

    def write(self, rows: np.ndarray) -> None:
        """Writes rows, float32 [any, width]."""
        with self._writing():
            self._rows.write(np.ascontiguousarray(rows, "<f4").tobytes())
        self._num_rows += len(rows)

    def finish(self) -> None:
        """Writes the header."""
        shape = (self._num_rows, self._width)
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": "<f4", "fortran_order": False, "shape": shape}
        )
        # NumPy pads the header to a multiple of 64 bytes; the rows follow the place that is left
        # for it.
        assert len(header.getvalue()) == _HEADER_BYTES, "another version of NumPy's format"
        with self._writing():
            self._rows.seek(self._start)
            self._rows.write(header.getvalue())
        if self._rows is not self._target:
            self._rows.seek(0)
        with standard_streams.explaining_loss():
            if self._rows is not self._target:
                shutil.copyfileobj(self._rows, self._target)
                self._rows.close()
            self._target.flush()

    def _writing(self):
        # A full disk is reported with the directory that is on it.
        if self._rows is self._target:
            return standard_streams.explaining_loss()
        return disk_files.naming(tempfile.gettempdir())


def _is_rewritable(writer):
    """Returns whether a file's start can be written last: not in pipes, nor with `>>`, which
    Windows does not tell."""
    if fcntl is None or not writer.seekable():
        return False
    try:
        return not fcntl.fcntl(writer.fileno(), fcntl.F_GETFL) & os.O_APPEND
    except io.UnsupportedOperation:  # in memory
        return True


def write_vectors(embedder, reader: BinaryIO, writer: BinaryIO, report: Callable) -> int:
    """Writes the array of all lines; calls `report` with the error of each line that gets a row of
    NaN, and returns their number."""
    errors, vectors = 0, VectorFile(writer, embedder.width)
    together = BATCHES_TOGETHER * embedder.batch_size
    for answers in commands.answered(reader, together, None, embedder):
        rows = np.full([len(answers), embedder.width], np.nan, np.float32)
        for place, (answer, error) in enumerate(answers):
            if error is None:
                rows[place] = answer
            else:
                errors += 1
                report(error)
        vectors.write(rows)
    vectors.finish()
    return errors


def write_features(
    embedder, layers: list[int], reader: BinaryIO, writer: TextIO, report: Callable
) -> int:
    """Writes the features of each token as lines of JSON, otherwise like `write_vectors`; `layers`
    are numbered as they were asked for."""
    number = errors = 0
    for answers in commands.answered(reader, embedder.batch_size, None, embedder.tokens):
        for answer, error in answers:
            line = {"linex_index": number}
            if error is None:
                line["features"] = [
                    {
                        "token": token,
                        "layers": [
                            {"index": index, "values": [round(float(x), 6) for x in vectors[place]]}
                            for index, vectors in zip(layers, answer[1], strict=True)
                        ],
                    }
                    for place, token in enumerate(answer[0])
                ]
            else:
                line["error"] = error
                errors += 1
                report(error)
            writer.write(json.dumps(line) + "\n")
            number += 1
        writer.flush()
    return errors


def _parser() -> argparse.ArgumentParser:
    parser = commands.parser(
        "bert_estimator.serving.embed", __doc__, "open the network in this directory or checkpoint"
    )
    add = parser.add_argument
    add(
        "--format",
        choices=["npy", "jsonl"],
        default="npy",
        help="write this format (default %(default)s)",
    )
    add_vector_flags(parser)
    add(
        "--max_seq_length",
        type=int,
        help="read this many tokens at a time (default: the length of the network's training)",
    )
    add_network_flags(parser)
    return parser


def add_network_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say how any network is opened; see `network_options`."""
    add = parser.add_argument
    for name, does, leaves in (
        ("do_lower_case", "lower-case texts", "leave texts in the case that they have"),
        ("strip_accents", "strip accents from texts", "leave texts the accents that they have"),
    ):
        does += " (default: as the files beside the weights say)"
        add(f"--{name}", action="store_true", default=None, help=does)
        add(f"--no{name}", dest=name, action="store_false", default=None, help=leaves)
    add("--vocab_file", help="use this vocabulary, not the one beside the weights")
    add("--bert_config_file", help="take the network from this, if none lies beside the weights")
    add("--checkpoint", choices=["best", "newest"], help="open this checkpoint of a run")


def network_options(args: argparse.Namespace) -> dict[str, Any]:
    """Returns what these flags say, as arguments of `Embedder`."""
    for name in ("vocab_file", "bert_config_file"):
        flags.check_file(name, getattr(args, name))
    names = "vocab_file bert_config_file do_lower_case checkpoint strip_accents batch_size"
    return {name: getattr(args, name) for name in names.split()}


def add_vector_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `vector_options`."""
    add = parser.add_argument
    add(
        "--pooling",
        choices=POOLINGS,
        help="make a text's vector of its tokens' vectors: their mean or maximum, without padding; "
        "[CLS]'s; or the pooler's output (default: as sentence-transformers' files beside the "
        "weights say, scaled to length 1 if they say so; without them, mean)",
    )
    add(
        "--layers",
        type=_layers,
        help="take these layers, and put their vectors side by side: 1 is the first layer, 0 the "
        "sum of the embeddings, -1 the last layer (default -1; extract_features.py's default is "
        "--layers=-1,-2,-3,-4)",
    )
    add(
        "--long_texts",
        choices=LONG_TEXTS,
        help="read of a text that is longer its beginning, its beginning and end, or all of it in "
        "windows, whose vectors are averaged (default: as in the network's training, or else cut; "
        "--format=jsonl cuts instead of windows)",
    )
    add(
        "--doc_stride",
        type=int,
        help="start each window so many tokens after the window before it (default: half of it)",
    )


def vector_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of `Embedder` that flags of vectors ask for; ends the command if they
    do not go together."""
    if args.pooling == "pooled" and args.layers is not None:
        parser.error("--layers is not for --pooling=pooled, which is of the last layer")
    return {
        "pooling": args.pooling,
        "layers": args.layers or [-1],
        "long_texts": args.long_texts,
        "doc_stride": args.doc_stride,
    }


def _layers(text):
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of layers; write numbers with commas, such as -1,-2"
        ) from None


def _arguments(argv):
    """Returns (the parsed arguments, the options of vectors); flags that would have no effect are
    errors."""
    parser = _parser()
    args = parser.parse_args(argv[1:])
    if args.format == "jsonl" and args.pooling is not None:
        parser.error("--pooling is for --format=npy: --format=jsonl writes the tokens' own vectors")
    if args.format == "jsonl" and args.long_texts == "windows":
        parser.error("--long_texts=windows is for --format=npy: a token may be in several windows")
    options = vector_options(parser, args)
    if args.format == "jsonl":
        # The pooling is not used, whatever the files beside the weights ask for.
        options |= {"pooling": "mean"}
    return args, options


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code, as `commands.exit_code` does."""
    args, options = _arguments(argv)

    def answer():
        of_network = network_options(args)
        with commands.lines_of(args.file) as reader:
            with commands.opening():
                # Loaded only now, since it takes seconds: a wrong command line has been reported.
                from bert_estimator.serving.embedder import Embedder

                embedder = Embedder(
                    args.model, max_seq_length=args.max_seq_length, **options, **of_network
                )
                # A token in several windows has no single vector.
                if args.format == "jsonl" and embedder.long_texts.choice == "windows":
                    embedder.long_texts = embedder.long_texts._replace(
                        choice="cut", doc_stride=None
                    )
            if args.format == "npy":
                errors = write_vectors(embedder, reader, sys.stdout.buffer, _report)
            else:
                errors = write_features(embedder, options["layers"], reader, sys.stdout, _report)
        number, length = embedder.num_cut, embedder.max_seq_length
        commands.report_cuts(number, length, long_texts=embedder.long_texts)
        return errors

    return commands.exit_code("embed", argv, answer)


def _report(error):
    print(f"embed: {error}", file=sys.stderr)


def command() -> None:
    """Runs the console command `bert-embed`."""
    console.run(main, memory.keep_freed_memory)


if __name__ == "__main__":
    command()
