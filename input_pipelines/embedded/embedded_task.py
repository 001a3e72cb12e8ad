"""Labelled tasks from the text that every CPython carries, one of them the default of fine-tuning.

    word_order      is the sentence as it was written, or were its two parts exchanged?
    sentence_order  are two neighbouring sentences in their order, or in the reverse order?
    neighbours      does the second sentence follow the first, or is it from another place?
    summary         does the summary line belong to the function, or to another of its module?

The first three are made of `embedded_corpus` with its split, so the examples for evaluation were
held out of pretraining too. The last is made of the standard library's functions, split by module.
Each text occurs with both labels, so neither the majority nor the words alone tell them apart.
"""

import ast
import hashlib
import itertools
import random
from collections.abc import Callable, Iterator

from bert_estimator.command_line.choices import EMBEDDED_TASKS
from input_pipelines.embedded import embedded_corpus
from input_pipelines.tasks.examples import Example
from input_pipelines.tasks.task_data import EmbeddedTask

_WORDS_OF_SENTENCE = range(5, 23)  # in a sentence; the sequences of pretraining have 32 tokens
_WORDS_OF_PAIR = range(4, 15)
_HELD_OUT_MODULES = 0.1


def load_task(name: str) -> EmbeddedTask:
    """Makes a task by its name, one of TASKS; the same Python gives the same task.

    Raises:
      FileNotFoundError: this Python lacks its sources; see `embedded_corpus.load`.
    """
    return TASKS[name]()


def word_order() -> EmbeddedTask:
    """Makes the task to tell sentences as they were written from sentences with exchanged parts."""

    def both(documents: list[list[str]]) -> Iterator[Example]:
        for sentence in itertools.chain.from_iterable(documents):
            words = sentence.rstrip(".!?:").split(" ")
            if len(words) in _WORDS_OF_SENTENCE:
                changed = _with_parts_exchanged(words, _generator(sentence))
                if changed != words:
                    yield Example(" ".join(words), None, 1)
                    yield Example(" ".join(changed), None, 0)

    return _of_corpus("is the sentence as it was written?", ("changed", "as written"), both)


def sentence_order() -> EmbeddedTask:
    """Makes the task to tell two neighbouring sentences in order from exchanged sentences."""

    def both(documents: list[list[str]]) -> Iterator[Example]:
        pairs = itertools.chain.from_iterable(map(itertools.pairwise, documents))
        for first, second in pairs:
            if all(len(sentence.split()) in _WORDS_OF_PAIR for sentence in (first, second)):
                yield Example(first, second, 1)
                yield Example(second, first, 0)

    return _of_corpus("are the two sentences in their order?", ("exchanged", "in order"), both)


def neighbours() -> EmbeddedTask:
    """Makes the task to tell two neighbouring sentences from sentences of different places."""

    def both(documents: list[list[str]]) -> Iterator[Example]:
        # Each sentence is second twice: after its own neighbour, and after another sentence.
        pairs = [pair for document in documents for pair in itertools.pairwise(document)]
        _generator(f"{len(pairs)} pairs").shuffle(pairs)
        for place, (first, second) in enumerate(pairs):
            yield Example(first, second, 1)
            yield Example(first, pairs[place - 1][1], 0)

    return _of_corpus("does the second sentence follow the first?", ("elsewhere", "follows"), both)


def summary() -> EmbeddedTask:
    """Makes the task to tell a function's own summary from another function's summary."""
    root = embedded_corpus.directory_of_sources()
    train, held_out = {}, {}  # module -> its functions
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


TASKS: dict[str, Callable[[], EmbeddedTask]] = dict(
    zip(EMBEDDED_TASKS, (word_order, sentence_order, neighbours, summary), strict=True)
)


def _of_corpus(
    question: str, labels: tuple[str, str], both: Callable[[list[list[str]]], Iterator[Example]]
) -> EmbeddedTask:
    corpus = embedded_corpus.load()
    train, held_out = list(both(corpus.train)), list(both(corpus.held_out))
    return EmbeddedTask(question, labels, train, held_out)


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
