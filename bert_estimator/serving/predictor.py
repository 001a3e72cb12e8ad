"""Answers raw texts with a fine-tuned model, which is opened once and stays in memory.

    python run_classifier.py ... --output_dir=runs/mrpc
    python -m bert_estimator.serving.predictor runs/mrpc < texts.tsv > answers.jsonl

The command reads a text per line, or two texts with a tab between them if the task is about pairs.
It writes a line of JSON for each line, in order:

    {"label": "1", "probabilities": {"0": 0.1, "1": 0.9}}          classification
    {"labels": ["a"], "probabilities": {"a": 0.9, "b": 0.2}}       multi_label: labels above 0.5
    {"number": 3.2}                                                regression
    {"words": ["A", "b"], "tags": ["B-X", "O"], "probabilities": [0.9, 0.8], "entities": [...]}
                                                                   tagging; words are at spaces, or
                                                                   characters if the model was
                                                                   trained on characters
    {"answer": "Ada", "start": 0, "end": 3, "probability": 0.9, "score": 7.1, "n_best": [...]}
                                                                   answers; a line is a question, a
                                                                   tab, and a text
    {"error": "line 7: byte 3 is not UTF-8"}                       a line that cannot be answered

Lines are answered as soon as they arrive, so a program may write a line, and wait for its answer
before it writes the next line. No line ends the service.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, TextIO

import numpy as np

from bert_estimator.command_line import console
from bert_estimator.serving import commands, exported_model, task_model
from bert_estimator.serving.answer_predictor import AnswerPredictor
from bert_estimator.serving.commands import BATCH_SIZE, Text, check_characters, example_of
from bert_estimator.serving.task_model import TaskPredictor
from bert_estimator.system import memory
from bert_estimator.tokenization import entities
from input_pipelines.tasks import tag_files
from input_pipelines.tasks.examples import Example
from input_pipelines.tasks.features import Features, TagFeatures
from input_pipelines.tasks.long_texts import LongTexts
from input_pipelines.tasks.tag_files import Sentence


class Predictor(TaskPredictor):
    """Opens a fine-tuned classifier for raw texts. An exported one needs TensorFlow, but no code of
    the model.

    ```
    predictor = Predictor("runs/mrpc")
    predictor([("A text.", "Another."), ("A third.", "A fourth.")])
    ```

    Calls may come from several threads at a time.

    Args:
      path: the directory of an exported model; or a directory of exported models by number, whose
        newest is taken; or the directory of a run, which has its exported models in `export`. A run
        without them answers from its best checkpoint, or else its newest; a checkpoint may be
        named, too.
      batch_size: the most texts that are computed at a time.

    Attributes:
      export_dir: the exported model's directory, or the checkpoint.
      kind: one of `choices.TASK_KINDS`.
      labels: the labels in the order of the outputs' columns; empty for regression.
      is_pair: whether the model's task is about pairs of texts.
      max_seq_length: tokens of an example; for tagging, longer texts are split, and none of their
        words is lost.
      long_texts: what is read of longer examples, as in training; see `tasks.long_texts`.
      num_cut: how many texts were longer so far; for tagging, how many words have been cut.

    Raises:
      ValueError: the directory does not hold a model with a task, a file of it is damaged, or the
        model cannot be fed with texts.
    """

    def __init__(self, path: str, batch_size: int = BATCH_SIZE):
        super().__init__(path, batch_size)
        self.kind: str = self._task.kind
        self.labels: tuple[str, ...] = self._task.labels
        self.is_pair: bool = self._task.is_pair
        self.long_texts: LongTexts = self._task.long_texts

    def __call__(self, texts: Iterable[Text]) -> list[dict[str, Any]]:
        """Answers texts like the command line; see `predict` for the texts.

        Returns:
          A dict for each text, in order. It has `label` (classification) or `labels` (multi_label),
          and `probabilities`, label -> float; or only `number` (regression). For tagging, it has
          `words`, `tags` and `probabilities`, a list each with an item for each word; and
          `entities` if the tags mark entities, a list of dicts of `type`, `first` (the
          number of its first word) and `words`.

        Raises:
          ValueError: as in `predict`.
        """
        texts = list(texts) if not isinstance(texts, str) else texts
        outputs = self.predict(texts)
        if self.kind == "tagging":
            sentences = zip(texts, outputs["probabilities"], strict=True)
            return [self._tagged(self.words_of(text), rows) for text, rows in sentences]
        if self.kind == "regression":
            return [{"number": float(row[0])} for row in outputs["logits"]]
        return [self._answer(row) for row in outputs["probabilities"]]

    def predict(self, texts: Iterable[Text]) -> dict[str, np.ndarray]:
        """Returns the model's outputs for texts, with a row for each text, in order.

        Args:
          texts: any number of strings, or of tuples of two strings if the task is about pairs. For
            tagging, strings, or lists of words. The words of a string are separated by spaces; if
            the model was trained on single Chinese characters, words are characters.

        Returns:
          A dict of `logits` and `probabilities`, float32 [number of texts, number of labels]. For
          regression, only `logits`, [number of texts, 1]. For tagging, each is a list of arrays
          [number of words, number of labels].

        Raises:
          ValueError: a text is not a string, or not a pair of strings if the task is about pairs;
            the message says which text. Or an output is not finite.
        """
        commands.check_list(texts)
        examples = [self._example(number, text) for number, text in enumerate(texts)]
        of_text = examples, self._tokenizer, self.max_seq_length
        is_tagging = self.kind == "tagging"
        features = TagFeatures(*of_text) if is_tagging else Features(*of_text, self.long_texts)
        commands.check_windows(len(features), len(examples), self.most_windows)
        outputs = self._model.run(features, self.batch_size)
        # A long text may have several windows; what they say comes together again.
        if is_tagging:
            outputs = {name: features.by_sentence(rows) for name, rows in outputs.items()}
        else:
            rows = ({n: outputs[n][i] for n in outputs} for i in range(len(features)))
            rows = list(exported_model.of_texts(features, rows, self.kind))
            outputs = {name: [row[name] for row in rows] for name in outputs}
        for row in outputs["logits"]:
            # Finite weights can give this, too: their products may overflow.
            if not np.isfinite(row).all():
                raise ValueError(f"the model's output is not finite: {np.asarray(row).tolist()}")
        self._count(features.num_cut)
        if is_tagging:
            return outputs
        shape = [len(examples), len(self.labels) or 1]
        return {name: np.reshape(np.float32(rows), shape) for name, rows in outputs.items()}

    def words_of(self, text: str | Sequence[str]) -> list[str]:
        """Returns the words of a text to tag, as they were in training; or a list as it is."""
        return tag_files.words_of(text, self._task.words) if isinstance(text, str) else list(text)

    def _example(self, number: int, text: Text) -> Example | Sentence:
        if self.kind == "tagging":
            return self._sentence(number, text)
        what = "a pair of strings" if self.is_pair else "a string"
        what += f", like the texts that {self.export_dir} was trained on"
        return example_of(number, text, self.is_pair, what)

    def _sentence(self, number, text):
        is_list = isinstance(text, tuple | list)
        if not isinstance(text, str) and not (
            is_list and all(isinstance(word, str) and word for word in text)
        ):
            raise ValueError(f"texts[{number}] is {text!r}; it must be a string or a list of words")
        check_characters(number, text)
        return Sentence(tuple(self.words_of(text)))

    def _tagged(self, words, rows):
        """Returns the answer for words, whose probabilities are rows [number of words, L]."""
        numbers = rows.argmax(axis=-1) if len(words) else []
        tags = [self.labels[number] for number in numbers]
        answer = {
            "words": words,
            "tags": tags,
            "probabilities": [
                float(row[number]) for row, number in zip(rows, numbers, strict=True)
            ],
        }
        if entities.are_entity_tags(self.labels):
            answer["entities"] = [
                {"type": kind, "first": first, "words": words[first:end]}
                for kind, first, end in entities.entities(tags)
            ]
        return answer

    def _answer(self, row: np.ndarray) -> dict[str, Any]:
        probabilities = dict(zip(self.labels, map(float, row), strict=True))
        if self.kind == "classification":
            return {"label": self.labels[int(row.argmax())], "probabilities": probabilities}
        likely = [label for label, value in probabilities.items() if value > 0.5]
        return {"labels": likely, "probabilities": probabilities}


def open_predictor(path: str, batch_size: int = BATCH_SIZE) -> Predictor | AnswerPredictor:
    """Returns the predictor of a model, for its task; see `Predictor`."""
    commands.check_batch_size(batch_size)
    export_dir = task_model.find(path)
    task = exported_model.read_task(export_dir)
    return (AnswerPredictor if task.reading else Predictor)(export_dir, batch_size)


def answer_lines(predictor: Predictor | AnswerPredictor, reader: BinaryIO, writer: TextIO) -> int:
    """Writes an answer for each line, and flushes it before it waits for more lines.

    Args:
      predictor: the model.
      reader: a buffered reader of lines in UTF-8; see the top of this module.
      writer: the output, for lines of JSON. A line that cannot be answered gets `{"error": ...}`,
        which gives the line's number.

    Returns:
      The number of lines that got an error.
    """
    together = commands.BATCHES_TOGETHER * predictor.batch_size
    return commands.write_answers(reader, writer, together, predictor.is_pair, predictor)


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code, as `commands.exit_code` does."""
    parser = commands.parser(
        "bert_estimator.serving.predictor",
        __doc__,
        "open the model in this directory of a run or of an export",
    )
    args = parser.parse_args(argv[1:])

    def answer():
        with commands.lines_of(args.file) as reader:
            with commands.opening():
                predictor = open_predictor(args.model, args.batch_size)
            errors = answer_lines(predictor, reader, sys.stdout)
        if isinstance(predictor, AnswerPredictor):
            commands.report_cuts(predictor.num_cut, predictor.max_query_length, "questions")
        else:
            what = "words" if predictor.kind == "tagging" else "texts"
            number, length = predictor.num_cut, predictor.max_seq_length
            commands.report_cuts(number, length, what, predictor.long_texts)
        return errors

    return commands.exit_code("predictor", argv, answer)


def command() -> None:
    """Runs the console command `bert-predict`."""
    console.run(main, memory.keep_freed_memory)


if __name__ == "__main__":
    command()
