"""Tasks from the text that every CPython carries: the defaults of fine-tuning.

Labelled texts (`EMBEDDED_TASKS`, one of them the default of run_classifier.py):

    word_order  is the sentence as it was written, or were its two parts exchanged?
    summary     does the summary line belong to the function, or to another of its module?

The first is made of `embedded_corpus` with its split, so the examples for evaluation were held out
of pretraining too. The second is made of the standard library's functions, split by module.
Each text occurs with both labels, so neither the majority nor the words alone tell them apart.

Tagged words (code_words): which words of a sentence were written as one name of the code?
Questions, the default of run_squad.py: which part of a docstring answers them?
"""

import ast
import hashlib
import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence

from bert_estimator.command_line.choices import EMBEDDED_TASKS
from bert_estimator.tokenization import entities
from input_pipelines.embedded import embedded_corpus
from input_pipelines.tasks import squad_metrics
from input_pipelines.tasks.examples import Example
from input_pipelines.tasks.squad_files import Answer, Question
from input_pipelines.tasks.tag_files import Sentence
from input_pipelines.tasks.task_data import EmbeddedTask

_WORDS_OF_SENTENCE = range(5, 23)  # the sequences of pretraining have 32 tokens
_HELD_OUT_MODULES = 0.1


def word_order() -> EmbeddedTask[Example]:
    """Makes the task to tell sentences as they were written from sentences with exchanged parts."""

    def both(documents: list[list[str]]) -> Iterator[Example]:
        for sentence in itertools.chain.from_iterable(documents):
            words = sentence.rstrip(".!?:").split(" ")
            if len(words) in _WORDS_OF_SENTENCE:
                changed = _with_parts_exchanged(words, _generator(sentence))
                if changed != words:
                    yield Example(" ".join(words), None, 1)
                    yield Example(" ".join(changed), None, 0)

    corpus = embedded_corpus.load()
    question, labels = "is the sentence as it was written?", ("changed", "as written")
    return EmbeddedTask(question, labels, list(both(corpus.train)), list(both(corpus.held_out)))


def summary() -> EmbeddedTask[Example]:
    """Makes the task to tell a function's own summary from another function's summary."""
    root = embedded_corpus.directory_of_sources()
    train, held_out = {}, {}  # module -> its functions
    # A module is on one side as a whole, since summaries are exchanged within it.
    for path in embedded_corpus.sources(root):
        module = path.relative_to(root).as_posix()
        is_held_out = _generator(module).random() < _HELD_OUT_MODULES
        side = held_out if is_held_out else train
        side[module] = list(_functions(embedded_corpus.parse(path)))
    # Some functions have the same name, arguments and summary in two modules.
    trained = set(itertools.chain.from_iterable(train.values()))
    for module, functions in held_out.items():
        held_out[module] = [function for function in functions if function not in trained]
    return EmbeddedTask(
        "does the summary belong to the function?",
        ("another's", "its own"),
        *(list(_with_summaries_exchanged(side)) for side in (train, held_out)),
    )


# Functions that make the tasks; the same Python makes the same task.
TASKS: dict[str, Callable[[], EmbeddedTask[Example]]] = dict(
    zip(EMBEDDED_TASKS, (word_order, summary), strict=True)
)


def _with_parts_exchanged(words: list[str], generator: random.Random) -> list[str]:
    """Splits at a random place, with two words or more on each side, and puts the end first."""
    place = generator.randrange(2, len(words) - 1)
    return words[place:] + words[:place]


def _with_summaries_exchanged(modules: dict[str, list[tuple[str, str]]]) -> Iterator[Example]:
    """Yields each function with its own summary, and with another one of its module."""
    for module, functions in modules.items():
        order = list(range(len(functions)))
        _generator(module + " order").shuffle(order)
        for place, index in enumerate(order):
            signature, text = functions[index]
            other = functions[order[place - 1]][1]  # of the function before it, in a circle
            if other != text:
                yield Example(signature, text, 1)
                yield Example(signature, other, 0)


