"""What is read of long texts: the rules by hand, and the features that follow from them."""

import numpy as np
import pytest
from number_features import Numbers

from bert_estimator.command_line.choices import LONG_TEXTS
from input_pipelines.tasks import long_texts
from input_pipelines.tasks.baselines import bag_of_words_accuracy
from input_pipelines.tasks.examples import Example
from input_pipelines.tasks.features import Features
from input_pipelines.tasks.long_texts import CUT, HEAD_TAIL, WINDOWS, LongTexts, kept

TEN = list(range(1, 11))


def features_of(long, *examples, length=8):
    return Features([Example(*example) for example in examples], Numbers(), length, long)


def text(*numbers):
    return " ".join(map(str, numbers))


def test_choices_have_one_order():
    assert LONG_TEXTS == (CUT, HEAD_TAIL, WINDOWS) and LongTexts() == (CUT, None)


def test_what_is_kept_is_what_taking_tokens_away_one_by_one_leaves():
    for first in range(14):
        for second in range(14):
            for room in range(2, 12):
                left = [first, second]
                while sum(left) > room:
                    left[left[0] <= left[1]] -= 1
                assert kept(first, second, room) == tuple(left)


def test_head_and_tail_are_those_of_sun_et_al():
    whole = list(range(1000))
    ((first, second),) = LongTexts(HEAD_TAIL).sequences(whole, [], 510)
    assert (first, second) == ([*whole[:128], *whole[-382:]], [])
    # Each text of a pair keeps as many tokens as if it were cut.
    ((first, second),) = LongTexts(HEAD_TAIL).sequences(TEN, TEN[:7], 9)
    assert (first, second) == ([1, 2, 8, 9, 10], [1, 5, 6, 7])


@pytest.mark.parametrize(
    ("long", "texts", "room", "expected"),
    [
        (LongTexts(WINDOWS), (TEN, []), 4, [(TEN[i : i + 4], []) for i in (0, 2, 4, 6)]),
        (LongTexts(WINDOWS, 3), (TEN, []), 4, [(TEN[i : i + 4], []) for i in (0, 3, 6)]),
        # A stride that is longer than a window would leave tokens out.
        (LongTexts(WINDOWS, 9), (TEN, []), 4, [(TEN[i : i + 4], []) for i in (0, 4, 8)]),
        (LongTexts(WINDOWS, 3), (TEN, [7]), 7, [(TEN[:6], [7]), (TEN[3:9], [7]), (TEN[6:], [7])]),
        (LongTexts(WINDOWS), ([7], TEN), 11, [([7], TEN)]),
        (LongTexts(WINDOWS), ([7], TEN), 9, [([7], TEN[:8]), ([7], TEN[4:])]),
        # Of two long texts, the second is read in windows, beside half of the first.
        (LongTexts(WINDOWS), (TEN, TEN), 12, [(TEN[:6], TEN[:6]), (TEN[:6], TEN[3:9]),
                                              (TEN[:6], TEN[6:])]),
        (LongTexts(WINDOWS), ([], []), 3, [([], [])]),
    ],
)  # fmt: skip
def test_windows_by_hand(long, texts, room, expected):
    assert list(long.sequences(*texts, room)) == expected


@pytest.mark.parametrize("is_pair", [False, True])
def test_windows_lose_no_token_of_the_longer_text_and_begin_with_what_is_cut(is_pair):
    generator = np.random.default_rng(is_pair)
    for _ in range(300):
        lengths = generator.integers(1, 40, size=2) * [1, is_pair]
        texts = [list(range(length)) for length in lengths]
        room, stride = int(generator.integers(2, 30)), int(generator.integers(0, 9))
        rows = list(LongTexts(WINDOWS, stride or None).sequences(*texts, room))
        assert rows[0] == next(LongTexts().sequences(*texts, room))
        longer = 0 if lengths[0] > lengths[1] else 1
        assert set().union(*(row[longer] for row in rows)) == set(texts[longer])
        assert all(row[1 - longer] == rows[0][1 - longer] for row in rows)
        assert max(len(first) + len(second) for first, second in rows) <= room
        assert (len(rows) > 1) == (sum(lengths) > room)


EXAMPLES = [(text(7, 8), None, 1), (text(*TEN), None, 0), ("", None, 1)]


