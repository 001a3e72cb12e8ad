import collections
import itertools
import random

import pytest

from bert_estimator.tokenization import open_tokenizer, train_sentencepiece
from input_pipelines.masking import Masking, create_masked_lm_predictions

CLS, SEP, MASK = 2, 3, 4


def masking(tokenizer, prob=0.15, most=20, whole_words=False):
    return Masking.for_tokenizer(tokenizer, prob, most, whole_words)


def sequence(length_a, length_b):
    a = [5 + i % 40 for i in range(length_a)]
    b = [25 + i % 20 for i in range(length_b)]
    return [CLS, *a, SEP, *b, SEP]


def test_for_tokenizer_reads_the_vocabulary(tokenizer):
    found = masking(tokenizer)
    assert (found.vocab_size, found.mask_id, found.unmaskable) == (50, MASK, {CLS, SEP})
    assert found.continuations == {45, 46, 47, 48, 49}


def test_for_a_sentencepiece_tokenizer(tmp_path):
    path = str(tmp_path / "spm.model")
    train_sentencepiece(["the cat sat on the mat, a dog and the cats"] * 20, path, 30, "bpe")
    tokenizer = open_tokenizer(path)
    found = masking(tokenizer, whole_words=True)
    assert (found.vocab_size, found.mask_id, found.unmaskable) == (30, MASK, {CLS, SEP})
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
    for seed in range(50):
        _, positions, _ = create_masked_lm_predictions(ids, found, random.Random(seed))
        assert all(word <= set(positions) or not word & set(positions) for word in words)


def test_pinned_masking(tokenizer):
    ids = sequence(9, 8)
    result = create_masked_lm_predictions(ids, masking(tokenizer, 0.3), random.Random(1))
    assert result == (
        [2, 5, 6, 4, 8, 4, 10, 11, 4, 13, 3, 25, 26, 27, 4, 4, 4, 31, 32, 3],
        [3, 5, 8, 14, 15, 16],
        [7, 9, 12, 28, 29, 30],
    )


@pytest.mark.parametrize(
    ("length", "prob", "most", "number"),
    [(20, 0.15, 20, 3), (37, 0.15, 20, 6), (100, 0.15, 10, 10), (5, 0.01, 20, 1), (5, 1.0, 9, 2)],
)
def test_number_of_predictions(tokenizer, length, prob, most, number):
    ids = sequence(1, length - 4)
    _, positions, labels = create_masked_lm_predictions(
        ids, masking(tokenizer, prob, most), random.Random(0)
    )
    assert len(positions) == len(labels) == number


def test_meaning_of_the_results(tokenizer):
    rng = random.Random(3)
    for length in range(2, 60):
        ids = sequence(length, length)
        masked, positions, labels = create_masked_lm_predictions(ids, masking(tokenizer), rng)
        assert positions == sorted(set(positions))
        assert labels == [ids[position] for position in positions]
        assert not {CLS, SEP} & set(labels)
        unchosen = set(range(len(ids))) - set(positions)
        assert all(masked[position] == ids[position] for position in unchosen)


def test_shares_are_80_10_10(tokenizer):
    rng = random.Random(0)
    counts = collections.Counter()
    ids = [CLS, *[5] * 50, SEP, *[5] * 50, SEP]
    for _ in range(1000):
        masked, positions, _ = create_masked_lm_predictions(ids, masking(tokenizer), rng)
        for position in positions:
            kind = {MASK: "mask", 5: "kept"}.get(masked[position], "random")
            counts[kind] += 1
    total = counts.total()
    assert total == 15000
    # Five standard deviations; a random token is [MASK] or the same one in 2 of 50 cases.
    assert abs(counts["mask"] / total - 0.802) < 0.0163
    assert abs(counts["kept"] / total - 0.102) < 0.0124
    assert abs(counts["random"] / total - 0.096) < 0.0121


def test_random_tokens_come_from_the_whole_vocabulary(tokenizer):
    rng = random.Random(0)
    ids = [CLS, *[5] * 50, SEP, *[5] * 50, SEP]
    seen = set()
    for _ in range(1500):
        seen |= set(create_masked_lm_predictions(ids, masking(tokenizer), rng)[0])
    assert seen == set(range(50))


def test_whole_words_are_masked_together(tokenizer):
    # Words: 5 | 6 45 46 | 7 | 8 47, and in the second segment 9 48 | 10.
    ids = [CLS, 5, 6, 45, 46, 7, 8, 47, SEP, 9, 48, 10, SEP]
    words = [{1}, {2, 3, 4}, {5}, {6, 7}, {9, 10}, {11}]
    seen = set()
    for seed in range(200):
        _, positions, _ = create_masked_lm_predictions(
            ids, masking(tokenizer, 0.3, whole_words=True), random.Random(seed)
        )
        chosen = set(positions)
        # After the three single tokens no word of two pieces fits into four.
        assert len(chosen) == 4 or chosen == {1, 5, 11}
        for number, word in enumerate(words):
            assert word <= chosen or not word & chosen
            if word <= chosen:
                seen.add(number)
    assert seen == set(range(len(words)))


def test_a_cut_word_does_not_join_the_segment_before(tokenizer):
    ids = [CLS, 45, 5, SEP, 46, 6, SEP]
    for seed in range(20):
        _, positions, _ = create_masked_lm_predictions(
            ids, masking(tokenizer, 0.15, whole_words=True), random.Random(seed)
        )
        assert len(positions) == 1


def test_a_word_longer_than_what_may_be_masked_stays(tokenizer):
    ids = [CLS, 5, 45, 46, SEP, 6, 47, SEP]
    result = create_masked_lm_predictions(
        ids, masking(tokenizer, 0.01, whole_words=True), random.Random(0)
    )
    assert result == (ids, [], [])


def test_same_generator_same_result(tokenizer):
    ids = sequence(30, 30)
    results = [
        create_masked_lm_predictions(ids, masking(tokenizer), random.Random(seed))
        for seed in (7, 7, 8)
    ]
    assert results[0] == results[1] != results[2]
