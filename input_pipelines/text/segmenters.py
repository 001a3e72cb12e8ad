"""Says what a word is in text whose words spaces do not cut, by a segmenter such as jieba.

A segmenter is a function of a text that returns its words in order. The tokens stay as they are,
but a token is marked if it continues the word of the token before it; two words that share a token
become one. This module does not import TensorFlow.
"""

import functools
import importlib
import itertools
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable

import numpy as np

from bert_estimator.tokenization import Tokenizer
from bert_estimator.tokenization.wordpiece import stands_alone

ID_TYPE = np.dtype("<u4")  # of marked ids
_MARK = 1 << 31  # is added to the id of a token that continues a word
_SHOWN = 60  # characters of a text in a message


@functools.cache
def open_segmenter(name: str) -> Callable[[str], Iterable[str]]:
    """Returns jieba's segmenter, or the function that `module:function` names; raises ValueError if
    it cannot be imported, or is not a function."""
    if name == "jieba":
        return _open_jieba()
    module, _, function = name.partition(":")
    if not (module and function):
        raise ValueError(f"{name!r} must be jieba, or a function as module:function")
    # A console command does not look for modules in the current directory, as `python -m` does.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        segment = getattr(importlib.import_module(module), function)
    except Exception as error:  # a module of the user may raise any
        raise ValueError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(segment):
        raise ValueError(f"{name} is not a function, but {segment!r:.60}; name a function of texts")
    return segment


def source_files(name: str) -> list[str]:
    """Returns the files of a segmenter's module, and of the module that its function is from."""
    segment, (module, _, function) = open_segmenter(name), name.partition(":")
    modules = [module, getattr(segment, "__module__", None) if function else None]
    files = [getattr(sys.modules.get(each), "__file__", None) for each in dict.fromkeys(modules)]
    return list(filter(None, files))


def _open_jieba():
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is of 2020
            import jieba
    except ImportError:
        raise ValueError(
            "jieba is not installed. Install it: pip install 'bert-estimator[jieba]'"
        ) from None
    jieba.setLogLevel(logging.WARNING)  # otherwise it says that it loads its words
    return functools.partial(_cut, jieba.lcut)


def _cut(segment, text):
    """Returns jieba's words, of which it cuts some with accents, and scripts other than Chinese,
    into characters: what neither spaces, signs nor Chinese characters separate is joined again."""
    words = []
    for word in segment(text):
        border = words[-1][-1] + word[0] if words else " "
        if any(char.isspace() or stands_alone(char) for char in border):
            words.append(word)
        else:
            words[-1] += word
    return words


class Words:
    """Turns text into the ids of a tokenizer's tokens, which are marked if a segmenter is named,
    and says which of them begin a word."""

    def __init__(self, tokenizer: Tokenizer, name: str | None):
        self._tokenizer, self._name = tokenizer, name
        self._segment = open_segmenter(name) if name else None
        tokens = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
        self._continues = np.array(list(map(tokenizer.is_continuation, tokens)))

    def begin(self, ids: np.ndarray) -> np.ndarray:
        """Returns whether each token begins a word, bool, for integers of any shape."""
        return ~(unmarked(ids)[1] if self._segment else self._continues[ids])

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text's tokens."""
        if not self._segment:
            return self._tokenizer.encode(text)
        words, ids = self._words(text), self._tokenizer.encode(text)
        of_words = list(map(self._tokenizer.encode, words))
        # Words alone are mostly cut into the same tokens. To look for the places of the tokens in
        # the text takes ten times as long.
        if list(itertools.chain.from_iterable(of_words)) == ids:
            firsts = lasts = np.repeat(np.arange(len(words)), list(map(len, of_words)))
        else:
            firsts, lasts = self._places(text, words)
        marked = np.array(ids, np.int64)
        marked[1:][firsts[1:] == lasts[:-1]] += _MARK
        return marked.tolist()

    def _words(self, text):
        said = f"--word_segmenter={self._name} of the text {text[:_SHOWN]!r}"
        try:
            words = self._segment(text)
            if isinstance(words, str):
                raise TypeError("returned a text, not a list of words")
            words = list(words)
            joined = "".join(words)
        except Exception as error:  # a function of the user may raise any
            raise ValueError(f"{said}: {type(error).__name__}: {error}") from error
        if "".join(joined.split()) != "".join(text.split()):
            raise ValueError(
                f"{said} is {str(words)[:_SHOWN]}; it must be a list of the text's words, with all "
                "characters but spaces in their order"
            )
        return words

    def _places(self, text, words):
        """Returns the number of the word in which each token begins, and in which it ends."""
        sizes = [len("".join(word.split())) for word in words]
        owners = np.repeat(np.arange(len(words)), sizes)  # of the characters that are not spaces
        before = np.cumsum([0, *(not char.isspace() for char in text)])
        pieces = self._tokenizer.tokenize_with_offsets(text)
        # A token that only stands for a space belongs to the word after it.
        firsts = np.minimum(before[[piece.start for piece in pieces]], len(owners) - 1)
        lasts = np.maximum(before[[piece.end for piece in pieces]] - 1, firsts)
        return owners[firsts], owners[lasts]


def unmarked(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ids of tokens without marks, and whether each continues a word."""
    return ids & (_MARK - 1), ids >= _MARK
