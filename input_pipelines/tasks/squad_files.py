"""Questions on texts, from the JSON files of SQuAD 1.1 and 2.0.

A file holds articles (`data`) of `paragraphs`, each with a `context` and its `qas`: `id` (a string
or a whole number), `question`, and `answers` of `text` and `answer_start`, a number of characters.
In version 2.0 `is_impossible` marks questions without answer. JSON lines, an array, `data` or
parquet may also have a question each, as `datasets` writes SQuAD: with `context`, `id`, `question`,
and `answers` of a list `text` and a list `answer_start`, empty if there is no answer.
"""

import codecs
import dataclasses
import hashlib
import re
from collections.abc import Iterator, Sequence

from bert_estimator.system import disk_files, json_files
from input_pipelines.tasks.table_files import PARQUET, TableError, opened, read_rows, text_lines

_MOST_BYTES = 1 << 32  # TriviaQA's files have more than 1 GB; memory holds a file several times
_LONGEST_ROW = 1 << 20  # bytes of a row with its context; a file of a single line has more
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
    """Holds a question on a text."""

    id: str  # no other question of the file has it
    text: str
    context: str
    # Empty if the text does not answer the question; None if it is not known.
    answers: tuple[Answer, ...] | None

    def golds(self) -> tuple[str, ...]:
        """Returns the texts of the right answers."""
        return tuple(answer.text for answer in self.answers or ())


def read(path: str, needs_answers: bool, version_2: bool) -> list[Question]:
    """Reads the questions of a file; `needs_answers` refuses questions without known answers, and
    only `version_2` allows impossible ones."""
    questions: dict[str, Question] = {}
    try:
        for place, context, values in _question_objects(path):
            question = _question(place, context, values, needs_answers, version_2)
            if question.id in questions:
                raise SquadError(f"{place}: the id {question.id!r} occurs twice in the file")
            questions[question.id] = question
    except (json_files.JsonError, TableError) as error:
        raise SquadError(str(error)) from None
    except OSError as error:
        raise SquadError(f"{path}: cannot be read: {error.strerror}") from None
    if not questions:
        raise SquadError(f"{path}: has 0 questions; give a file with at least one")
    return list(questions.values())


def located(questions: Sequence[Question], path: str) -> list[Question]:
    """Returns questions with the first answer of each at the place where the context has it."""
    results, moved = [], []
    for question in questions:
        if question.answers:
            labelled, *others = question.answers
            # Published files have a few answers that are not at their `answer_start`. As in
            # google-research/bert, texts that differ in white space alone are the same.
            first = _nearest(question.context, labelled)
            if first is None:
                first = Answer(labelled.text, len(question.context))  # for `answerable`
            elif first.start != labelled.start:
                moved.append(question.id)
            question = dataclasses.replace(question, answers=(first, *others))
        results.append(question)
    if moved:
        print(
            f"{path}: the first answer of {len(moved)} of {len(questions)} questions is not at its "
            f"answer_start; its nearest occurrence counts: {_listed(moved)}"
        )
    return results


def answerable(questions: Sequence[Question], path: str) -> list[Question]:
    """Returns the questions of `located` without those whose first answer is not in the context; it
    prints how many are left out."""
    # Published files have a few of these. `located` has put their answers behind the context's end.
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
    if path.lower().endswith(PARQUET):
        for number, row in read_rows(path):
            yield from _in_object(row, f"{path}:{number}", is_row=True)
        return
    if _has_rows(path):
        lines = (text for _, text in text_lines(path))
        for line, row in json_files.values(lines, path, _MOST_BYTES):
            place = f"{path}:{line}"
            yield from _in_object(json_files.check(row, dict, place), place, is_row=True)
        return
    with opened(path) as file:
        content = json_files.parse(
            disk_files.read_at_most(file, _MOST_BYTES), path, dict, _MOST_BYTES
        )
    values = json_files.field(content, "data", list, path)
    for number, value in enumerate(json_files.items(values, dict, f"{path}: data")):
        yield from _in_object(value, f"{path}: data[{number}]")


