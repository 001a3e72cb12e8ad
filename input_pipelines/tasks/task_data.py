"""The data of a task as features, for training, evaluation and prediction."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from bert_estimator.tokenization import Casing, Tokenizer, entities
from input_pipelines.tasks import examples, tag_files
from input_pipelines.tasks.features import Features, TagFeatures
from input_pipelines.tasks.long_texts import LongTexts
from input_pipelines.tasks.tag_files import Sentence
from input_pipelines.tasks.task_table import EMBEDDED_METRICS, ENTITY_METRICS, OWN_METRICS, Task

Tags = Sequence[Sequence[str]]  # of each word of each sentence
_Example = TypeVar("_Example", examples.Example, Sentence)
_CUT = LongTexts()


@dataclasses.dataclass(frozen=True)
class EmbeddedTask(Generic[_Example]):
    """Holds a task's examples, or its tagged sentences, and the meaning of its labels.

    Attributes:
      question: the question that the labels answer.
      labels: the meanings of labels 0, 1 and so on.
      train, held_out: the examples.
    """

    question: str
    labels: tuple[str, ...]
    train: list[_Example]
    held_out: list[_Example]


@dataclasses.dataclass(frozen=True)
class TaskData:
    """Holds the features of a task.

    Attributes:
      kind: one of `choices.TASK_KINDS`.
      labels: the labels in the order of their numbers; empty for regression.
      metrics: names of metrics, larger is better; the first chooses the best checkpoint.
      train: features to train on, or None.
      evaluate, predict: name -> features; the name is "" if there is only one file.
      is_pair: whether an example is a pair of texts.
      vocab_file: the vocabulary of the features.
      casing: what happened to the capitals and accents of the text.
      texts: a function that yields every text of the task's files, but nothing for tagging.
      write_tags, tags_extension: for tagging, a function of the tags predicted for `predict` that
        yields the lines of their file, and the ending of this file's name.
      words: for tagging, what words to train on are, one of `tag_files.WORD_FORMS`; or None.
      positive: the label that the metric f1 is of; None means the second label.
      long_texts: what the features have of long texts; not for tagging.
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
    words: str | None = None
    positive: str | None = None
    long_texts: LongTexts = _CUT

    def digest(self) -> str:
        """Returns a hash of the training data and the labels' order; "" without training data."""
        if self.train is None:
            return ""
        names = "\n".join((self.kind, *self.labels))
        return hashlib.sha256(names.encode() + self.train.digest()).hexdigest()

    def majority(self) -> float | None:
        """Returns the accuracy of the most frequent label on the first evaluation set.

        It is None without a set, or if the task is not scored by an accuracy of classification."""
        is_scored = self.kind == "classification" and "accuracy" in self.metrics
        if not is_scored or not self.evaluate:
            return None
        labels = next(iter(self.evaluate.values())).labels.tolist()
        return max(map(labels.count, set(labels))) / len(labels)


def load_table(
    task: Task,
    tokenizer: Tokenizer,
    vocab_file: str,
    max_seq_length: int,
    train: bool,
    evaluate: bool,
    predict: bool,
    long_texts: LongTexts = _CUT,
) -> TaskData:
    """Reads the files of a task.

    Args:
      vocab_file: the vocabulary that the tokenizer was opened from.
      max_seq_length: length of an example's features, in tokens.
      train, evaluate, predict: whether to read the files for training, evaluation and prediction.
      long_texts: what is read of texts that are longer.

    Raises:
      TableError: a file cannot be read, or has a row that the task does not allow.
    """
    # All files share the labels of the training file.
    if task.kind != "regression" and not task.labels:
        task = dataclasses.replace(task, labels=examples.discover_labels(task))

    def features(of_file: list[examples.Example]) -> Features:
        return Features(of_file, tokenizer, max_seq_length, long_texts)

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
        positive=task.positive,
        long_texts=long_texts,
    )


