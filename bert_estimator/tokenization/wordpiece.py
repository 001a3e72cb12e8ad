"""WordPiece tokenization as google-research/bert does it: cleanup, basic words, then pieces.

Published checkpoints need exactly these tokens, so every step follows google-research/bert's
`tokenization.py`, including its treatment of punctuation and CJK.
"""

import itertools
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from bert_estimator.storage import remote
from bert_estimator.system import disk_files
from bert_estimator.tokenization import offsets
from bert_estimator.tokenization.casing import Casing
from bert_estimator.tokenization.offsets import Piece

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"

# A vocabulary with this token lists in it the ids of entries that stand for whole words alone, such
# as [whole_words:1-3,30522]. Text never becomes the token, since its signs are words of their own.
WHOLE_WORDS = "[whole_words:"
_WHOLE_WORDS = re.compile(re.escape(WHOLE_WORDS) + r"\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*\]")

# Results are cached for this number of distinct words: English text has fewer, and memory stays
# bounded for endless text. Longer words are not cached, since they hardly occur again, and 2**18
# of them would fill the memory.
_CACHED_WORDS = 1 << 18
_LONGEST_CACHED = 200

_Result = TypeVar("_Result")

_MOST_BYTES = 1 << 28  # of a vocabulary; the largest published ones have a few million

# The blocks of the CJK Unified Ideographs. As in google-research/bert, Hangul, Hiragana and
# Katakana are not split into characters.
CJK_BLOCKS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def load_vocab(vocab_file: str) -> dict[str, int]:
    """Reads a vocabulary, one token per line; the number of a line, from 0, is the token's id."""
    with disk_files.reading(remote.local(vocab_file)) as file:
        data = disk_files.read_at_most(file, _MOST_BYTES)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"{vocab_file}: is longer than {_MOST_BYTES} bytes, as no vocabulary is.")
    if data.startswith(b"\xef\xbb\xbf"):
        raise ValueError(
            f"{vocab_file}:1: the file starts with a byte order mark, which would become part of "
            "the first token. Save it as UTF-8 without BOM."
        )
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{vocab_file}:{line}: byte {error.start} of the file is not UTF-8 ({error.reason}). "
            "A vocabulary is a UTF-8 text file with one token per line; the name of a "
            "SentencePiece model must end in .model."
        ) from None
    if lines[-1] == "":
        lines.pop()
    vocab: dict[str, int] = {}
    # A network's rows have the numbers of the lines: a fault that passes here would give tokens the
    # rows of other tokens, without an error.
    for index, line in enumerate(lines):
        # BERT-Base, Chinese, has a line that is only U+2028, which Python takes for a space.
        token = line.strip() or line.strip(" \t\r\n")
        if not token:
            raise ValueError(
                f"{vocab_file}:{index + 1}: the line is empty. Each line must hold one token, "
                "since the line number is the token's id."
            )
        if "\0" in token:
            raise ValueError(
                f"{vocab_file}:{index + 1}: the token {token!r} has a NUL, which no text has. Is "
                "the file UTF-16? Save it as UTF-8."
            )
        if token in vocab:
            raise ValueError(
                f"{vocab_file}:{index + 1}: the token {token!r} is on line {vocab[token] + 1} too. "
                "Each token must occur once."
            )
        vocab[token] = index
    missing = [token for token in SPECIAL_TOKENS if token not in vocab]
    if missing:
        raise ValueError(
            f"{vocab_file}: its {len(vocab)} lines lack {', '.join(missing)}. A BERT vocabulary "
            f"must have {' '.join(SPECIAL_TOKENS)}; is this a WordPiece vocabulary (vocab.txt)?"
        )
    whole_words(vocab, f"{vocab_file}: ")
    return vocab


def whole_words(vocab: Mapping[str, int], place: str = "") -> dict[str, int]:
    """Returns token -> id of the entries that a vocabulary's `WHOLE_WORDS` lists; errors begin with
    `place`."""
    listed = [token for token in vocab if token.startswith(WHOLE_WORDS)]
    token_of = {number: token for token, number in vocab.items()} if listed else {}
    found = {}
    for token in listed:
        parts = token[len(WHOLE_WORDS) : -1].split(",") if _WHOLE_WORDS.fullmatch(token) else []
        for part in parts:
            first, _, last = part.partition("-")
            numbers = range(int(first), min(int(last or first), len(vocab)) + 1)
            found.update((token_of.get(number, CONTINUATION), number) for number in numbers)
        if not found or any(stands_alone(word[0]) for word in found):  # the sign of "##", too
            raise ValueError(
                f"{place}the token {token!r} must list the ids of whole words, as in "
                f"{WHOLE_WORDS}1-3,7]; `bert-vocabulary --extend` writes it"
            )
    return found


