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

_MOST_WORDS = 1 << 22  # a text of a few gigabytes has fewer different words
_MOST_CHUNKS = 1 << 20
_CHARACTERS_AT_ONCE = 1 << 16
_MOST_SAMPLED_CHARACTERS = 1 << 26


class WordCounts:
    """Counts words; if there are too many different words, it forgets the rarest."""

    def __init__(self, split: Callable[[str], Iterable[str]], most_words: int = _MOST_WORDS):
        """Makes an empty count; for `split`, spaces must separate words, whatever is beside
        them."""
        self.words: collections.Counter[str] = collections.Counter()
        # Character -> its count in the words that were forgotten.
        self.characters_forgotten: collections.Counter[str] = collections.Counter()
        # The count that a word had at least when others were forgotten; 0 if none was.
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
    """Draws texts at random, in their order, so that they fit into memory; returns them with the
    share of all texts that they are."""
    # The same texts give the same sample, and all of them if they are few enough.
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
        # Texts stay or go by the number that they drew: when the share is halved, the texts that
        # came before have the same chance as the texts that follow.
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
    """Trains a vocabulary of exactly `vocab_size` tokens, always the same from the same texts."""
    counted = count_words(texts, do_lower_case, strip_accents)
    return vocabulary_of(counted, vocab_size, character_coverage)


def count_words(
    texts: Iterable[str], do_lower_case: bool, strip_accents: bool | None
) -> WordCounts:
    """Counts the words of texts, as a tokenizer of this casing splits them."""
    counted = WordCounts(BasicTokenizer(do_lower_case, strip_accents).tokenize)
    counted.add(texts)
    return counted


def unknown_words_share(counted: WordCounts, vocab: Sequence[str]) -> float:
    """Returns the share of the counted words that are [UNK] in a vocabulary trained of them."""
    known = set(vocab)
    unknown = sum(
        count
        for word, count in counted.words.items()
        # Any other word is covered by its characters, if not by longer pieces.
        if len(word) > _MAX_WORD_LENGTH or not known.issuperset(word)
    )
    return unknown / max(counted.words.total(), 1)


def vocabulary_of(
    counted: WordCounts, vocab_size: int, character_coverage: float = CHARACTER_COVERAGE
) -> list[str]:
    """Returns the vocabulary of counted words, whose characters cover a share of the text."""
    word_counts = counted.words
    alphabet = _alphabet(word_counts, counted.characters_forgotten, character_coverage)
    if not alphabet:
        raise ValueError("the text to train a vocabulary from does not have words. Give more text.")
    # The special tokens come first, so that [PAD] is 0; then the characters, with and without `##`,
    # so that words made of them never become [UNK]; then pieces, in the order of their merges.
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
    """Trains a SentencePiece model like ALBERT's, "unigram" or "bpe"; returns the share of the
    sentences, or of the characters, that it was trained from."""
    model = io.BytesIO()
    casing = Casing(do_lower_case, strip_accents)
    cleaned = (preprocess(text, *casing).replace(_RESERVED, " ") for text in texts)
    options = {}
    if model_type == "bpe":
        counted = WordCounts(_trainable_words)
        counted.add(cleaned)  # all words but the rarest, if there are too many
        lines, options = _lines_of_counts(counted.words), {"input_format": "tsv"}
        share = _share_of_characters(counted)
    else:
        # A unigram model needs sentences, in lines that are not too long for SentencePiece.
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
            # `<pad>`, `<unk>`, [CLS], [SEP] and [MASK] have the first ids, as in ALBERT's models.
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
    """Yields a text in parts of at most this many characters, broken at spaces if it has any."""
    start = 0
    while len(text) - start > most:
        end = text.rfind(" ", start + 1, start + most + 1)
        if end < 0:
            # Chinese has no spaces. A combining mark stays with the character before it.
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
    """Returns the most frequent characters that cover a share of the text, by code point; `further`
    has the counts of characters in further words."""
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
    """Returns the characters that get a piece with `##`: all of them if the letters are Latin."""
    # The few signs among them do not need it, since they are always words of their own, but the ids
    # of Latin vocabularies stay what they were.
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
    # Words with other characters are [UNK], so their pieces would be of no use.
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
