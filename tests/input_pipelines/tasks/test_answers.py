"""Answers of given logits: against an oracle of run_squad.py, and by hand."""

import gzip
import json
import pathlib

import numpy as np
import pytest

from bert_estimator.tokenization import FullTokenizer, SentencePieceTokenizer, write_vocab
from input_pipelines.tasks import answers
from input_pipelines.tasks.answers import Search
from input_pipelines.tasks.squad_files import Answer, Question
from input_pipelines.tasks.windows import Windows
from tests.input_pipelines.tasks import squad_oracle as oracle
from tests.input_pipelines.tasks.test_windows import GOLDENS, golden_windows, tokenizer

__all__ = ["golden_windows", "tokenizer"]  # fixtures

TOKENS = pathlib.Path(__file__).parent.parent.parent / "tokenization" / "goldens"
STRINGS = json.loads((TOKENS / "tokens.json").read_text())


@pytest.fixture(scope="module", params=[False, True], ids=["1.1", "2.0"])
def pairs(request, golden_windows):
    """Returns (whether questions may have no answer, pairs of predictions and the oracle's)."""
    version_2 = request.param
    search = Search(oracle.N_BEST, oracle.MAX_ANSWER, version_2, oracle.THRESHOLD)
    starts, ends = oracle.logits(len(golden_windows))
    found = answers.predict(golden_windows, zip(starts, ends, strict=True), search)
    with gzip.open(GOLDENS / "answers.json.gz") as reader:
        expected = json.load(reader)[str(version_2)]
    return version_2, [(each, *expected[each.id]) for each in found]


def assert_like(text, expected, is_found):
    """Asserts that a text is the oracle's, but for the differences that docs name."""
    if expected == "empty":
        assert text == ""
    elif is_found:
        assert oracle.basic(text) == oracle.basic(expected)
    else:
        assert "".join(text.split()) in "".join(expected.split())


def test_the_answers_equal_the_oracle_s(pairs):
    _, of_questions = pairs
    assert len(of_questions) == 200
    exact = 0
    for found, (text, is_found), _, odds in of_questions:
        assert_like(found.answer, text, is_found)
        assert found.null_odds == odds
        exact += " ".join(found.answer.split()) == " ".join(text.split())
    assert exact >= 180


def test_the_n_best_lists_equal_the_oracle_s(pairs):
    """Distinct texts count, so lists are compared if the oracle found the pieces of all."""
    _, of_questions = pairs
    compared = 0
    for found, _, rows, _ in of_questions:
        texts = [text for (text, _), *_ in rows]
        if "empty" in texts or not all(is_found for (_, is_found), *_ in rows):
            continue
        if len({tuple(oracle.basic(text)) for text in texts}) < len(rows):
            continue  # equal but for case: which of them counts is one of the differences
        compared += 1
        assert [(span.start_logit, span.end_logit) for span in found.spans] == [
            (start, end) for _, start, end, _ in rows
        ]
        for span, (text, *_) in zip(found.spans, rows, strict=True):
            assert_like(span.text, *text)
        expected = [probability for *_, probability in rows]
        np.testing.assert_allclose(found.probabilities, expected, rtol=1e-6)
    assert compared >= 120


# By hand


def one_window(tokenizer, context="w0  W1 w2 w3 w4 w5", golds=()):
    """Returns a question whose context begins at position 3."""
    golds = tuple(Answer(gold, context.index(gold)) for gold in golds)
    return Windows([Question("a", "q", context, golds)], tokenizer, 12, 4, 2)


def predict(windows, starts, ends, **search):
    """Predicts from position -> logit; the other logits are 0."""
    rows = np.zeros([2, 12], np.float32)
    for row, values in zip(rows, (starts, ends), strict=True):
        for position, logit in values.items():
            row[position] = logit
    (prediction,) = answers.predict(windows, [tuple(rows)], Search(**search))
    return prediction


def test_the_best_span_wins(tokenizer):
    found = predict(one_window(tokenizer), {3: 3, 5: 2}, {4: 2, 6: 1, 7: 1}, n_best_size=3)
    assert found.answer == found.best == "w0  W1"
    assert [(span.text, span.score) for span in found.spans] == [
        ("w0  W1", 5.0),
        ("w0  W1 w2 w3", 4.0),
        ("w0  W1 w2 w3 w4", 4.0),
    ]
    assert sum(found.probabilities) == pytest.approx(1)
    assert found.probabilities[0] / found.probabilities[1] == pytest.approx(np.e)
    assert found.null_odds == 0.0


def test_spans_that_are_not_allowed(tokenizer):
    windows = one_window(tokenizer)
    # They begin in the question or at [SEP], end there, end before they begin, or are too long.
    found = predict(windows, {1: 9, 9: 9, 5: 3}, {2: 9, 9: 9, 4: 8, 6: 2, 8: 7},
                    n_best_size=5, max_answer_length=3)  # fmt: skip
    assert found.answer == "w2 w3"
    found = predict(windows, {1: 9}, {2: 9}, n_best_size=1)
    assert (found.answer, found.best) == ("", "")
    assert [span.text for span in found.spans] == [""] and found.probabilities == (1.0,)