def _in_object(values, place, is_row=False):
    """Yields (place, context, object) of each question of an article, or of a row."""
    if "question" in values or (is_row and "paragraphs" not in values):
        yield place, json_files.field(values, "context", str, place), values
        return
    paragraphs = json_files.field(values, "paragraphs", list, place)
    paragraphs = json_files.items(paragraphs, dict, f"{place}.paragraphs")
    for p, paragraph in enumerate(paragraphs):
        inner = f"{place}.paragraphs[{p}]"
        context = json_files.field(paragraph, "context", str, inner)
        questions = json_files.field(paragraph, "qas", list, inner)
        for q, question in enumerate(json_files.items(questions, dict, f"{inner}.qas")):
            yield f"{inner}.qas[{q}]", context, question


def _has_rows(path):
    """Returns whether a file is an array, or lines, the first of which is a question or an
    article."""
    with opened(path) as file:
        line = file.readline(_LONGEST_ROW).removeprefix(codecs.BOM_UTF8).strip()
        while not line and (line := file.readline(_LONGEST_ROW)):
            line = line.strip()
    if line.startswith(b"["):
        return True
    try:
        return not {"question", "paragraphs"}.isdisjoint(json_files.parse(line, path))
    except json_files.JsonError:
        return False


def _answers(values, place):
    """Returns the answers of a question as SQuAD has them, a list; None if they are not known."""
    answers = values.get("answers")
    if answers is None:
        return None
    if isinstance(answers, list):
        answers = json_files.items(answers, dict, f"{place}.answers")
    else:
        # `datasets` has a list of texts and a list of starts.
        texts = json_files.field(answers, "text", list, f"{place}: answers")
        starts = json_files.field(answers, "answer_start", list, f"{place}: answers")
        if len(texts) != len(starts):
            raise SquadError(
                f"{place}: has {len(texts)} texts of answers, but {len(starts)} starts"
            )
        pairs = zip(texts, starts, strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in pairs]
    # An empty text says that there is no answer.
    return [a for a in answers if a.get("text") != "" or a.get("answer_start") not in (-1, 0)]


def _question(place, context, values, needs_answers, version_2):
    """Returns the `Question` of an object of a file."""
    is_number = type(values.get("id")) is int
    name = str(json_files.field(values, "id", int if is_number else str, place))
    text = json_files.field(values, "question", str, place)
    answers = _answers(values, place)
    # Files that do not mark impossible questions have them without answers.
    is_marked = isinstance(values.get("answers"), dict) or (needs_answers and version_2)
    is_impossible = json_files.field(
        values, "is_impossible", bool, place, default=is_marked and answers == []
    )
    if is_impossible and not version_2:
        raise SquadError(
            f"{place}: the question is impossible, as some of SQuAD 2.0 are; give "
            "version_2_with_negative"
        )
    if is_impossible:
        return Question(name, text, context, ())
    if not answers and needs_answers:
        hint = ", nor is it impossible" if version_2 else ""
        raise SquadError(f"{place}: the question does not have answers{hint}")
    right = tuple(
        _answer(f"{place}.answers[{i}]", answer) for i, answer in enumerate(answers or ())
    )
    return Question(name, text, context, right or None)


def _answer(place, values):
    text = json_files.field(values, "text", str, place)
    start = values.get("answer_start")
    if not (type(start) is float and start.is_integer()):  # as pandas writes whole numbers
        start = json_files.field(values, "answer_start", int, place)
    if not text.strip():
        raise SquadError(f"{place}: the text is {text!r}; it must have words")
    return Answer(text, int(start))


def _nearest(context: str, answer: Answer) -> Answer | None:
    """Returns the occurrence of an answer's text nearest to its start, as it stands there."""
    if answer.start >= 0 and context.startswith(answer.text, answer.start):
        return answer
    # White space of any kind and length stands for white space.
    pattern = r"\s+".join(map(re.escape, answer.text.split()))
    occurrences = re.finditer(f"(?=({pattern}))", context)  # they may overlap
    answers = (Answer(match[1], match.start()) for match in occurrences)
    return min(answers, key=lambda other: abs(other.start - answer.start), default=None)


def _listed(names):
    return ", ".join(names[:_MOST_SHOWN]) + (", ..." if len(names) > _MOST_SHOWN else "")
