"""A network with further words in its vocabulary."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from bert_estimator.interchange.network_variables import MASKED_LM
from bert_estimator.interchange.source import Source
from bert_estimator.tokenization import FullTokenizer, own_words, write_vocab

# The weights with a row for each token.
_OF_TOKENS = ("bert/embeddings/word_embeddings", f"{MASKED_LM}/output_bias")


def extended(
    source: Source, tokenizer: FullTokenizer, words: Sequence[str], vocab_file: str
) -> Source:
    """Returns a network whose vocabulary, written to `vocab_file`, has further words; the rows of a
    word are the means of the rows of the pieces that stood for it."""
    before = tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size))
    tokens = own_words.with_words(before, words)
    write_vocab(tokens, vocab_file)
    ids = {token: number for number, token in enumerate(tokens)}
    pieces = {ids[w]: tokenizer.wordpiece_tokenizer.pieces(w) for w in words}
    rows_of = {place: tokenizer.convert_tokens_to_ids(p) for place, p in pieces.items()}
    # At the end, the token that lists the words is as padding, which is never predicted.
    rows_of |= {i: [tokenizer.pad_id] for i in range(len(before), len(tokens)) if i not in rows_of}
    rows = max(len(tokens), source.config.vocab_size)

    def read(name):
        value = source.read(name)
        if name not in _OF_TOKENS:
            return value
        further = np.zeros([rows - len(value), *value.shape[1:]], np.float32)
        made = np.concatenate([value, further])
        for place, of_pieces in rows_of.items():
            made[place] = value[of_pieces].mean(axis=0, dtype=np.float64)
        return made

    shapes = {n: [rows, *s[1:]] if n in _OF_TOKENS else s for n, s in source.shapes.items()}
    config = dataclasses.replace(source.config, vocab_size=rows)
    # The further words could change what a vocabulary tells of its casing.
    casing = (source.casing or tokenizer.casing)._asdict()
    return dataclasses.replace(
        source, config=config, vocab_file=vocab_file, shapes=shapes, read=read, **casing
    )