@pytest.mark.parametrize(
    ("threshold", "answer"), [(0.0, ""), (1.0, "w0"), (0.5, ""), (0.99, ""), (2.0, "w0")]
)
def test_no_answer_is_given_above_the_threshold(tokenizer, threshold, answer):
    found = predict(one_window(tokenizer), {0: 3, 3: 2}, {0: 1, 3: 1}, n_best_size=2,
                    version_2=True, null_score_diff_threshold=threshold)  # fmt: skip
    assert found.null_odds == 1.0 and found.best == "w0"
    assert found.answer == answer
    assert found.spans[0].text == "" and found.spans[1].text == "w0"


def test_no_answer_is_always_in_the_list_of_2_0(tokenizer):
    found = predict(one_window(tokenizer), {0: -9, 3: 5, 4: 4}, {0: -9, 4: 5}, n_best_size=2,
                    version_2=True)  # fmt: skip
    assert [span.text for span in found.spans] == ["w0  W1", "W1", ""]
    assert found.spans[2].score == -18.0 and found.answer == "w0  W1"


def test_of_several_windows_the_least_likely_no_answer_counts(tokenizer):
    windows = Windows([Question("a", "q", "w0 w1 w2 w3", ())], tokenizer, 6, 1, 2)
    assert len(windows) == 3
    rows = [(np.full(6, value, np.float32),) * 2 for value in (5, 1, 3)]
    (found,) = answers.predict(windows, rows, Search(version_2=True))
    assert (found.null_odds, found.best) == (2.0 - 10.0, "w0")


def test_metrics_and_thresholds(tokenizer):
    windows = one_window(tokenizer, golds=["W1 w2"])
    found = predict(windows, {0: 3, 4: 2}, {0: 1, 4: 1}, n_best_size=2, version_2=True)
    results = answers.evaluate(windows, [found], version_2=True)
    assert results == {
        "exact_match": 0.0,
        "f1": 0.0,
        "has_answer_exact_match": 0.0,
        "has_answer_f1": 0.0,
        "best_exact_match": 0.0,
        # "No answer" is best: its threshold is below the null odds, 1.
        "best_exact_match_threshold": np.nextafter(np.float32(1), np.float32(0)),
        "best_f1": pytest.approx(200 / 3),
        "best_f1_threshold": 1.0,
    }
    assert answers.evaluate(windows, [found], version_2=False) == {"exact_match": 0.0, "f1": 0.0}


def test_the_files(tokenizer, tmp_path):
    found = predict(one_window(tokenizer, "w0 \u6771"), {0: 1, 4: 2}, {0: 1, 4: 1}, n_best_size=2,
                    version_2=True)  # fmt: skip
    paths = answers.write(str(tmp_path), [found], version_2=True)
    values = [json.loads(pathlib.Path(path).read_bytes()) for path in paths]
    assert [path.rpartition("/")[2] for path in paths] == [
        "predictions.json", "nbest_predictions.json", "null_odds.json",
    ]  # fmt: skip
    assert values[0] == {"a": "\u6771"} and values[2] == {"a": -1.0}
    row = values[1]["a"][0]
    assert list(row) == ["text", "probability", "start_logit", "end_logit"]
    assert row["text"] == "\u6771" and (row["start_logit"], row["end_logit"]) == (2.0, 1.0)
    assert len(answers.write(str(tmp_path), [found], version_2=False)) == 2


@pytest.mark.parametrize("name", ["wordpiece_uncased", "wordpiece_cased", "unigram_uncased"])
def test_answers_are_parts_of_the_context_whatever_it_is(tmp_path, name):
    """Any span of tokens, of nasty strings, is a part of the text without spaces at its ends."""
    kind, casing = name.split("_")
    path = f"{TOKENS}/{kind}.model"
    if kind == "wordpiece":
        path = str(tmp_path / "vocab.txt")
        write_vocab(STRINGS["vocab"], path)
        tokenizer = FullTokenizer(path, casing == "uncased")
    else:
        tokenizer = SentencePieceTokenizer(path, casing == "uncased")
    texts = [text for text in STRINGS["strings"] if len(text) < 60]
    contexts = [" \t".join(texts[i : i + 4]) for i in range(0, len(texts), 4)]
    questions = [Question(str(i), "a b", text, ()) for i, text in enumerate(contexts)]
    windows = Windows(questions, tokenizer, 64, 20, 8)
    random = np.random.default_rng(0)
    rows = (random.normal(size=[2, 64]).astype(np.float32) for _ in range(len(windows)))
    found = list(answers.predict(windows, map(tuple, rows), Search(n_best_size=64)))
    given = 0
    for context, prediction in zip(contexts, found, strict=True):
        for span in prediction.spans:
            assert span.text in context
            assert span.text == span.text.strip(" \t\n\r")
            given += bool(span.text)
    assert given > 10 * len(contexts)
