import sys

import pytest

from bert_estimator.tokenization.wordpiece import BasicTokenizer
from input_pipelines.text import document_filter
from input_pipelines.text.deduplication import ExactDuplicates, NearDuplicates
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


CHINESE = "\u6211\u4eec\u4eca\u5929\u53bb\u5317\u4eac\uff0c\u660e\u5929\u56de\u6765\u3002"
HINDI = "\u0939\u093f\u0928\u094d\u0926\u0940 \u092d\u093e\u0937\u093e"
TAMIL = "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u0bae\u0bca\u0bb4\u0bbf"
THAI = "\u0e20\u0e32\u0e29\u0e32\u0e17\u0e35\u0e48"  # a vowel sign and a tone on the last consonant


def test_spaces_separate_words():
    assert document_filter.words_of(["One  two,\tthree.", "\u00c9t\u00e9 it's"]) == [
        "One", "two,", "three.", "\u00c9t\u00e9", "it's",
    ]  # fmt: skip
    assert document_filter.words_of([HINDI, TAMIL]) == [*HINDI.split(), *TAMIL.split()]
    assert document_filter.words_of([]) == []


def test_ideographs_are_words_as_for_the_tokenizer():
    text = f"BERT {CHINESE} \U00020001\u4e00x"
    cleaned = BasicTokenizer(do_lower_case=False).cleaned(text)
    assert document_filter.words_of([text]) == cleaned.split()
    # Two of them are signs, as for the tokenizer.
    assert len(document_filter.words_of([CHINESE])) == 13


def test_letters_of_other_scripts_without_spaces_keep_their_signs():
    assert document_filter.words_of([THAI])[-1] == "\u0e17\u0e35\u0e48"
    assert "".join(document_filter.words_of([THAI])) == THAI
    assert document_filter.words_of(["\u3053\u308c\u306fX\u30d3\u30eb"]) == list(
        "\u3053\u308c\u306fX\u30d3\u30eb"
    )


@pytest.mark.parametrize("text", [HINDI, TAMIL, THAI, "e\u0301te\u0301", "\u4e00"])
def test_signs_on_letters_count_as_letters(text):
    assert document_filter.share_of_letters([text]) == 1
    assert document_filter.share_of_letters([f"{text} {text}", f"1{text}-{text}"]) < 1
    assert list(filter(DocumentFilter(0, 0.95, "").keeps, [[text], ["12 + 3"]])) == [[text]]


def test_shares_of_letters():
    assert document_filter.share_of_letters(["ab 1.", " c"]) == 3 / 5
    assert document_filter.share_of_letters([" "]) == 0


@pytest.mark.parametrize("character", ["\u4e00", "\u0e01", "\u3042", "\u1000"])
def test_texts_without_spaces_have_many_words(character):
    """They were one word each: short by --min_words, and not similar to any other text."""
    letters = [chr(ord(character) + i * 7 % 40) for i in range(600)]
    first, other = "".join(letters), "".join([*letters[:590], *letters[:10]])
    assert len(document_filter.words_of([first])) >= 500
    assert list(filter(DocumentFilter(20, 0.0, "").keeps, [[first], [first[:3]]])) == [[first]]
    near = NearDuplicates()
    assert near.is_new([first]) and not near.is_new([other])
    exact = ExactDuplicates()
    assert exact.is_new([first]) and exact.is_new([other])
    assert not exact.is_new([first[:300], first[300:]])