def _functions(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yields (name and arguments, first sentence of the docstring) of a module's functions."""
    seen = set()
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            paragraphs = embedded_corpus.prose(ast.get_docstring(node, clean=False) or "")
            text = next(paragraphs, [""])[0]
            if text and text not in seen:
                seen.add(text)
                arguments = [a.arg for a in node.args.args if a.arg not in ("self", "cls")]
                yield f"{node.name} ({', '.join(arguments)})".replace("_", " "), text


def _generator(text: str) -> random.Random:
    """Returns a random generator that depends on a text alone, not on the rest of the corpus."""
    return random.Random(hashlib.sha256(text.encode()).digest())


# In the sentences of `embedded_corpus`, names such as `reinit_subcommands`, `sys.executable` and
# `NodeVisitor` become the words that they are made of, and all words are lower-cased. So only the
# sentence tells "file mode" from `file_mode`. The first word of a name has the tag B-CODE, its
# other words have I-CODE. The sentences to evaluate on were held out of pretraining, too.
CODE_TAGS = (entities.OUTSIDE, "B-CODE", "I-CODE")

_OUTSIDE, _BEGIN, _INSIDE = range(3)
_MOST_WORDS = 40
# With an underscore, with dots between its parts, or with a capital after a small letter.
_NAME = re.compile(r"\w*[A-Za-z0-9]_\w+|_+\w+|[A-Za-z]\w*(?:\.[A-Za-z_]\w+)+|[A-Z]?[a-z]+[A-Z]\w*")
_PART_OF_NAME = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])|[^\W_]+")
_WORD = re.compile(r"[\w'\u2019-]+")
_AROUND = "\"'()[],;:.!?"


def load_tags() -> EmbeddedTask[Sentence]:
    """Makes the task; the same Python gives the same task."""
    corpus = embedded_corpus.load()
    question = "which words were written as one name of the code?"
    return EmbeddedTask(question, CODE_TAGS, *map(_sentences, (corpus.train, corpus.held_out)))


def _sentences(documents: list[list[str]]) -> list[Sentence]:
    tagged = (tag(sentence) for document in documents for sentence in document)
    return [s for s in tagged if _BEGIN in s.tags and len(s.words) <= _MOST_WORDS]


def tag(sentence: str) -> Sentence:
    """Returns the words of a sentence, with the words of names tagged."""
    words = list(_tagged_words(sentence))
    return Sentence(tuple(word for word, _ in words), tuple(number for _, number in words))


def _tagged_words(sentence: str) -> Iterator[tuple[str, int]]:
    for written in sentence.split():
        core = written.strip(_AROUND).removesuffix("'s")
        parts = _PART_OF_NAME.findall(core)
        if parts and _NAME.fullmatch(core) and core.lower() not in ("e.g", "i.e"):
            for place, part in enumerate(parts):
                yield part.lower(), _INSIDE if place else _BEGIN
        else:
            for word in _WORD.findall(core):
                yield word.lower(), _OUTSIDE


_IMPOSSIBLE = 0.5  # impossible questions for each text that gives a possible one
_WORDS_OF_TEXT = range(6, 81)
_CLAUSE = r"([^,.;:()]*[^,.;:()\s])(?=[,.;:()]|$)"
_SENTENCE = re.compile(r"[^.!?]*[.!?]?")

# An answer is the part of a docstring that follows a word which announces it, up to the end of the
# clause. If a text has several parts of the kind, each is right. So the questions do not need
# knowledge, but the kind has to be told from the question, the announcing word to be found, and the
# clause's end.
# Question -> what announces its answer. The announcing words of a kind are not in another kind.
_KINDS = {
    "What does {} return?": rf"\b[Rr]eturn(?:s|ing)? {_CLAUSE}",
    "What does {} raise?": rf"\b[Rr]ais(?:es|ed|e|ing) {_CLAUSE}",
    "On which condition does {} do so?": rf"\b(?:[Ii]f|[Ww]hen) {_CLAUSE}",
    "What is {} used for?": rf"\b(?:used|useful) (?:to|for) {_CLAUSE}",
    "What is the default of {}?": rf"\b[Dd]efaults? (?:to|is) {_CLAUSE}",
}
_PATTERNS = {question: re.compile(pattern) for question, pattern in _KINDS.items()}


def load_questions() -> tuple[list[Question], list[Question]]:
    """Returns the questions to train on and the questions held out; the same Python gives the same
    questions."""
    train, held_out = [], []
    root = embedded_corpus.directory_of_sources()
    seen: set[str] = set()
    for path in embedded_corpus.sources(root):
        module = path.relative_to(root).as_posix()
        is_held_out = _share(module) < _HELD_OUT_MODULES
        side = held_out if is_held_out else train
        for name, text in _texts(embedded_corpus.parse(path)):
            # Texts are split by module, and a text counts once, so no text of the held-out
            # questions was trained on.
            if text not in seen:
                seen.add(text)
                side += _questions(f"{module}:{name}:{len(seen)}", name, text)
    if not train or not held_out:
        raise FileNotFoundError(
            f"the standard library at {root} has no docstrings to ask about: this Python lacks "
            "them or its sources. Name your own files, or use a complete Python."
        )
    return train, held_out


def nearest_sentences(questions: Sequence[Question]) -> dict[str, str]:
    """Answers each question by the sentence that has most of its words: id -> sentence."""
    # It is a baseline: it reads the question and the text, but does not know any kind of question.
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
    # Questions of a kind that a text does not have are impossible, as in SQuAD 2.0. A text that
    # answers none of them does not give any question.
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
