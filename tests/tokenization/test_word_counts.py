import collections

import numpy as np
import pytest

from bert_estimator.tokenization import BasicTokenizer, word_counts
from bert_estimator.tokenization.word_counts import WordCounts, sample

TEXTS = [
    "The cat, the mat.  And a\tcat\u3000of \u535a\u63a8!",
    "",
    " Caf\u00e9\x0bau\u00a0lait \x00\ufffd ",
    "\u03a3\u039f\u03a6\u039f\u03a3 \u0301x \u2028y",
] * 3


@pytest.mark.parametrize("do_lower_case", [True, False])
@pytest.mark.parametrize("most_chunks", [1 << 20, 2])
def test_counts_are_of_the_words_of_the_tokenizer(monkeypatch, do_lower_case, most_chunks):
    monkeypatch.setattr(word_counts, "_MOST_CHUNKS", most_chunks)
    monkeypatch.setattr(word_counts, "_CHARACTERS_AT_ONCE", 40)
    tokenizer = BasicTokenizer(do_lower_case)
    counted = WordCounts(tokenizer.tokenize)
    counted.add(iter(TEXTS))
    expected = collections.Counter()
    for text in TEXTS:
        expected.update(tokenizer.tokenize(text))
    assert counted.words == expected
    assert not counted.characters_forgotten and counted.least == 0


def test_the_rarest_words_are_forgotten(monkeypatch):
    monkeypatch.setattr(word_counts, "_MOST_CHUNKS", 50)
    monkeypatch.setattr(word_counts, "_CHARACTERS_AT_ONCE", 100)
    generator = np.random.default_rng(1)
    numbers = generator.zipf(1.3, size=20000) % 3000
    words = [f"{number}x" for number in numbers.tolist()]
    exact = collections.Counter(words)
    counted = WordCounts(str.split, most_words=400)
    for start in range(0, len(words), 5000):
        counted.add(words[start : start + 5000])
    assert len(counted.words) <= 400
    assert counted.least > 1
    for word, count in exact.most_common(50):  # what is frequent is hardly ever forgotten
        assert count - 5 * counted.least <= counted.words[word] <= count
    # No character is lost.
    characters = collections.Counter("".join(words))
    found = collections.Counter(counted.characters_forgotten)
    for word, count in counted.words.items():
        for char in word:
            found[char] += count
    assert found == characters


def test_a_sample_is_the_text_if_it_is_small():
    texts = [f"text {i}" for i in range(100)]
    assert sample(iter(texts)) == (texts, 1.0)
    assert sample([]) == ([], 0.0)
    assert sample(["long" * 9], most_characters=3) == (["long" * 9], 1.0)


def test_a_sample_is_bounded_in_order_and_spread_evenly():
    texts = [f"text {i:06d}" for i in range(20000)]
    drawn, share = sample(iter(texts), most_characters=36000)
    assert drawn == sorted(set(drawn)) == sample(texts, most_characters=36000)[0]
    assert 17000 < sum(map(len, drawn)) <= 36000
    assert share == len(drawn) / len(texts)
    firsts = sum(text < "text 010000" for text in drawn)
    assert firsts / len(drawn) == pytest.approx(0.5, abs=0.05)
