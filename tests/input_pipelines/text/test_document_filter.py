import sys

import pytest

from input_pipelines.text import document_filter
from input_pipelines.text.document_filter import DocumentFilter, in_words
from input_pipelines.text.documents import TextOptions

ENGLISH = [
    "The committee will meet on Tuesday to discuss the proposal for a new library.",
    "Everyone who lives in the town is welcome to come and to ask questions.",
]
GERMAN = [
    "Der Ausschuss wird am Dienstag \u00fcber den Vorschlag f\u00fcr eine neue Bibliothek beraten.",
    "Alle, die in der Stadt wohnen, d\u00fcrfen kommen und Fragen stellen.",
]
NUMBERS = ["1 2 3 4 5 6 7 8 9 10 11 12 13 14", "and so on"]


@pytest.fixture
def languages(monkeypatch):
    """Has languages told by one word; returns the texts that were asked about."""
    asked = []

    class Identifier:
        nb_classes = ("en", "de")

        def classify(self, text):
            asked.append(text)
            return ("de" if "der" in text.lower().split() else "en", 0.0)

    monkeypatch.setattr(document_filter, "_identifier", Identifier)
    return asked


@pytest.mark.parametrize(
    ("settings", "kept", "left_out"),
    [
        ((0, 0.0, ""), [ENGLISH, GERMAN, NUMBERS, ["Hi."]], {}),
        ((4, 0.0, ""), [ENGLISH, GERMAN, NUMBERS], {"short": 1}),
        ((0, 0.5, ""), [ENGLISH, GERMAN, ["Hi."]], {"of too few letters": 1}),
        ((0, 0.0, "de"), [GERMAN], {"in other languages": 3}),
        # The first reason counts, and a reason that does not occur counts 0.
        (
            (4, 0.5, "en"),
            [ENGLISH],
            {"short": 1, "of too few letters": 1, "in other languages": 1},
        ),
        ((1, 0.0, ""), [ENGLISH, GERMAN, NUMBERS, ["Hi."]], {"short": 0}),
    ],
)
def test_documents_are_left_out_and_counted(languages, settings, kept, left_out):
    chosen = DocumentFilter(*settings)
    assert list(filter(chosen.keeps, [ENGLISH, GERMAN, NUMBERS, ["Hi."]])) == kept
    assert chosen.left_out == left_out


def test_a_language_is_told_from_the_beginning(languages):
    assert document_filter.language_of(["a" * 1500, "b" * 400, "c" * 900, "der"]) == "en"
    assert languages == [f"{'a' * 1500} {'b' * 400} {'c' * 98}"]


def test_reasons_in_words():
    assert in_words({}) == ""
    assert in_words({"short": 3, "in other languages": 0}) == "3 short, 0 in other languages"


def test_languages_that_are_not_known(languages):
    message = r"^language is 'English'; it must be one of de, en\."
    with pytest.raises(ValueError, match=message):
        TextOptions(language="English").new_filter()


def test_without_py3langid(monkeypatch):
    document_filter._identifier.cache_clear()
    monkeypatch.setitem(sys.modules, "py3langid", None)
    with pytest.raises(ValueError, match=r"not installed\. Install it: pip install .*\[language\]"):
        DocumentFilter(0, 0.0, "en")


def test_languages_of_texts():
    pytest.importorskip("py3langid", reason="py3langid is not installed")
    document_filter._identifier.cache_clear()
    assert document_filter.language_of(ENGLISH) == "en"
    assert document_filter.language_of(GERMAN) == "de"
    with pytest.raises(ValueError, match=r"language is 'xx'; it must be one of .*, en, "):
        document_filter.check_language("xx")
