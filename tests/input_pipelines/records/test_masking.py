import itertools

import numpy as np

from bert_estimator.tokenization import open_tokenizer, train_sentencepiece
from input_pipelines.records.masking import DynamicMasking, Masking

CLS, SEP, MASK = 2, 3, 4


def masking(tokenizer, prob=0.15, most=20, whole_words=False):
    return Masking.for_tokenizer(tokenizer, prob, most, whole_words)


def test_for_tokenizer_reads_the_vocabulary(tokenizer):
    found = masking(tokenizer)
    assert (found.vocab_size, found.mask_id) == (50, MASK)
    assert found.continuations == {45, 46, 47, 48, 49}


def test_for_a_sentencepiece_tokenizer(tmp_path):
    path = str(tmp_path / "spm.model")
    train_sentencepiece(["the cat sat on the mat, a dog and the cats"] * 20, path, 30, "bpe")
    tokenizer = open_tokenizer(path)
    found = masking(tokenizer, whole_words=True)
    assert (found.vocab_size, found.mask_id) == (30, MASK)
    pieces = tokenizer.convert_ids_to_tokens(range(30))
    assert "," in pieces and len(found.continuations) > 5
    assert found.continuations == {
        index for index, piece in enumerate(pieces) if piece[0] not in "\u2581,<["
    }
    # Whole words of text are masked together.
    ids = [CLS, *tokenizer.encode("the cats, a mat"), SEP]
    starts = [p for p, index in enumerate(ids) if index not in found.continuations]
    words = [set(range(*ends)) for ends in itertools.pairwise(starts)]
    assert max(map(len, words)) > 1
    rows = np.tile(ids, (50, 1))
    masked = DynamicMasking(found, seed=1).mask(
        rows,
        (rows != CLS) & (rows != SEP),
        np.full(50, len(ids)),
        np.arange(50),
        np.zeros(50, np.int64),
    )
    for positions, weights in zip(masked.positions, masked.weights, strict=True):
        chosen = set(positions[weights > 0].tolist())
        assert all(word <= chosen or not word & chosen for word in words)