class _Cache(dict[str, _Result]):
    """Maps words to the results of a function; it is filled as words occur."""

    def __init__(self, function: Callable[[str], _Result]):
        super().__init__()
        self._function = function

    def __missing__(self, word: str) -> _Result:
        result = self._function(word)
        if len(word) <= _LONGEST_CACHED:
            if len(self) >= _CACHED_WORDS:  # the frequent words come back at once
                self.clear()
            self[word] = result
        return result


class FullTokenizer:
    """Turns text into WordPiece tokens and their ids, and ids into tokens.

    ```
    tokenizer = FullTokenizer("vocab.txt")
    tokens = tokenizer.tokenize("Unaffable!")            # ["una", "##ffa", "##ble", "!"]
    ids = tokenizer.convert_tokens_to_ids(tokens)
    ```
    """

    def __init__(
        self, vocab_file: str, do_lower_case: bool = True, strip_accents: bool | None = None
    ):
        self.vocab = load_vocab(vocab_file)
        self.inv_vocab = {index: token for token, index in self.vocab.items()}
        self.vocab_size = len(self.vocab)
        self.cls_id, self.sep_id = self.vocab[CLS], self.vocab[SEP]
        self.mask_id, self.pad_id, self.unk_id = (self.vocab[token] for token in (MASK, PAD, UNK))
        self.basic_tokenizer = BasicTokenizer(do_lower_case, strip_accents)
        self.do_lower_case = do_lower_case
        self.strips_accents = self.basic_tokenizer.strips_accents
        # Records say None for what is usual, so that both ways to ask for it are the same.
        is_usual = self.strips_accents == do_lower_case
        self.casing = Casing(do_lower_case, None if is_usual else self.strips_accents)
        self.wordpiece_tokenizer = WordpieceTokenizer(self.vocab)
        self._tokens_of_chunk = _Cache(self._tokens_with_offsets)
        self._ids = _Cache(self._ids_of_word)

    def tokenize(self, text: str) -> list[str]:
        """Splits a text into tokens."""
        tokens: list[str] = []
        for word in self.basic_tokenizer.tokenize(text):
            tokens.extend(self.wordpiece_tokenizer.pieces(word))
        return tokens

    def tokenize_with_offsets(self, text: str) -> list[Piece]:
        """Splits a text into tokens, each with the characters of the text that it comes from."""
        tokens: list[Piece] = []
        first = 0
        for chunk in text.split(" "):  # a space separates words, whatever is beside it
            tokens.extend(
                Piece(token, first + start, first + end)
                for token, start, end in self._tokens_of_chunk[chunk]
            )
            first += len(chunk) + 1
        return offsets.with_marks(text, tokens)

    def _tokens_with_offsets(self, chunk: str) -> list[Piece]:
        tokens: list[Piece] = []
        for chars in self.basic_tokenizer.words_with_offsets(chunk):
            pieces = self.wordpiece_tokenizer.pieces(offsets.joined(chars))
            if pieces == (UNK,):
                tokens.append(offsets.merged(UNK, chars))
                continue
            start = 0
            for piece in pieces:
                end = start + len(piece) - (len(CONTINUATION) if start else 0)
                tokens.append(offsets.merged(piece, chars[start:end]))
                start = end
        return tokens

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text's tokens, without special tokens."""
        # A look-up for what stands between spaces is faster than a look-up for each token.
        words = map(self._ids.__getitem__, self.basic_tokenizer.cleaned(text).split())
        return list(itertools.chain.from_iterable(words))

    def _ids_of_word(self, word: str) -> tuple[int, ...]:
        """Returns the ids of the pieces of a word between spaces."""
        pieces = map(self.wordpiece_tokenizer.pieces, self.basic_tokenizer.split_word(word))
        return tuple(map(self.vocab.__getitem__, itertools.chain.from_iterable(pieces)))

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Returns the ids of tokens; raises `KeyError` for a token outside the vocabulary."""
        return [self.vocab[token] for token in tokens]

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns the tokens of ids; raises `KeyError` for an id outside the vocabulary."""
        return [self.inv_vocab[index] for index in ids]

    def is_continuation(self, token: str) -> bool:
        """Returns True for a token that continues a word."""
        return token.startswith(CONTINUATION)

    def without_accents(self, text: str) -> str:
        """Returns a text without its accents."""
        return without_accents(text)


