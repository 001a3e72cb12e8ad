"""Answers raw texts with an exported model, which is opened once and stays in memory.

    python run_classifier.py ... --do_export --output_dir=runs/mrpc
    python -m bert_estimator.serving.predictor runs/mrpc < texts.tsv > answers.jsonl

The command reads a text per line, or two texts with a tab between them if the task is about pairs.
It writes a line of JSON for each line, in order:

    {"label": "1", "probabilities": {"0": 0.1, "1": 0.9}}          classification
    {"labels": ["a"], "probabilities": {"a": 0.9, "b": 0.2}}       multi_label: labels above 0.5
    {"number": 3.2}                                                regression

Lines are answered as soon as they arrive, so a program may write a line, and wait for its answer
before it writes the next line.
"""

import argparse
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, TextIO

import numpy as np

from bert_estimator import __version__, tokenization
from input_pipelines.examples import Example
from input_pipelines.features import Features

BATCH_SIZE = 32

_EXPORTS = "export"  # the directory of a run's exported models
_CHUNK_BYTES = 1 << 16

Text = str | tuple[str, str]


class Predictor:
    """Opens an exported classifier for raw texts. It needs TensorFlow, but no code of the model.

    ```
    predictor = Predictor("runs/mrpc")
    predictor([("A text.", "Another."), ("A third.", "A fourth.")])
    ```

    Calls may come from several threads at a time.

    Args:
      path: the directory of an exported model; or a directory of exported models by number, whose
        newest is taken; or the directory of a run, which has its exported models in `export`.
      batch_size: the most texts that are computed at a time.

    Attributes:
      export_dir: the exported model's directory.
      kind: "classification", "multi_label" or "regression".
      labels: the labels in the order of the outputs' columns; empty for regression.
      is_pair: whether the model's task is about pairs of texts.
      max_seq_length: tokens of an example; longer examples are cut, as they were in training.
      num_cut: how many texts have been cut so far.

    Raises:
      ValueError: the directory does not hold an exported model, or the model cannot be fed with
        texts; the message says what is missing.
    """

    def __init__(self, path: str, batch_size: int = BATCH_SIZE):
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: must be positive")
        self.batch_size = batch_size
        self.export_dir = find(path)
        extra = os.path.join(self.export_dir, "assets.extra")
        task = _read_task(os.path.join(extra, "task.json"))
        self.kind: str = task["kind"]
        self.labels: tuple[str, ...] = tuple(task["labels"])
        self.is_pair: bool = task["is_pair"]
        vocab_file = os.path.join(extra, task["vocab_file"])
        if not os.path.isfile(vocab_file):
            raise ValueError(f"{vocab_file}: the vocabulary is missing. Export the model again")
        self._tokenizer = tokenization.open_tokenizer(vocab_file, task["do_lower_case"])

        # TensorFlow takes seconds to load; a wrong directory has been reported before.
        import tensorflow.compat.v1 as tf

        self._session = tf.Session(graph=tf.Graph())
        with self._session.graph.as_default():
            meta_graph = tf.saved_model.load(
                self._session, [tf.saved_model.SERVING], self.export_dir
            )
        signature = meta_graph.signature_def["serving_default"]
        self._inputs = {name: tensor.name for name, tensor in signature.inputs.items()}
        self._outputs = {name: tensor.name for name, tensor in signature.outputs.items()}
        self.max_seq_length: int = signature.inputs["input_ids"].tensor_shape.dim[1].size
        self.num_cut = 0

    def __call__(self, texts: Iterable[Text]) -> list[dict[str, Any]]:
        """Answers texts like the command line; see `predict` for the texts.

        Returns:
          A dict for each text, in order. It has `label` (classification) or `labels` (multi_label),
          and `probabilities`, label -> float; or only `number` (regression).

        Raises:
          ValueError: as in `predict`.
        """
        outputs = self.predict(texts)
        if self.kind == "regression":
            return [{"number": float(row[0])} for row in outputs["logits"]]
        return [self._answer(row) for row in outputs["probabilities"]]

    def predict(self, texts: Iterable[Text]) -> dict[str, np.ndarray]:
        """Returns the model's outputs for texts, with a row for each text, in order.

        Args:
          texts: any number of strings, or of tuples of two strings if the task is about pairs.

        Returns:
          A dict of `logits` and `probabilities`, float32 [number of texts, number of labels]. For
          regression, only `logits`, [number of texts, 1].

        Raises:
          ValueError: a text is not a string, or not a pair of strings if the task is about pairs;
            the message says which text.
        """
        if isinstance(texts, str):
            raise ValueError(f"texts must be a list of texts, not the one text {texts!r}")
        examples = [self._example(number, text) for number, text in enumerate(texts)]
        nothing = np.zeros([0, len(self.labels) or 1], np.float32)
        outputs = {name: [nothing] for name in self._outputs}
        for first in range(0, len(examples), self.batch_size):
            part = examples[first : first + self.batch_size]
            features = Features(part, self._tokenizer, self.max_seq_length)
            self.num_cut += features.num_cut
            batch = features.batch(np.arange(len(part)))
            feeds = {tensor: batch[name] for name, tensor in self._inputs.items()}
            for name, rows in self._session.run(self._outputs, feeds).items():
                outputs[name].append(rows)
        return {name: np.concatenate(parts) for name, parts in outputs.items()}

    def close(self) -> None:
        """Closes the model; it cannot be called after that."""
        self._session.close()

    def _example(self, number: int, text: Text) -> Example:
        parts = tuple(text) if isinstance(text, tuple | list) else (text,)
        wanted = 2 if self.is_pair else 1
        if len(parts) != wanted or not all(isinstance(part, str) for part in parts):
            what = "a pair of strings" if self.is_pair else "a string"
            raise ValueError(
                f"texts[{number}] is {text!r}; it must be {what}, like the texts that "
                f"{self.export_dir} was trained on"
            )
        return Example(parts[0], parts[1] if self.is_pair else None, None)

    def _answer(self, row: np.ndarray) -> dict[str, Any]:
        probabilities = dict(zip(self.labels, map(float, row), strict=True))
        if self.kind == "classification":
            return {"label": self.labels[int(row.argmax())], "probabilities": probabilities}
        likely = [label for label, value in probabilities.items() if value > 0.5]
        return {"labels": likely, "probabilities": probabilities}


