"""The data of a task as features, for training, evaluation and prediction."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence

from bert_estimator.tokenization import Casing, Tokenizer
from input_pipelines.tasks import examples
from input_pipelines.tasks.features import Features, TagFeatures
from input_pipelines.tasks.task_table import Task

Tags = Sequence[Sequence[str]]  # of each word of each sentence


@dataclasses.dataclass(frozen=True)
class EmbeddedTask:
    """Holds a task's examples and the meaning of its labels.

    Attributes:
      question: the question that the label answers.
      labels: the meanings of label 0 and label 1.
      train, held_out: examples; each set has about as many of either label.
    """

    question: str
    labels: tuple[str, str]
    train: list[examples.Example]
    held_out: list[examples.Example]


@dataclasses.dataclass(frozen=True)
class TaskData:
    """Holds the features of a task.

    Attributes:
      kind: one of `choices.TASK_KINDS`.
      labels: the labels in the order of their numbers; empty for regression.
      metrics: names of metrics; the first chooses the best checkpoint.
      train: features to train on, or None.
      evaluate, predict: name -> features; the name is "" if there is only one file.
      is_pair: whether an example is a pair of texts.
      vocab_file: the vocabulary of the features.
      casing: what happened to the capitals and accents of the text.
      texts: a function that yields every text of the task's files; for tagging, every word.
      write_tags: for tagging, a function of the tags predicted for `predict` that yields the lines
        of their file.
      tags_extension: the ending of the name of this file.
    """

    kind: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    train: Features | TagFeatures | None
    evaluate: dict[str, Features] | dict[str, TagFeatures]
    predict: dict[str, Features] | dict[str, TagFeatures]
    is_pair: bool
    vocab_file: str
    casing: Casing
    texts: Callable[[], Iterator[str]] = tuple
    write_tags: Callable[[Tags], Iterator[str]] | None = None
    tags_extension: str = ""

    def digest(self) -> str:
        """Returns a hash of the training data and the labels' order; "" without training data."""
        if self.train is None:
            return ""
        names = "\n".join((self.kind, *self.labels))
        return hashlib.sha256(names.encode() + self.train.digest()).hexdigest()

    def majority(self) -> float | None:
        """Returns the accuracy of the most frequent label on the first evaluation set.

        Returns None if the task is not classification, or has no evaluation set.
        """
        if self.kind != "classification" or not self.evaluate:
            return None
        return examples.majority_share(next(iter(self.evaluate.values())).labels.tolist())


def load_table(
    task: Task,
    tokenizer: Tokenizer,
    vocab_file: str,
    max_seq_length: int,
    train: bool,
    evaluate: bool,
    predict: bool,
) -> TaskData:
    """Reads the files of a task.

    Args:
      task: the task.
      tokenizer: the tokenizer.
      vocab_file: the vocabulary that the tokenizer was opened from.
      max_seq_length: length of an example's features.
      train, evaluate, predict: whether to read the files for training, evaluation and prediction.

    Raises:
      TableError: see `examples.read_examples`.
    """
    if task.kind != "regression" and not task.labels:
        task = dataclasses.replace(task, labels=examples.discover_labels(task))

    def features(of_file: list[examples.Example]) -> Features:
        return Features(of_file, tokenizer, max_seq_length)

    return TaskData(
        task.kind,
        task.labels,
        task.metrics,
        features(examples.training_examples(task)) if train else None,
        {
            name: features(examples.evaluation_examples(task, name))
            for name in (task.evaluate if evaluate else ())
        },
        {
            name: features(examples.prediction_examples(task, name))
            for name in (task.predict if predict else ())
        },
        task.columns.text_b is not None,
        vocab_file,
        tokenizer.casing,
        functools.partial(examples.texts, task),
    )


def of_embedded(
    task: EmbeddedTask, tokenizer: Tokenizer, vocab_file: str, max_seq_length: int
) -> TaskData:
    """Returns all features of an embedded task; predictions are made for the held-out examples."""
    train = Features(task.train, tokenizer, max_seq_length)
    held_out = Features(task.held_out, tokenizer, max_seq_length)
    sides = train, {"": held_out}, {"": held_out}
    is_pair = task.train[0].text_b is not None
    texts = functools.partial(examples.texts_of, [*task.train, *task.held_out])
    of_text = is_pair, vocab_file, tokenizer.casing, texts
    return TaskData("classification", task.labels, ("accuracy",), *sides, *of_text)
