"""Questions on texts, from the JSON files of SQuAD 1.1 and 2.0.

A file holds articles (`data`) of `paragraphs`, each with a `context` and its `qas`: `id`,
`question`, and `answers` of `text` and `answer_start`, a number of characters. In version 2.0
`is_impossible` marks questions without answer. Other keys are not read.
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence

from bert_estimator.storage import remote
from bert_estimator.system import json_files

_MOST_SHOWN = 3


class SquadError(ValueError):
    """A file is not a file of questions; the message names the file and the place in it."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """Holds a right answer: its text, and the number of characters before it in the context."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True)
class Question:
    """Holds a question on a text.

    Attributes:
      id: its name, which no other question of the file has.
      text: the question.
      context: the text that the answer stands in.
      answers: the right answers; empty if the text does not answer the question; None if it is not
        known, in files to predict for.
    """

    id: str
    text: str
    context: str
    answers: tuple[Answer, ...] | None

    def golds(self) -> tuple[str, ...]:
        """Returns the texts of the right answers."""
        return tuple(answer.text for answer in self.answers or ())


def read(path: str, needs_answers: bool, version_2: bool) -> list[Question]:
    """Reads the questions of a file.

    Args:
      path: the file.
      needs_answers: whether questions without known answers are an error.
      version_2: whether questions may be impossible.

    Raises:
      SquadError: the file cannot be read, is not JSON, has no questions, lacks a value or has a
        value of another type; an id occurs twice; or `needs_answers` and `version_2` do not allow a
        question. The message names the file and the place, such as data[0].paragraphs[2].qas[1].
    """
    questions: dict[str, Question] = {}
    try:
        for place, context, values in _question_objects(path):
            question = _question(place, context, values, needs_answers, version_2)
            if question.id in questions:
                raise SquadError(f"{place}: the id {question.id!r} occurs twice in the file")
            questions[question.id] = question
    except json_files.JsonError as error:
        raise SquadError(str(error)) from None
    except OSError as error:
        raise SquadError(f"{path}: cannot be read: {error.strerror}") from None
    if not questions:
        raise SquadError(f"{path}: has 0 questions; give a file with at least one")
    return list(questions.values())


def located(questions: Sequence[Question], path: str) -> list[Question]:
    """Returns questions with the first answer of each at the place where the context has it.

    If the context does not have its text at its `answer_start`, the occurrence nearest to that
    place counts, before or after it, and this is printed, since published files have a few of
    these. If the text does not occur at all, the answer is put behind the context's end.

    Args:
      questions: what `read` returned.
      path: their file, for messages.
    """
    results, moved = [], []
    for question in questions:
        if question.answers:
            answer = question.answers[0]
            start = _nearest(question.context, answer)
            if start is None:
                start = len(question.context)
            elif start != answer.start:
                moved.append(question.id)
            answers = (Answer(answer.text, start), *question.answers[1:])
            question = dataclasses.replace(question, answers=answers)
        results.append(question)
    if moved:
        print(
            f"{path}: the first answer of {len(moved)} of {len(questions)} questions is not at its "
            f"answer_start; its nearest occurrence counts: {_listed(moved)}"
        )
    return results


def answerable(questions: Sequence[Question], path: str) -> list[Question]:
    """Returns questions to train on, without those whose first answer is not in the context.

    It prints how many are left out, since published files have a few.

    Args:
      questions: what `located` returned.
      path: their file, for messages.

    Raises:
      SquadError: no question is left.
    """
    missing = [q.id for q in questions if q.answers and q.answers[0].start == len(q.context)]
    kept = [question for question in questions if question.id not in set(missing)]
    if missing:
        print(
            f"{path}: skipped {len(missing)} of {len(questions)} questions, whose first answer "
            f"does not occur in the context: {_listed(missing)}"
        )
    if not kept:
        raise SquadError(f"{path}: no first answer of its questions occurs in its context")
    return kept


def digest(questions: Sequence[Question]) -> bytes:
    """Returns a hash of questions, contexts and answers."""
    result = hashlib.sha256()
    for question in questions:
        result.update(repr(dataclasses.astuple(question)).encode())
    return result.digest()


def _question_objects(path: str) -> Iterator[tuple[str, str, dict]]:
    """Yields (place, context, object) of each question of a file."""
    content = remote.read_json(path)
    articles = json_files.field(content, "data", list, path)
    for a, article in enumerate(json_files.items(articles, dict, f"{path}: data")):
        place = f"{path}: data[{a}]"
        paragraphs = json_files.field(article, "paragraphs", list, place)
        paragraphs = json_files.items(paragraphs, dict, f"{place}.paragraphs")
        for p, paragraph in enumerate(paragraphs):
            inner = f"{place}.paragraphs[{p}]"
            context = json_files.field(paragraph, "context", str, inner)
            questions = json_files.field(paragraph, "qas", list, inner)
            for q, values in enumerate(json_files.items(questions, dict, f"{inner}.qas")):
                yield f"{inner}.qas[{q}]", context, values


def _question(place, context, values, needs_answers, version_2):
    """Returns the `Question` of an object of a file."""
    name = json_files.field(values, "id", str, place)
    text = json_files.field(values, "question", str, place)
    is_impossible = json_files.field(values, "is_impossible", bool, place, default=False)
    if is_impossible and not version_2:
        raise SquadError(
            f"{place}: the question is impossible, as some of SQuAD 2.0 are; give "
            "version_2_with_negative"
        )
    if is_impossible:
        return Question(name, text, context, ())
    answers = json_files.field(values, "answers", list, place, default=[])
    answers = json_files.items(answers, dict, f"{place}.answers")
    if not answers and needs_answers:
        hint = ", nor is it impossible" if version_2 else ""
        raise SquadError(f"{place}: the question does not have answers{hint}")
    right = tuple(_answer(f"{place}.answers[{i}]", answer) for i, answer in enumerate(answers))
    return Question(name, text, context, right or None)


def _answer(place, values):
    text = json_files.field(values, "text", str, place)
    start = json_files.field(values, "answer_start", int, place)
    if not text.strip():
        raise SquadError(f"{place}: the text is {text!r}; it must have words")
    return Answer(text, start)


def _nearest(context: str, answer: Answer) -> int | None:
    """Returns the start of the occurrence of an answer's text that is nearest to its start."""
    if context.startswith(answer.text, answer.start) and answer.start >= 0:
        return answer.start
    before = context.rfind(answer.text, 0, max(answer.start, 0) + len(answer.text))
    after = context.find(answer.text, max(answer.start, 0))
    starts = [start for start in (before, after) if start >= 0]
    return min(starts, key=lambda start: abs(start - answer.start), default=None)


def _listed(names):
    return ", ".join(names[:_MOST_SHOWN]) + (", ..." if len(names) > _MOST_SHOWN else "")
