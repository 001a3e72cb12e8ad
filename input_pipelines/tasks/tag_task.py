"""The data of a tagging task, for training, evaluation and prediction, and a baseline."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator

from bert_estimator.tokenization import Tokenizer, entities
from input_pipelines.tasks import tag_files
from input_pipelines.tasks.features import TagFeatures
from input_pipelines.tasks.tag_files import Sentence
from input_pipelines.tasks.task_data import Tags, TaskData


@dataclasses.dataclass(frozen=True)
class EmbeddedTags:
    """Holds a task's sentences.

    Attributes:
      question: the question that the tags answer.
      tags: the names of the tags.
      train, held_out: tagged sentences.
    """

    question: str
    tags: tuple[str, ...]
    train: list[Sentence]
    held_out: list[Sentence]


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
      columns: where words and tags are in the files.
      tokenizer, vocab_file, max_seq_length: as for `load_table`.
      trains: whether the task's `train` is needed; else it is None.

    Returns:
      (the task; the sentences to train on and to evaluate on by the keys of `files`).

    Raises:
      TableError: see `tag_files.read_sentences`.
    """
    sentences = {
        name: tag_files.read_sentences(path, columns, None if name == "predict" else tags)
        for name, path in files.items()
        if path is not None
    }
    used = {name: of_file for name, of_file in sentences.items() if trains or name != "train"}
    task = _of_tagged(tags, used, tokenizer, vocab_file, max_seq_length)
    path = files.get("predict")
    if path is not None:
        tag_files.check_can_be_written(path, columns, tags)
        task = dataclasses.replace(
            task,
            write_tags=functools.partial(tag_files.tagged_lines, path, columns),
            tags_extension=tag_files.extension(path),
        )
    return task, sentences


def of_embedded_tags(
    task: EmbeddedTags, tokenizer: Tokenizer, vocab_file: str, max_seq_length: int
) -> TaskData:
    """Returns the features of an embedded tagging task; predictions are for held-out sentences."""
    held_out = task.held_out
    sentences = {"train": task.train, "evaluate": held_out, "predict": held_out}

    def write_tags(predicted: Tags) -> Iterator[str]:
        for sentence, tags in zip(held_out, predicted, strict=True):
            for word, number, tag in zip(sentence.words, sentence.tags or (), tags, strict=True):
                yield f"{word} {task.tags[number]} {tag}"
            yield ""

    data = _of_tagged(task.tags, sentences, tokenizer, vocab_file, max_seq_length)
    return dataclasses.replace(data, write_tags=write_tags, tags_extension=".conll")


def _of_tagged(tags, sentences, tokenizer, vocab_file, max_seq_length):
    """Returns the `TaskData` of sentences by "train", "evaluate" and "predict", each if there."""
    features = {
        name: TagFeatures(of_file, tokenizer, max_seq_length) for name, of_file in sentences.items()
    }
    metrics = ("entity_f1", "entity_precision", "entity_recall", "accuracy")
    if not entities.are_entity_tags(tags):
        metrics = ("accuracy", "macro_f1")
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
        functools.partial(_words, list(sentences.values())),
    )


def _words(files):
    """Yields each word of files once."""
    seen = set()
    for sentences in files:
        for word in itertools.chain.from_iterable(sentence.words for sentence in sentences):
            if word not in seen:
                seen.add(word)
                yield word
