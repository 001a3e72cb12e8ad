"""Words of one's own in a WordPiece vocabulary: which are worth an entry, and where it goes."""

import itertools
import re
from collections.abc import Mapping, Sequence

from bert_estimator.storage import remote
from bert_estimator.system import disk_files
from bert_estimator.tokenization.wordpiece import (
    WHOLE_WORDS,
    FullTokenizer,
    stands_alone,
    whole_words,
)

_LONGEST = 100  # characters; no program takes words of more than 200
_UNUSED = re.compile(r"\[unused\d+\]")


def worthwhile(counts: Mapping[str, int], tokenizer: FullTokenizer, number: int) -> list[str]:
    """Returns the words that save most pieces of a text if they get entries, the best first, at
    most `number`; the counts are of the text's words, cased as the tokenizer cases them."""
    saved = {}
    for word, count in counts.items():
        pieces = tokenizer.wordpiece_tokenizer.pieces(word)
        if len(pieces) > 1 and len(word) <= _LONGEST and any(map(str.isalpha, word)):
            saved[word] = count * (len(pieces) - 1)
    return sorted(saved, key=lambda word: (-saved[word], word))[:number]


def num_pieces(counts: Mapping[str, int], tokenizer: FullTokenizer) -> int:
    """Returns how many pieces the counted words are cut into."""
    pieces = tokenizer.wordpiece_tokenizer.pieces
    return sum(count * len(pieces(word)) for word, count in counts.items())


def read(path: str, tokenizer: FullTokenizer) -> list[str]:
    """Returns the words of a file's lines that the vocabulary lacks, cased as the tokenizer cases
    them; raises ValueError for a line that is not a word."""
    with disk_files.reading(remote.local(path)) as reader:
        data = reader.read()
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is not UTF-8: {error.reason} at byte {error.start}") from None
    words: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        parts = tokenizer.basic_tokenizer.tokenize(line)
        if len(parts) > 1:
            raise ValueError(
                f"{path}:{number}: {line.strip()!r} is {' + '.join(parts)}, since spaces and signs "
                "separate words, and so do Chinese characters. Give a word in each line"
            )
        if parts and len(parts[0]) > _LONGEST:
            raise ValueError(f"{path}:{number}: a word can have at most {_LONGEST} characters")
        words.update((word, None) for word in parts if word not in tokenizer.vocab)
    return list(words)


def with_words(tokens: Sequence[str], words: Sequence[str]) -> list[str]:
    """Returns a vocabulary with further words, in the places of [unused0] and so on, and then at
    its end; another such place gets the token that lists them (`wordpiece.whole_words`)."""
    tokens, ids = list(tokens), list(whole_words({t: i for i, t in enumerate(tokens)}).values())
    listing = next((i for i, token in enumerate(tokens) if token.startswith(WHOLE_WORDS)), None)
    # A sign or a Chinese character never begins another word.
    is_listed = [not stands_alone(word[0]) for word in words]
    needs_listing = listing is None and any(is_listed)
    number = len(words) + needs_listing
    places = [i for i, token in enumerate(tokens) if _UNUSED.fullmatch(token)][:number]
    places += range(len(tokens), len(tokens) + number - len(places))
    if needs_listing:
        listing = places.pop(0)
    tokens += [""] * (max(listing or 0, *places) + 1 - len(tokens))
    for word, place in zip(words, places, strict=True):
        tokens[place] = word
    ids = sorted([*ids, *itertools.compress(places, is_listed)])
    runs = itertools.groupby(enumerate(ids), lambda pair: pair[1] - pair[0])
    spans = ([number for _, number in run] for _, run in runs)
    parts = (f"{s[0]}-{s[-1]}" if s[1:] else str(s[0]) for s in spans)
    if ids:
        tokens[listing] = f"{WHOLE_WORDS}{','.join(parts)}]"
    return tokens
