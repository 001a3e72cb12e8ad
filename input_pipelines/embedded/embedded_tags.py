"""A tagging task from the text that every CPython carries.

    code_words   which words of a sentence were written as one name of the code?

In the sentences of `embedded_corpus`, names such as `reinit_subcommands`, `sys.executable` and
`NodeVisitor` become the words that they are made of, and all words are lower-cased. So only the
sentence tells "file mode" from `file_mode`. The first word of a name has the tag B-CODE, its other
words have I-CODE. The sentences to evaluate on were held out of pretraining, too.
"""

import re
from collections.abc import Iterator

from bert_estimator.tokenization import entities
from input_pipelines.embedded import embedded_corpus
from input_pipelines.tasks.tag_files import Sentence
from input_pipelines.tasks.task_data import EmbeddedTags

CODE_TAGS = (entities.OUTSIDE, "B-CODE", "I-CODE")

_OUTSIDE, _BEGIN, _INSIDE = range(3)
_MOST_WORDS = 40
# With an underscore, with dots between its parts, or with a capital after a small letter.
_NAME = re.compile(r"\w*[A-Za-z0-9]_\w+|_+\w+|[A-Za-z]\w*(?:\.[A-Za-z_]\w+)+|[A-Z]?[a-z]+[A-Z]\w*")
_PART_OF_NAME = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])|[^\W_]+")
_WORD = re.compile(r"[\w'\u2019-]+")
_AROUND = "\"'()[],;:.!?"


def load_tags() -> EmbeddedTags:
    """Makes the task; the same Python gives the same task.

    Raises:
      FileNotFoundError: this Python lacks its sources; see `embedded_corpus.load`.
    """
    corpus = embedded_corpus.load()
    question = "which words were written as one name of the code?"
    return EmbeddedTags(question, CODE_TAGS, *map(_sentences, (corpus.train, corpus.held_out)))


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