def test_features_of_windows():
    features = features_of(LongTexts(WINDOWS), *EXAMPLES)
    assert (len(features), features.num_texts, features.num_cut) == (5, 3, 1)
    batch = features.batch(np.array([0, 1, 2, 3, 4, -1]))
    assert batch["input_ids"][1:4].tolist() == [
        [101, 1, 2, 3, 4, 5, 6, 102],
        [101, 4, 5, 6, 7, 8, 9, 102],
        [101, 7, 8, 9, 10, 102, 0, 0],
    ]
    assert batch["text_numbers"].tolist() == [0, 1, 1, 1, 2, 0]
    assert batch["label_ids"].tolist() == [1, 0, 0, 0, 1, 0]
    assert batch["unique_ids"].tolist() == [0, 1, 2, 3, 4, -1]
    # The shares of the texts' tokens, times the windows of a text in the mean.
    expected = np.array([1, 8 / 22, 8 / 22, 6 / 22, 1, 0]) * 5 / 3
    np.testing.assert_allclose(batch["window_weights"], expected, rtol=1e-6)
    assert np.mean(batch["window_weights"][:5]) == pytest.approx(1)
    assert batch["window_weights"].dtype == np.float32
    parts = list(features.by_text(iter("abcde")))
    assert [rows for rows, _ in parts] == [["a"], ["b", "c", "d"], ["e"]]
    assert [lengths.tolist() for _, lengths in parts] == [[4], [8, 8, 6], [2]]


def test_labels_of_every_kind_are_those_of_the_text():
    for label in (2, 1.5, (0, 1, 1)):
        features = features_of(LongTexts(WINDOWS), ("7", None, label), (text(*TEN), None, label))
        batch = features.batch(np.arange(len(features)))
        assert (batch["label_ids"] == np.array(label)).all() and len(features.labels) == 2


@pytest.mark.parametrize("choice", LONG_TEXTS)
def test_features_of_short_texts_are_the_same_whatever_the_choice(choice):
    short = [(text(7, 8), "9", 1), (text(1, 2, 3, 4, 5), "", 0)]
    found, expected = features_of(LongTexts(choice), *short), features_of(LongTexts(), *short)
    batch, other = (features.batch(np.array([1, 0, -1])) for features in (found, expected))
    for name, value in other.items():
        np.testing.assert_array_equal(batch[name], value, err_msg=name)
    assert found.digest() == expected.digest() and found.num_cut == 0
    assert (
        found.describe_cuts() == "0 of 2 texts (0.0%) are longer than 8 tokens (--max_seq_length)"
    )
    long = features_of(LongTexts(choice), *EXAMPLES)
    assert (long.digest() == features_of(LongTexts(), *EXAMPLES).digest()) == (choice == CUT)


@pytest.mark.parametrize(
    ("choice", "done"),
    [
        (CUT, "their ends are cut"),
        (HEAD_TAIL, "their middles are cut"),
        (WINDOWS, "they are read in 3 windows"),
    ],
)
def test_the_share_of_long_texts_is_said(choice, done):
    assert features_of(LongTexts(choice), *EXAMPLES).describe_cuts() == (
        f"1 of 3 texts (33.3%) are longer than 8 tokens (--max_seq_length): {done} "
        f"(--long_texts={choice})"
    )


def test_the_baseline_counts_texts():
    rows = [(text(*[7] * n), None, 0) for n in (2, 30)] + [
        (text(*[8] * n), None, 1) for n in (3, 9)
    ]
    features = features_of(LongTexts(WINDOWS), *rows)
    owners, words = features.bag_of_words(200)
    assert set(owners.tolist()) == {0, 1, 2, 3} and set(words.tolist()) == {101, 102, 7, 8}
    assert bag_of_words_accuracy(features, features, 2, 200) == 1.0


def test_no_text():
    features = features_of(LongTexts(WINDOWS))
    assert len(features) == 0 and list(features.by_text([])) == []


def test_what_task_json_says():
    assert LongTexts().recorded() == LongTexts(CUT, 3).recorded() == {}
    assert LongTexts(HEAD_TAIL, 3).recorded() == {"long_texts": HEAD_TAIL}
    assert LongTexts(WINDOWS).recorded() == {"long_texts": WINDOWS}
    assert LongTexts(WINDOWS, 3).recorded() == {"long_texts": WINDOWS, "doc_stride": 3}
    assert long_texts.spans(10, 4, 2) == [(0, 4), (2, 4), (4, 4), (6, 4)]


def test_pairs_whose_shorter_text_is_cut_are_counted_and_said():
    """Beside three special tokens there is room for 5, of which a text may leave 2 to the other."""
    ends = [([1, 2, 3, 4], [5, 6, 7]), ([1, 2, 3, 4], TEN), ([1, 2, 3, 4], [5, 6, 7, 8])]
    whole = [
        ([5, 6, 7], [1, 2, 3, 4]),
        ([1, 2], TEN),
        (TEN, [1, 2]),
        ([1, 2, 3], [4, 5]),
        (TEN, []),
        ([1], [2]),
    ]
    examples = [(text(*first), text(*second), 1) for first, second in ends + whole]
    features = features_of(LongTexts(WINDOWS), *examples, (text(*TEN), None, 0))
    said = "windows, without the end of the shorter text of 3 pairs (--long_texts=windows)"
    assert features.describe_cuts().endswith(said)
    for choice in (CUT, HEAD_TAIL):
        assert "pairs" not in features_of(LongTexts(choice), *examples).describe_cuts()
