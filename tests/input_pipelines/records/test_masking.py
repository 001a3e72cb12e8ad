import itertools

import numpy as np

from bert_estimator.tokenization import open_tokenizer, train_sentencepiece
from input_pipelines.records.masking import MaskedExamples

CLS, SEP = 2, 3


def test_for_a_wordpiece_tokenizer(tokenizer):
    examples = MaskedExamples(tokenizer, 32, 0.15, 20, "token", seed=1)
    assert examples.vocab_size == 50
    assert np.flatnonzero(examples.continues).tolist() == [45, 46, 47, 48, 49]


def test_for_a_sentencepiece_tokenizer(tmp_path):
    path = str(tmp_path / "spm.model")
    train_sentencepiece(["the cat sat on the mat, a dog and the cats"] * 20, path, 30, "bpe")
    tokenizer = open_tokenizer(path)
    examples = MaskedExamples(tokenizer, 32, 0.15, 20, "word", seed=1)
    assert examples.vocab_size == 30
    continuations = set(np.flatnonzero(examples.continues).tolist())
    pieces = tokenizer.convert_ids_to_tokens(range(30))
    assert "," in pieces and len(continuations) > 5
    assert continuations == {
        index for index, piece in enumerate(pieces) if piece[0] not in "\u2581,<["
    }
    # Whole words of text are masked together.
    ids = [CLS, *tokenizer.encode("the cats, a mat"), SEP]
    starts = [p for p, index in enumerate(ids) if index not in continuations]
    words = [set(range(*ends)) for ends in itertools.pairwise(starts)]
    assert max(map(len, words)) > 1
    rows = np.tile(ids, (50, 1))
    masked = examples.mask(
        rows,
        (rows != CLS) & (rows != SEP),
        np.full(50, len(ids)),
        np.arange(50),
        np.zeros(50, np.int64),
    )
    for positions, weights in zip(masked.positions, masked.weights, strict=True):
        chosen = set(positions[weights > 0].tolist())
        assert all(word <= chosen or not word & chosen for word in words)