class BasicTokenizer:
    """Cleans text and splits it into words and punctuation signs; accents are nonspacing marks,
    stripped by default if words are lower-cased."""

    def __init__(self, do_lower_case: bool = True, strip_accents: bool | None = None):
        self.do_lower_case = do_lower_case
        self.strips_accents = do_lower_case if strip_accents is None else strip_accents
        self._characters = _CharacterTable()
        self.split_word = _Cache(self._split_word).__getitem__

    def tokenize(self, text: str) -> list[str]:
        """Splits a text into words and punctuation signs."""
        tokens: list[str] = []
        for word in self.cleaned(text).split():
            tokens.extend(self.split_word(word))
        return tokens

    def cleaned(self, text: str) -> str:
        """Returns a text with spaces where words end, but for the ends that `split_word` finds."""
        if text.isascii() and text.isprintable():  # nothing would be replaced
            return text
        return text.translate(self._characters)

    def _split_word(self, word: str) -> tuple[str, ...]:
        """Splits a word without whitespace at its punctuation signs."""
        if word.isascii():  # such words have no accents
            return tuple((word.lower() if self.do_lower_case else word).translate(_SIGNS).split())
        if self.do_lower_case:
            word = word.lower()
        if self.strips_accents:
            word = without_accents(word)
        spaced = "".join(f" {char} " if is_punctuation(char) else char for char in word)
        return tuple(spaced.split())

    def words_with_offsets(self, text: str) -> list[list[Piece]]:
        """Returns the words of `tokenize` as characters with their places in the text; it is
        slow."""
        cleaned = [
            char._replace(string=part)
            for char in offsets.characters(text)
            for part in self._characters[ord(char.string)]
        ]
        result = []
        # The order is the order of `_split_word`: lowering may add marks, as to "İ".
        for word in offsets.words(cleaned):
            if self.do_lower_case:
                word = offsets.lowered(word)
            if self.strips_accents:
                word = offsets.normalized("NFD", word)
                word = [char for char in word if unicodedata.category(char.string) != "Mn"]
            spaced: list[Piece] = []
            for char in word:
                space = [char._replace(string=" ")] if is_punctuation(char.string) else []
                spaced += [*space, char, *space]
            result += offsets.words(spaced)
        return result


class WordpieceTokenizer:
    """Splits words into the longest pieces of the vocabulary, greedily from the left; pieces inside
    a word have the prefix `##`, and a word that pieces cannot cover is unknown. Of what stands for
    whole words alone (`whole_words`), no other word gets a piece."""

    def __init__(
        self, vocab: dict[str, int], unk_token: str = UNK, max_input_chars_per_word: int = 200
    ):
        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word
        self.whole_words = whole_words(vocab)
        self._parts = vocab.keys() - self.whole_words.keys()
        self._longest = max(map(len, self._parts), default=0)
        self.pieces = _Cache(self._pieces).__getitem__

    def tokenize(self, text: str) -> list[str]:
        """Splits the words of a text that `BasicTokenizer` has separated by whitespace."""
        return [piece for word in text.split() for piece in self.pieces(word)]

    def _pieces(self, word: str) -> tuple[str, ...]:
        if len(word) > self.max_input_chars_per_word:
            return (self.unk_token,)
        if word in self.whole_words:
            return (word,)
        pieces: list[str] = []
        start = 0
        while start < len(word):
            prefix = CONTINUATION if start else ""
            # No piece of the vocabulary is longer, so a long word is not tried in all lengths.
            longest = self._longest - len(prefix)
            for end in range(min(len(word), start + longest), start, -1):
                piece = prefix + word[start:end]
                if piece in self._parts:
                    break
            else:
                return (self.unk_token,)
            pieces.append(piece)
            start = end
        return tuple(pieces)


def is_punctuation(char: str) -> bool:
    """Returns True for Unicode's punctuation and for ASCII signs that are not letters or digits."""
    code = ord(char)
    # Unicode calls `^`, `$` and the backquote symbols, but BERT treats them as punctuation.
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(char).startswith("P")


def without_accents(text: str) -> str:
    """Returns a text decomposed (NFD), without nonspacing marks."""
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(char for char in decomposed if unicodedata.category(char) != "Mn")


_SIGNS = {code: f" {chr(code)} " for code in range(128) if is_punctuation(chr(code))}


def is_cjk(char: str) -> bool:
    """Returns True for a CJK ideograph, which is a word of its own in BERT."""
    return any(first <= ord(char) <= last for first, last in CJK_BLOCKS)


def stands_alone(char: str) -> bool:
    """Returns whether a character is always a word of its own, with any casing."""
    return is_cjk(char) or is_punctuation(char)


def cleaned(code: int) -> str:
    """Returns what a character, given by its code, becomes when text is cleaned up."""
    char = chr(code)
    category = unicodedata.category(char)
    if char in "\t\n\r" or category == "Zs":
        return " "
    if code in (0, 0xFFFD) or category in ("Cc", "Cf"):
        return ""
    return f" {char} " if is_cjk(char) else char


class _CharacterTable(dict):
    """Holds what `str.translate` replaces to clean text up; it is filled as characters occur."""

    def __missing__(self, code: int) -> str:
        self[code] = cleaned(code)
        return self[code]
