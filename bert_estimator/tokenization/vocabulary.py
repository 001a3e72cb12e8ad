"""Trains vocabularies from text: WordPiece's list of tokens, or a SentencePiece model.

Words are counted in bounded memory, whatever the text is. For WordPiece, SentencePiece's byte-pair
trainer gets the words that `BasicTokenizer` makes, with their counts. Pieces at the beginning of
words become tokens, and other pieces get the prefix `##`.
"""

import collections
import io
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random

import sentencepiece

from bert_estimator.system import disk_files
from bert_estimator.system.errors import ArgumentError
from bert_estimator.tokenization.casing import Casing
from bert_estimator.tokenization.sentencepiece_tokenizer import preprocess
from bert_estimator.tokenization.wordpiece import (
    CLS,
    CONTINUATION,
    MASK,
    SEP,
    SPECIAL_TOKENS,
    BasicTokenizer,
    stands_alone,
)

_MOST_WORDS = 1 << 22
_MOST_CHUNKS = 1 << 20
_CHARACTERS_AT_ONCE = 1 << 16
_MOST_SAMPLED_CHARACTERS = 1 << 26


class WordCounts:
    """Counts words; if there are too many different words, it forgets the rarest.

    A text of a few gigabytes has fewer different words than the limit; then the counts are exact.

    Attributes:
      words: word -> count.
      characters_forgotten: character -> its count in the words that were forgotten.
      least: the count that a word had at least when others were forgotten; 0 if none was.
    """

    def __init__(self, split: Callable[[str], Iterable[str]], most_words: int = _MOST_WORDS):
        """Makes an empty count.

        Args:
          split: function that splits a text into words. Spaces separate words for it, whatever is
            beside them: the words of "a b" are the words of "a", then the words of "b".
          most_words: how many different words are counted, at most.
        """
        self.words: collections.Counter[str] = collections.Counter()
        self.characters_forgotten: collections.Counter[str] = collections.Counter()
        self.least = 0
        self._split, self._most_words = split, most_words
        # What spaces separate is split once for all its occurrences.
        self._chunks: collections.Counter[str] = collections.Counter()

    def add(self, texts: Iterable[str]) -> None:
        """Counts the words of texts."""
        for joined in _joined(texts):
            self._chunks.update(joined.split(" "))
            if len(self._chunks) > _MOST_CHUNKS:
                self._split_chunks()
        self._split_chunks()

    def _split_chunks(self):
        words = self.words
        for chunk, count in self._chunks.items():
            for word in self._split(chunk):
                words[word] += count
        self._chunks.clear()
        if len(words) > self._most_words:
            self._forget()

    def _forget(self):
        """Forgets the rarest words, so that at most half of the limit is left."""
        counts = sorted(self.words.values(), reverse=True)
        self.least = max(self.least, counts[self._most_words // 2] + 1)
        for word in [word for word, count in self.words.items() if count < self.least]:
            count = self.words.pop(word)
            for char in word:
                self.characters_forgotten[char] += count


def _joined(texts: Iterable[str]) -> Iterator[str]:
    """Yields texts joined by spaces to strings that are worth a call."""
    together: list[str] = []
    size = 0
    for text in texts:
        together.append(text)
        size += len(text)
        if size >= _CHARACTERS_AT_ONCE:
            yield " ".join(together)
            together, size = [], 0
    if together:
        yield " ".join(together)


def sample(
    texts: Iterable[str], most_characters: int = _MOST_SAMPLED_CHARACTERS
) -> tuple[list[str], float]:
    """Draws texts at random, in their order, so that they fit into memory.

    The same texts give the same sample, and all of them if they are few enough.

    Returns:
      (the texts, the share of all texts that they are).
    """
    random = Random(0)
    kept: list[tuple[float, str]] = []
    number = size = 0
    share = 1.0
    for text in texts:
        number += 1
        place = random.random()
        if place >= share:
            continue
        kept.append((place, text))
        size += len(text)
        while size > most_characters and len(kept) > 1:
            share /= 2
            kept = [(place, text) for place, text in kept if place < share]
            size = sum(len(text) for _, text in kept)
    return [text for _, text in kept], len(kept) / max(number, 1)


CHARACTER_COVERAGE = 0.9999

_WORD_START = "\u2581"  # SentencePiece's mark of a space; a word that holds it cannot be trained.
_RESERVED = "\u2585"  # SentencePiece leaves out the lines that hold it.
_MAX_WORD_LENGTH = 200
# SentencePiece leaves out lines of more than 4192 bytes; a character has 4 at most.
_MAX_LINE_LENGTH = 1000


def train_vocabulary(
    texts: Iterable[str],
    vocab_size: int,
    do_lower_case: bool = True,
    character_coverage: float = CHARACTER_COVERAGE,
    strip_accents: bool | None = None,
) -> list[str]:
    """Trains a vocabulary of exactly `vocab_size` tokens; deterministic for the same texts.

    The tokens are, in this order:

    1. the special tokens, in the order of `SPECIAL_TOKENS`, so `[PAD]` is 0;
    2. the characters that cover `character_coverage` of the text, with and without `##`, so that
       words made of these characters never become `[UNK]`; ideographs and punctuation, which are
       always words of their own, without `##` alone, unless all letters of the text are Latin;
    3. pieces, in the order of their merges.

    Args:
      texts: sentences, in any order; they are read once. Memory holds at most 4 million different
        words, the most frequent ones.
      vocab_size: number of tokens, the special tokens included.
      do_lower_case: `do_lower_case` of the tokenizer that will use the vocabulary.
      character_coverage: share of the characters of the text, in (0, 1].
      strip_accents: `strip_accents` of that tokenizer.

    Raises:
      ArgumentError: `vocab_size` is too small for the characters, or too large for the text.
      ValueError: the text does not have words.
    """
    counted = count_words(texts, do_lower_case, strip_accents)
    return vocabulary_of(counted, vocab_size, character_coverage)


def count_words(
    texts: Iterable[str], do_lower_case: bool, strip_accents: bool | None
) -> WordCounts:
    """Counts the words of texts; see `train_vocabulary` for the arguments."""
    counted = WordCounts(BasicTokenizer(do_lower_case, strip_accents).tokenize)
    counted.add(texts)
    return counted


def unknown_words_share(counted: WordCounts, vocab: Sequence[str]) -> float:
    """Returns the share of the counted words that are [UNK] in a vocabulary that was trained of
    them: words of too many characters, and words with a character that the vocabulary lacks."""
    known = set(vocab)
    unknown = sum(
        count
        for word, count in counted.words.items()
        if len(word) > _MAX_WORD_LENGTH or not known.issuperset(word)
    )
    return unknown / max(counted.words.total(), 1)


def vocabulary_of(
    counted: WordCounts, vocab_size: int, character_coverage: float = CHARACTER_COVERAGE
) -> list[str]:
    """Returns the vocabulary of counted words; see `train_vocabulary`."""
    word_counts = counted.words
    alphabet = _alphabet(word_counts, counted.characters_forgotten, character_coverage)
    if not alphabet:
        raise ValueError("the text to train a vocabulary from does not have words. Give more text.")
    vocab = list(SPECIAL_TOKENS) + alphabet + list(map(CONTINUATION.__add__, _inner(alphabet)))
    if len(vocab) > vocab_size:
        rule = (
            f"the special tokens and the text's {len(alphabet)} characters already need "
            f"{len(vocab)}. Ask for more tokens"
        )
        raise ArgumentError("vocab_size", rule, vocab_size)
    seen = set(vocab)
    for piece in _merged_pieces(word_counts, alphabet, vocab_size):
        if len(vocab) == vocab_size:
            break
        if piece not in seen:
            seen.add(piece)
            vocab.append(piece)
    if len(vocab) < vocab_size:
        rule = (
            f"the text ({len(word_counts)} distinct words) gives only {len(vocab)} tokens. Ask for "
            f"{len(vocab)}, or give more text"
        )
        raise ArgumentError("vocab_size", rule, vocab_size)
    return vocab


def write_vocab(vocab: Sequence[str], vocab_file: str) -> None:
    """Writes one token per line, either the complete file or nothing."""
    with disk_files.writer(vocab_file) as file:
        file.writelines(token + "\n" for token in vocab)


def train_sentencepiece(
    texts: Iterable[str],
    model_file: str,
    vocab_size: int,
    model_type: str = "unigram",
    do_lower_case: bool = True,
    character_coverage: float = CHARACTER_COVERAGE,
    strip_accents: bool | None = None,
) -> float:
    """Trains a SentencePiece model like ALBERT's: `<pad>`, `<unk>`, [CLS], [SEP] and [MASK] first.

    Args:
      texts: sentences, in any order; they are read once. A byte-pair model is trained from all
        words, as `train_vocabulary`; a unigram model from the sentences, or from a random part of
        them if they have more than 67 million characters. What is too long for SentencePiece is
        broken, at spaces if it has any.
      model_file: file to write; it gets its name when it is complete.
      vocab_size: number of pieces, the special pieces included.
      model_type: "unigram" or "bpe".
      do_lower_case: `do_lower_case` of the tokenizer that will use the model.
      character_coverage: share of the characters of the text that get a piece, at least 0.98.
      strip_accents: `strip_accents` of that tokenizer.

    Returns:
      The share of the sentences that a unigram model was trained from, or of the characters that a
      byte-pair model was trained from: it does not see the rarest words if there are too many.

    Raises:
      ValueError: the text does not give a model of this size.
    """
    model = io.BytesIO()
    casing = Casing(do_lower_case, strip_accents)
    cleaned = (preprocess(text, *casing).replace(_RESERVED, " ") for text in texts)
    options = {}
    if model_type == "bpe":
        counted = WordCounts(_trainable_words)
        counted.add(cleaned)
        lines, options = _lines_of_counts(counted.words), {"input_format": "tsv"}
        share = _share_of_characters(counted)
    else:
        lines, share = sample(
            part for line in cleaned for part in _parts(line, _MAX_LINE_LENGTH) if part.strip()
        )
    try:
        sentencepiece.SentencePieceTrainer.train(
            **options,
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=model_type,
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols=[CLS, SEP, MASK],
            num_threads=1,
            minloglevel=2,
        )
    except RuntimeError as error:
        rule = f"SentencePiece cannot make such a model: {error}"
        raise ArgumentError("vocab_size", rule, vocab_size) from None
    with disk_files.writer(model_file, "wb") as file:
        file.write(model.getvalue())
    return share


def _trainable_words(text: str) -> list[str]:
    return [part for word in text.split() for part in _parts(word, _MAX_WORD_LENGTH)]


def _parts(text: str, most: int) -> Iterator[str]:
    """Yields a text in parts of at most this many characters, broken at spaces if it has any.

    Without spaces, as in Chinese, it is broken before a character that is not a combining mark.
    """
    start = 0
    while len(text) - start > most:
        end = text.rfind(" ", start + 1, start + most + 1)
        if end < 0:
            places = range(start + most, start + most // 2, -1)
            end = next((p for p in places if unicodedata.category(text[p])[0] != "M"), places[0])
        yield text[start:end]
        start = end
    yield text[start:]


def _share_of_characters(counted: WordCounts) -> float:
    known = sum(len(word) * count for word, count in counted.words.items())
    return known / max(known + counted.characters_forgotten.total(), 1)


def _lines_of_counts(word_counts: dict[str, int]) -> list[str]:
    """Returns words with their counts as SentencePiece reads them, the most frequent first."""
    return [
        f"{word}\t{count}"
        for word, count in sorted(word_counts.items(), key=lambda item: (-item[1], item[0]))
        if len(word) <= _MAX_WORD_LENGTH
    ]


def _alphabet(
    word_counts: dict[str, int], further: collections.Counter[str], coverage: float
) -> list[str]:
    """Returns the most frequent characters that cover a share of the text, by code point.

    Args:
      word_counts: word -> count.
      further: character -> count in further words.
      coverage: the share.
    """
    counts = collections.Counter(further)
    for word, count in word_counts.items():
        for char in word:
            counts[char] += count
    needed = coverage * counts.total()
    covered = 0
    alphabet = []
    for char, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered >= needed:
            break
        covered += count
        alphabet.append(char)
    return sorted(alphabet)


def _inner(alphabet: Sequence[str]) -> Sequence[str]:
    """Returns the characters that get a piece with `##`: all of them if the letters are Latin.

    The few signs among them do not need it, but the ids of Latin vocabularies stay what they were.
    """
    if all(map(_may_be_of_latin_text, alphabet)):
        return alphabet
    return [char for char in alphabet if not stands_alone(char)]


def _may_be_of_latin_text(char):
    is_latin = char < "\u0100" or unicodedata.name(char, "").startswith("LATIN ")
    return is_latin or not char.isalpha()


def _merged_pieces(
    word_counts: collections.Counter[str], alphabet: Sequence[str], number: int
) -> list[str]:
    """Returns pieces of two characters or more, best first: `number` or more, if possible."""
    known = set(alphabet) - {_WORD_START}
    lines = _lines_of_counts(
        {word: count for word, count in word_counts.items() if known.issuperset(word)}
    )
    if not lines:
        return []
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        input_format="tsv",
        model_type="bpe",
        # A merge of the word's start with a character does not give a piece of its own.
        vocab_size=number + 2 * len(alphabet) + 2,
        hard_vocab_limit=False,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_by_unicode_script=False,
        split_by_number=False,
        unk_id=0,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = []
    for index in range(1, processor.get_piece_size()):
        piece = processor.id_to_piece(index)
        piece = piece[1:] if piece.startswith(_WORD_START) else CONTINUATION + piece
        if len(piece.removeprefix(CONTINUATION)) > 1:
            pieces.append(piece)
    return pieces
