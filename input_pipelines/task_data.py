"""A task's data, read and turned into features: what is trained, evaluated and predicted on."""

import dataclasses
import hashlib

from bert_estimator.tokenization import Tokenizer
from input_pipelines import examples
from input_pipelines.embedded_task import EmbeddedTask
from input_pipelines.features import Features
from input_pipelines.tasks import Task


@dataclasses.dataclass(frozen=True)
class TaskData:
    """The features of a task.

    Attributes:
      kind: "classification", "multi_label" or "regression".
      labels: the labels in the order of their numbers; empty for regression.
      metrics: names of metrics; by the first of them the best checkpoint is chosen.
      train: to train on, or None.
      evaluate, predict: name -> features; the name is "" where there is one file.
      is_pair: whether an example is a pair of texts.
      vocab_file, do_lower_case: the vocabulary that made the features, and how text met it.
    """

    kind: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    train: Features | None
    evaluate: dict[str, Features]
    predict: dict[str, Features]
    is_pair: bool
    vocab_file: str
    do_lower_case: bool

    def digest(self) -> str:
        """What tells the training data from other data, the labels' order included; "" if none."""
        if self.train is None:
            return ""
        names = "\n".join((self.kind, *self.labels))
        return hashlib.sha256(names.encode() + self.train.digest()).hexdigest()

    def majority(self) -> float | None:
        """The accuracy, on the first evaluation side, of the label commonest in it."""
        if self.kind != "classification" or not self.evaluate:
            return None
        return examples.majority_share(next(iter(self.evaluate.values())).labels.tolist())


def load(
    task: Task,
    tokenizer: Tokenizer,
    vocab_file: str,
    max_seq_length: int,
    train: bool,
    evaluate: bool,
    predict: bool,
) -> TaskData:
    """Reads the files of a task for what is to be done.

    Raises:
      TableError: see `examples.read_examples`.
    """
    if task.kind != "regression" and not task.labels:
        task = dataclasses.replace(task, labels=examples.discover_labels(task))

    def features(found: list[examples.Example]) -> Features:
        return Features(found, tokenizer, max_seq_length)

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
        tokenizer.do_lower_case,
    )


def of_embedded(
    task: EmbeddedTask, tokenizer: Tokenizer, vocab_file: str, max_seq_length: int
) -> TaskData:
    """The features of an embedded task, all of them; predictions are for the held-out side."""
    train = Features(task.train, tokenizer, max_seq_length)
    held_out = Features(task.held_out, tokenizer, max_seq_length)
    sides = train, {"": held_out}, {"": held_out}
    is_pair = task.train[0].text_b is not None
    of_text = is_pair, vocab_file, tokenizer.do_lower_case
    return TaskData("classification", task.labels, ("accuracy",), *sides, *of_text)
