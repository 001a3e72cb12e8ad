import hashlib
import subprocess
import sys

import pytest

from input_pipelines.embedded import embedded_corpus
from input_pipelines.embedded.embedded_corpus import (
    prose,
    split,
    split_sentences,
    without_repetitions,
)

DOCSTRING = """Return the spam of a *given* kind, as the manual says.

    Use this method, e.g. for ``eggs``, where :func:`cook` is
    too slow.  It never fails!  "Never" means that (by J. Doe) no
    exception is raised.

    Heading
    =======

    >>> cook('spam')
    'a literal result of several words'

    +-------+---------+
    | a     | table   |
    +-------+---------+

    spam(kind, amount=3) -> bytes

    The example::

       for spam in range(3):
           print(spam)

    * The first bullet is a sentence that
      goes on here.
    * The second bullet is another one.

    kind -- x
    """


def test_prose_keeps_sentences_and_drops_the_rest():
    assert list(prose(DOCSTRING)) == [
        ["Return the spam of a given kind, as the manual says."],
        [
            "Use this method, e.g. for eggs, where cook is too slow.",
            # "It never fails!" is too short.
            '"Never" means that (by J. Doe) no exception is raised.',
        ],
        ["The first bullet is a sentence that goes on here."],
        ["The second bullet is another one."],
    ]


def test_split_sentences():
    text = 'It is 3.5 wide. (See below.) Is it? "Yes!" Mr. Smith et al. agree, i.e. They do.'
    assert split_sentences(text) == [
        "It is 3.5 wide.",
        "(See below.)",
        "Is it?",
        '"Yes!"',
        "Mr. Smith et al. agree, i.e. They do.",
    ]


def test_repeated_paragraphs_are_dropped():
    first, second, third = ["A.", "B."], ["C."], ["A."]
    documents = [[first, second], [second, first], [third, second]]
    assert without_repetitions(documents) == [["A.", "B.", "C."], ["A."]]


def test_split_is_by_hash_and_leaves_no_common_sentence():
    documents = [[f"this is document {i}", f"common {i % 7}"] for i in range(100)]
    train, held_out = split(documents, 0.1)
    assert len(train) == 90
    assert sorted(train + [d for d in documents if d not in train]) == sorted(documents)
    assert held_out == [[d[0]] for d in documents if d not in train]
    hashes = {
        document[0]: hashlib.sha256("\n".join(document).encode()).digest() for document in documents
    }
    largest_held_out = max(hashes[document[0]] for document in held_out)
    assert all(hashes[document[0]] > largest_held_out for document in train)


def library(tmp_path):
    """Writes a small standard library."""
    (tmp_path / "pydoc_data").mkdir()
    (tmp_path / "pydoc_data" / "topics.py").write_text(
        "topics = {'b': 'The second topic comes last here.',\n"
        " 'a': 'The first topic is about something else.'}\n"
    )
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "skipped.py").write_text('"""Tests are not prose to learn from."""')
    (tmp_path / "broken.py").write_text("this is broken Python")
    (tmp_path / "module.py").write_text(
        '"""The module docstring comes before all others."""\n'
        "raise RuntimeError('imported')\n"
        "if True:\n"
        "    class Spam:\n"
        '        """A class which is nested in a block."""\n'
        "        async def eggs(self):\n"
        '            r"""Wait for the eggs\\with an old escape in it."""\n'
        "        def ham(self):\n"
        '            """Return the ham of this spam object."""\n'
        "else:\n"
        "    def spam():\n"
        '        """Take the other way around the block."""\n'
    )
    for i in range(40):
        (tmp_path / f"part{i:02}.py").write_text(f'"""Part number {i} of the library is short."""')
    return tmp_path


def test_documents_of_a_library(tmp_path):
    documents = list(embedded_corpus.documents(library(tmp_path)))
    assert documents[:2] == [
        [["The first topic is about something else."]],
        [["The second topic comes last here."]],
    ]
    assert documents[2] == []  # broken.py
    assert documents[3] == [
        ["The module docstring comes before all others."],
        ["A class which is nested in a block."],
        ["Return the ham of this spam object."],
        ["Take the other way around the block."],
    ]
    assert len(documents) == 44


def test_load_and_fingerprint_of_a_library(tmp_path):
    root = str(library(tmp_path))
    corpus = embedded_corpus.load(root)
    fingerprint = embedded_corpus.fingerprint(root)
    assert (corpus, fingerprint) == (
        embedded_corpus.load(root),
        embedded_corpus.fingerprint(root),
    )
    sentences = [s for side in (corpus.train, corpus.held_out) for d in side for s in d]
    assert len(sentences) == len(set(sentences)) == 46
    assert sum(len(document) for document in corpus.held_out) == 2
    (tmp_path / "part00.py").write_text('"""Part number zero of the library has changed."""')
    assert embedded_corpus.load(root).sha256 != corpus.sha256
    assert embedded_corpus.fingerprint(root) != fingerprint


def test_a_python_without_sources_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no text .*Train on your own"):
        embedded_corpus.load(str(tmp_path))


def test_the_language_reference_of_this_python():
    root = embedded_corpus.directory_of_sources()
    topics = list(embedded_corpus._topics(root / "pydoc_data" / "topics.py"))
    assert len(topics) > 70
    document = [s for paragraph in prose(topics[0]) for s in paragraph]
    assert document[0] == (
        "Assert statements are a convenient way to insert debugging assertions into a program:"
    )


def test_reading_the_corpus_imports_nothing_of_it():
    program = (
        "import sys; from input_pipelines.embedded import embedded_corpus as e;"
        "next(e.documents(e.directory_of_sources()));"
        "sys.exit(bool({'pydoc_data', 'tensorflow', 'this'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
