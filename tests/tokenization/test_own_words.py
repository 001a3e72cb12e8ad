"""Words of one's own in a WordPiece vocabulary: chosen, placed, and matched as whole words."""

import collections

import pytest

from bert_estimator.tokenization import SPECIAL_TOKENS, FullTokenizer, own_words, write_vocab
from bert_estimator.tokenization.wordpiece import WHOLE_WORDS

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENS = [
    "[PAD]", "[unused0]", "[unused1]", "[unused2]", *SPECIAL_TOKENS[1:], *LETTERS, "[unused7]",
    *("##" + letter for letter in LETTERS), "foob", "##bar", "the", *",_\u4e2d\u20ac5",
]  # fmt: skip
TEXTS = [
    "foo foobar foo,bar barf bafoo",
    "\u4e2dfoo\u4e2d foo_bar \u20acfoo foo\u20ac foo\u0301 f\u00f6\u00f6 FOO Foo",
    "ete \u00e9t\u00e9 \u00c9T\u00c9s [MASK] [unused1] [whole_words:1] foo\u00a0the\tfoo",
    "the end",
]


def tokenizer_of(tokens, path, **casing):
    write_vocab(tokens, str(path / "vocab.txt"))
    return FullTokenizer(str(path / "vocab.txt"), **casing)


@pytest.fixture
def both(tmp_path):
    """Returns a tokenizer, and the tokenizer whose vocabulary has three words more."""
    before = tokenizer_of(TOKENS, tmp_path)
    return before, tokenizer_of(own_words.with_words(TOKENS, ["foo", "bar", "ete"]), tmp_path)


@pytest.mark.parametrize(
    ("words", "places", "listing"),
    [
        (["foo"], {2: "foo"}, (1, "2")),
        (["foo", "bar", "ete"], {2: "foo", 3: "bar", 34: "ete"}, (1, "2-3,34")),
        (["foo", "bar", "ete", "xy", "z5"], {34: "ete", 69: "xy", 70: "z5"}, (1, "2-3,34,69-70")),
    ],
)
def test_unused_places_come_first(words, places, listing):
    tokens = own_words.with_words(TOKENS, words)
    assert {place: tokens[place] for place in places} == places
    assert tokens[listing[0]] == f"{WHOLE_WORDS}{listing[1]}]"
    changed = {i for i, (a, b) in enumerate(zip(TOKENS, tokens, strict=False)) if a != b}
    assert changed <= {1, 2, 3, 34}
    assert len(set(tokens)) == len(tokens) >= len(TOKENS)


def test_words_are_added_again_and_without_unused_places():
    plain = [token for token in TOKENS if not token.startswith("[unused")]
    once = own_words.with_words(plain, ["foo"])
    assert once[: len(plain)] == plain and once[len(plain) :] == ["[whole_words:66]", "foo"]
    again = own_words.with_words(once, ["bar", "ete"])
    assert again[len(plain) :] == ["[whole_words:66-68]", "foo", "bar", "ete"]


def test_a_character_that_is_always_a_word_needs_no_list():
    added = own_words.with_words(TOKENS, ["\u6df7", "\u00bf"])
    assert added[1:4] == ["\u6df7", "\u00bf", "[unused2]"]
    both = own_words.with_words(TOKENS, ["\u6df7", "foo"])
    assert both[1:4] == ["[whole_words:3]", "\u6df7", "foo"]


def test_a_word_is_matched_as_a_whole_alone(both):
    before, after = both
    assert before.tokenize("foo foobar") == ["f", "##o", "##o", "foob", "##a", "##r"]
    assert after.tokenize("foo foobar") == ["foo", "foob", "##a", "##r"]
    assert after.tokenize("bar barf bafoo") == [
        *("bar", "b", "##a", "##r", "##f", "b", "##a", "##f", "##o", "##o")
    ]
    assert after.tokenize(TEXTS[1])[:6] == ["\u4e2d", "foo", "\u4e2d", "foo", "_", "bar"]


@pytest.mark.parametrize("text", TEXTS)
def test_other_words_keep_their_ids(both, text):
    before, after = both
    pieces = {"foo": "f ##o ##o", "bar": "b ##a ##r", "ete": "e ##t ##e"}
    tokens = [piece for t in after.tokenize(text) for piece in pieces.get(t, t).split()]
    assert tokens == before.tokenize(text)
    assert after.encode(text) == after.convert_tokens_to_ids(after.tokenize(text))
    with_offsets = after.tokenize_with_offsets(text)
    assert [piece.string for piece in with_offsets] == after.tokenize(text)
    for piece in with_offsets:
        if piece.string in pieces:
            assert before.tokenize(text[piece.start : piece.end]) == pieces[piece.string].split()


@pytest.mark.parametrize(
    "listed", ["", "x", "0", "4-5", "60", "66", "2-999999", "-2", "2,", "5-2", "1-3 ", "1" * 12]
)
def test_a_wrong_list_is_refused(tmp_path, listed):
    tokens = [TOKENS[0], f"{WHOLE_WORDS}{listed}]", "foo", "bar", *TOKENS[4:]]
    message = f"^{tmp_path}/vocab.txt: the token .* must list the ids of whole words, as in "
    with pytest.raises(ValueError, match=message):
        tokenizer_of(tokens, tmp_path)


def test_words_are_proposed_by_the_pieces_that_they_save(tmp_path):
    tokenizer = tokenizer_of(TOKENS, tmp_path)
    counts = collections.Counter(
        {"the": 99, "foo": 3, "foobar": 2, "abc": 3, "555555": 9, "b": 8, "\u0103b": 50}
    )
    # The last is [UNK], one token; numbers are not words; and `foobar` saves as much as `foo`.
    assert own_words.worthwhile(counts, tokenizer, 9) == ["abc", "foo", "foobar"]
    assert own_words.worthwhile(counts, tokenizer, 1) == ["abc"]


def test_words_of_a_file(tmp_path):
    tokenizer = tokenizer_of(TOKENS, tmp_path)
    path = tmp_path / "words.txt"
    path.write_text("Foo\n\nfoo\nthe\n \u00c9t\u00e9 ", encoding="utf-8")
    assert own_words.read(str(path), tokenizer) == ["foo", "ete"]
    path.write_text("a" * 101)
    with pytest.raises(ValueError, match=f"^{path}:1: a word can have at most 100 characters"):
        own_words.read(str(path), tokenizer)
    for line, parts in (("a b", r"a \+ b"), ("a-b", r"a \+ - \+ b"), ("\u4e2d\u4e2d", "\u4e2d .*")):
        path.write_text(f"foo\n{line}\n", encoding="utf-8")
        message = f"^{path}:2: '{line}' is {parts}, since spaces and signs separate words"
        with pytest.raises(ValueError, match=message):
            own_words.read(str(path), tokenizer)