def of_embedded(
    task: EmbeddedTask[examples.Example],
    tokenizer: Tokenizer,
    vocab_file: str,
    max_seq_length: int,
    long_texts: LongTexts = _CUT,
) -> TaskData:
    """Returns all features of an embedded task; predictions are made for the held-out examples."""
    train = Features(task.train, tokenizer, max_seq_length, long_texts)
    held_out = Features(task.held_out, tokenizer, max_seq_length, long_texts)
    sides = train, {"": held_out}, {"": held_out}
    is_pair = task.train[0].text_b is not None
    texts = functools.partial(examples.texts_of, [*task.train, *task.held_out])
    of_text = is_pair, vocab_file, tokenizer.casing, texts
    metrics = EMBEDDED_METRICS
    return TaskData("classification", task.labels, metrics, *sides, *of_text, long_texts=long_texts)


def load_tags(
    tags: tuple[str, ...],
    files: dict[str, str | None],
    columns: tag_files.Columns,
    tokenizer: Tokenizer,
    vocab_file: str,
    max_seq_length: int,
    trains: bool,
) -> tuple[TaskData, dict[str, list[Sentence]]]:
    """Reads the files of a tagging task.

    Args:
      tags: the tags in the order of their numbers.
      files: "train", "evaluate" and "predict" -> the file, or None if it is not there or not
        needed.
      tokenizer, vocab_file, max_seq_length: as for `load_table`.
      trains: whether the task's `train` is needed; else it is None.

    Returns:
      (the task; the sentences to train on and to evaluate on by the keys of `files`).

    Raises:
      TableError: a file cannot be read, or has a tag that is not one of `tags`.
    """
    sentences = {
        name: tag_files.read_sentences(path, columns, None if name == "predict" else tags)
        for name, path in files.items()
        if path is not None
    }
    train = [sentence.words for sentence in sentences.get("train", ())]
    # What a word is depends on the sentences to train on, also if this command does not train.
    used = {name: of_file for name, of_file in sentences.items() if trains or name != "train"}
    task = _of_tagged(tags, used, tokenizer, vocab_file, max_seq_length)
    task = dataclasses.replace(task, words=tag_files.form_of_words(train) if train else None)
    path = files.get("predict")
    if path is not None:
        # It fails now, and not after the training.
        tag_files.check_can_be_written(path, columns, tags)
        task = dataclasses.replace(
            task,
            write_tags=functools.partial(tag_files.tagged_lines, path, columns),
            tags_extension=tag_files.extension(path),
        )
    return task, sentences


def of_embedded_tags(
    task: EmbeddedTask[Sentence], tokenizer: Tokenizer, vocab_file: str, max_seq_length: int
) -> TaskData:
    """Returns the features of an embedded tagging task; predictions are for held-out sentences."""
    held_out = task.held_out
    sentences = {"train": task.train, "evaluate": held_out, "predict": held_out}

    def write_tags(predicted: Tags) -> Iterator[str]:
        for sentence, tags in zip(held_out, predicted, strict=True):
            for word, number, tag in zip(sentence.words, sentence.tags or (), tags, strict=True):
                yield f"{word} {task.labels[number]} {tag}"
            yield ""

    data = _of_tagged(task.labels, sentences, tokenizer, vocab_file, max_seq_length)
    return dataclasses.replace(data, write_tags=write_tags, tags_extension=".conll")


def _of_tagged(tags, sentences, tokenizer, vocab_file, max_seq_length):
    """Returns the `TaskData` of sentences by "train", "evaluate" and "predict", each if there."""
    features = {
        name: TagFeatures(of_file, tokenizer, max_seq_length) for name, of_file in sentences.items()
    }
    metrics = ENTITY_METRICS
    if not entities.are_entity_tags(tags):
        metrics = OWN_METRICS["tagging"]
        are_numbers = all(tag.isdecimal() for tag in tags)
        advice = " Numbers do not say what they mean: for entities, write the tags' names."
        print(
            f"The tags {', '.join(tags[:5])}{', ...' * (len(tags) > 5)} are not of IOB2 or "
            f"another scheme, so words are scored, not entities.{advice * are_numbers}"
        )
    return TaskData(
        "tagging",
        tags,
        metrics,
        features.get("train"),
        {"": features["evaluate"]} if "evaluate" in features else {},
        {"": features["predict"]} if "predict" in features else {},
        False,
        vocab_file,
        tokenizer.casing,
    )