def find(path: str) -> str:
    """Returns the directory of the exported model that a path means; see `Predictor`.

    Raises:
      ValueError: the path does not hold an exported model.
    """
    for folder in (path, os.path.join(path, _EXPORTS)):
        if _is_saved_model(folder):
            return folder
        names = os.listdir(folder) if os.path.isdir(folder) else []
        numbers = [n for n in names if n.isdecimal() and _is_saved_model(os.path.join(folder, n))]
        if numbers:
            return os.path.join(folder, max(numbers, key=int))
    raise ValueError(
        f"{path} does not hold an exported model: neither it nor its {_EXPORTS}/ has a "
        "saved_model.pb, or a numbered directory with a saved_model.pb. Export a model: "
        "run_classifier.py --do_export"
    )


def _is_saved_model(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, "saved_model.pb"))


def _read_task(path: str) -> dict[str, Any]:
    """Reads the task.json of an exported model."""
    if not os.path.isfile(path):
        raise ValueError(
            f"{path} is missing, which says how text becomes ids. Export the model with "
            "run_classifier.py --do_export"
        )
    with open(path, encoding="utf-8") as reader:
        return json.load(reader)


def answer_lines(predictor: Predictor, reader: BinaryIO, writer: TextIO) -> None:
    """Writes an answer for each line, and flushes it before it waits for more lines.

    Args:
      predictor: the model.
      reader: a buffered reader of lines in UTF-8; see the top of this module.
      writer: the output, for lines of JSON.

    Raises:
      ValueError: a line is not UTF-8, or has a different number of texts than the task's examples;
        the message gives the line's number.
    """
    number = 0
    for lines in _arriving(reader):
        for first in range(0, len(lines), predictor.batch_size):
            texts = []
            for line in lines[first : first + predictor.batch_size]:
                number += 1
                texts.append(_text(number, line, predictor.is_pair))
            writer.writelines(json.dumps(answer) + "\n" for answer in predictor(texts))
            writer.flush()


def _arriving(reader: BinaryIO) -> Iterator[list[bytes]]:
    """Yields lines, each time as many as are available without waiting."""
    rest = b""
    while chunk := reader.read1(_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines
    if rest:
        yield [rest]


def _text(number: int, line: bytes, is_pair: bool) -> Text:
    try:
        parts = line.removesuffix(b"\r").decode("utf-8").split("\t")
    except UnicodeDecodeError as error:
        raise ValueError(f"line {number}: byte {error.start} is not UTF-8") from None
    if len(parts) != (2 if is_pair else 1):
        rule = (
            "pairs: two texts per line, with one tab between"
            if is_pair
            else "single texts: no tabs"
        )
        raise ValueError(
            f"line {number} has {len(parts) - 1} tabs, but the model's task is about {rule}"
        )
    return (parts[0], parts[1]) if is_pair else parts[0]


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code.

    It is 0, or 2 for a model or lines that cannot work, 1 if the reader of the answers is closed,
    or 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(
        prog="python -m bert_estimator.serving.predictor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"bert-estimator {__version__}")
    parser.add_argument(
        "model", metavar="MODEL", help="open the model in this directory of a run or of an export"
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="read lines from this file (default: standard input)",
    )
    parser.add_argument(
        "--batch_size",
        type=int,
        default=BATCH_SIZE,
        help="compute at most this many texts at a time (default %(default)s)",
    )
    args = parser.parse_args(argv[1:])
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # TensorFlow warns that sessions should not load SavedModels, which users cannot change.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    try:
        with open(args.file, "rb") if args.file else sys.stdin.buffer as reader:
            predictor = Predictor(args.model, args.batch_size)
            answer_lines(predictor, reader, sys.stdout)
        if predictor.num_cut:
            print(
                f"{predictor.num_cut} of the texts were cut to {predictor.max_seq_length} tokens.",
                file=sys.stderr,
            )
    except BrokenPipeError:
        # For example, `head` has read enough. Flushing the buffer at exit would fail too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError) as error:
        print(f"predictor: {error}", file=sys.stderr)
        return 2
    return 0


def command() -> None:
    """Runs the console command `bert-predict`."""
    sys.exit(main(sys.argv))


if __name__ == "__main__":
    command()
