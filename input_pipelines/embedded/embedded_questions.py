"""Questions on texts that every CPython carries: the default of question answering.

The texts are docstrings of the standard library's functions; an answer is the part of a text that
follows a word which announces it:

    What does NAME return?       "Return" ...
    What does NAME raise?        "Raise" ...
    On which condition?          "if" or "when" ...
    What is NAME used for?       "used to", "useful for" ...
    What is the default?         "defaults to" ...

up to the end of the clause. If a text has several parts of the kind, each is right. Questions of a
kind that a text does not have are impossible, as in SQuAD 2.0. So the questions do not need
knowledge, but the kind has to be told from the question, the announcing word to be found, and the
clause's end. Texts are split by module, so no text of the held-out questions was trained on.
"""

import ast
import dataclasses
import hashlib
import re
from collections.abc import Iterator, Sequence

from input_pipelines.embedded import embedded_corpus
from input_pipelines.tasks import squad_metrics
from input_pipelines.tasks.squad_files import Answer, Question

_HELD_OUT_MODULES = 0.1
_IMPOSSIBLE = 0.5  # impossible questions for each text that gives a possible one
_WORDS_OF_TEXT = range(6, 81)  # in a text
_CLAUSE = r"([^,.;:()]*[^,.;:()\s])(?=[,.;:()]|$)"
_SENTENCE = re.compile(r"[^.!?]*[.!?]?")

# Question -> what announces its answer. The announcing words of a kind are not in another kind.
_KINDS = {
    "What does {} return?": rf"\b[Rr]eturn(?:s|ing)? {_CLAUSE}",
    "What does {} raise?": rf"\b[Rr]ais(?:es|ed|e|ing) {_CLAUSE}",
    "On which condition does {} do so?": rf"\b(?:[Ii]f|[Ww]hen) {_CLAUSE}",
    "What is {} used for?": rf"\b(?:used|useful) (?:to|for) {_CLAUSE}",
    "What is the default of {}?": rf"\b[Dd]efaults? (?:to|is) {_CLAUSE}",
}
_PATTERNS = {question: re.compile(pattern) for question, pattern in _KINDS.items()}


@dataclasses.dataclass(frozen=True)
class EmbeddedQuestions:
    """Holds the questions to train on and the questions held out."""

    train: list[Question]
    held_out: list[Question]


def load_questions() -> EmbeddedQuestions:
    """Makes the questions; the same Python gives the same questions.

    Raises:
      FileNotFoundError: this Python lacks its sources, or its docstrings.
    """
    questions = EmbeddedQuestions([], [])
    root = embedded_corpus.directory_of_sources()
    seen: set[str] = set()
    for path in embedded_corpus.sources(root):
        module = path.relative_to(root).as_posix()
        is_held_out = _share(module) < _HELD_OUT_MODULES
        side = questions.held_out if is_held_out else questions.train
        for name, text in _texts(embedded_corpus.parse(path)):
            if text not in seen:
                seen.add(text)
                side += _questions(f"{module}:{name}:{len(seen)}", name, text)
    if not questions.train or not questions.held_out:
        raise FileNotFoundError(
            f"the standard library at {root} has no docstrings to ask about: this Python lacks "
            "them or its sources. Name your own files, or use a complete Python."
        )
    return questions


def nearest_sentences(questions: Sequence[Question]) -> dict[str, str]:
    """Answers each question by the sentence that has most of its words: id -> sentence.

    It is a baseline: it reads the question and the text, but does not know any kind of question.
    """
    answers = {}
    for question in questions:
        asked = set(squad_metrics.normalize(question.text).split())
        sentences = [match[0].strip() for match in _SENTENCE.finditer(question.context)]
        answers[question.id] = max(
            filter(None, sentences),
            key=lambda sentence: len(asked & set(squad_metrics.normalize(sentence).split())),
        )
    return answers


def _questions(place: str, name: str, text: str) -> Iterator[Question]:
    """Yields the questions that a text answers, and some that it does not."""
    impossible = []
    is_answered = False
    for number, (question, pattern) in enumerate(_PATTERNS.items()):
        asked = question.format(name.strip("_").replace("_", " "))
        answers = tuple(Answer(match[1], match.start(1)) for match in pattern.finditer(text))
        question_of = Question(f"{place}:{number}", asked, text, answers)
        if answers:
            is_answered = True
            yield question_of
        else:
            impossible.append(question_of)
    if is_answered and impossible and _share(place) < _IMPOSSIBLE:
        yield impossible[int(_share(place + " kind") * len(impossible))]


def _texts(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields (name, prose of the docstring) of a module's functions and classes."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            docstring = ast.get_docstring(node, clean=False) or ""
            sentences = [s for paragraph in embedded_corpus.prose(docstring) for s in paragraph]
            text = " ".join(sentences)
            if len(text.split()) in _WORDS_OF_TEXT:
                yield node.name, text


def _share(text: str) -> float:
    """Returns a number from 0 to 1 that depends on a text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / (1 << 48)
