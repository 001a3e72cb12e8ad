import pytest

from bert_estimator.tokenization.wordpiece import BasicTokenizer
from input_pipelines.text import words
from input_pipelines.text.deduplication import ExactDuplicates, NearDuplicates
from input_pipelines.text.document_filter import DocumentFilter

CHINESE = "\u6211\u4eec\u4eca\u5929\u53bb\u5317\u4eac\uff0c\u660e\u5929\u56de\u6765\u3002"
HINDI = "\u0939\u093f\u0928\u094d\u0926\u0940 \u092d\u093e\u0937\u093e"
TAMIL = "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd \u0bae\u0bca\u0bb4\u0bbf"
THAI = "\u0e20\u0e32\u0e29\u0e32\u0e17\u0e35\u0e48"  # a vowel sign and a tone on the last consonant


def test_spaces_separate_words():
    assert words.words_of(["One  two,\tthree.", "\u00c9t\u00e9 it's"]) == [
        "One", "two,", "three.", "\u00c9t\u00e9", "it's",
    ]  # fmt: skip
    assert words.words_of([HINDI, TAMIL]) == [*HINDI.split(), *TAMIL.split()]
    assert words.words_of([]) == []


def test_ideographs_are_words_as_for_the_tokenizer():
    text = f"BERT {CHINESE} \U00020001\u4e00x"
    cleaned = BasicTokenizer(do_lower_case=False).cleaned(text)
    assert words.words_of([text]) == cleaned.split()
    assert len(words.words_of([CHINESE])) == 13  # two of them are signs, as for the tokenizer


def test_letters_of_other_scripts_without_spaces_keep_their_signs():
    assert words.words_of([THAI])[-1] == "\u0e17\u0e35\u0e48"
    assert "".join(words.words_of([THAI])) == THAI
    assert words.words_of(["\u3053\u308c\u306fX\u30d3\u30eb"]) == list(
        "\u3053\u308c\u306fX\u30d3\u30eb"
    )


@pytest.mark.parametrize("text", [HINDI, TAMIL, THAI, "e\u0301te\u0301", "\u4e00"])
def test_signs_on_letters_count_as_letters(text):
    assert words.share_of_letters([text]) == 1
    assert words.share_of_letters([f"{text} {text}", f"1{text}-{text}"]) < 1
    assert list(filter(DocumentFilter(0, 0.95, "").keeps, [[text], ["12 + 3"]])) == [[text]]


def test_shares_of_letters():
    assert words.share_of_letters(["ab 1.", " c"]) == 3 / 5
    assert words.share_of_letters([" "]) == 0


@pytest.mark.parametrize("character", ["\u4e00", "\u0e01", "\u3042", "\u1000"])
def test_texts_without_spaces_have_many_words(character):
    """They were one word each: short by --min_words, and not similar to any other text."""
    letters = [chr(ord(character) + i * 7 % 40) for i in range(600)]
    first, other = "".join(letters), "".join([*letters[:590], *letters[:10]])
    assert len(words.words_of([first])) >= 500
    assert list(filter(DocumentFilter(20, 0.0, "").keeps, [[first], [first[:3]]])) == [[first]]
    near = NearDuplicates()
    assert near.is_new([first]) and not near.is_new([other])
    exact = ExactDuplicates()
    assert exact.is_new([first]) and exact.is_new([other])
    assert not exact.is_new([first[:300], first[300:]])
