"""SQuAD's metrics against hand-worked pairs, and its search of a threshold."""

import numpy as np
import pytest

from bert_estimator.model_fns import question_answering
from input_pipelines.tasks.squad_metrics import Score, best_threshold, evaluate, normalize, score

HALF, THIRD = 1 / 2, 1 / 3

# prediction, right answers, exact match, F1: the same by both versions
PAIRS = [
    # The same, but for case, articles, punctuation and whitespace
    ("Paris", ["Paris"], 1, 1),
    ("paris", ["PARIS"], 1, 1),
    ("the Paris", ["Paris"], 1, 1),
    ("Paris", ["The Paris"], 1, 1),
    ("a an the Paris", ["Paris"], 1, 1),
    ("Paris.", ["Paris"], 1, 1),
    ("'Paris'!", ["(Paris)"], 1, 1),
    ("in   the\tcity \n of Paris", ["in a city of Paris"], 1, 1),
    ("\u00a0Paris\u2003", ["Paris"], 1, 1),
    ("U.S.A.", ["USA"], 1, 1),
    ("1,000", ["1000"], 1, 1),
    ("$5.00", ["500"], 1, 1),
    ("it's", ["its"], 1, 1),
    ("rock-and-roll", ["rockandroll"], 1, 1),
    ("The-end", ["theend"], 1, 1),  # the article is part of a word once the hyphen is gone
    ("A.", ["a"], 1, None),  # nothing is left of either: see EMPTY for F1
    ("vitamin A", ["vitamin"], 1, 1),
    ("Theatre", ["theatre"], 1, 1),  # an article inside of a word stays
    ("an apple", ["Apple"], 1, 1),
    ("_x_", ["x"], 1, 1),
    # Different
    ("Paris", ["London"], 0, 0),
    ("rock and roll", ["rockandroll"], 0, 0),
    ("Theatre", ["atre"], 0, 0),
    ("U S A", ["USA"], 0, 0),
    ("5", ["five"], 0, 0),
    ("colour", ["color"], 0, 0),
    # Some words in common: F1 is 2 c / (p + g) for c common words of p and g
    ("New York City", ["New York"], 0, 4 / 5),
    ("York", ["New York"], 0, 2 / 3),
    ("the city of Paris", ["Paris"], 0, HALF),
    ("Paris in France", ["France"], 0, HALF),
    ("x y", ["y z"], 0, HALF),
    ("x y z", ["z y x"], 0, 1),  # a bag of words has no order
    ("x x y", ["x y"], 0, 4 / 5),
    ("x x", ["x x x"], 0, 4 / 5),
    ("x x x", ["x"], 0, HALF),
    ("x y z w", ["v u t w"], 0, 1 / 4),
    ("10 July 1856", ["July 1856"], 0, 4 / 5),
    ("1856", ["10 July 1856"], 0, HALF),
    ("Tesla, Nikola", ["Nikola Tesla"], 0, 1),
    ("a dog", ["the big dog"], 0, 2 / 3),
    ("x1 x2 x3 x4 x5", ["x5"], 0, THIRD),
    # Several right answers: the best of each metric
    ("Paris", ["London", "Paris"], 1, 1),
    ("Paris", ["London", "Rome"], 0, 0),
    ("New York", ["New York City", "York"], 0, 4 / 5),
    ("x y", ["x", "x y z w", "y x"], 0, 1),
    ("x", ["x y", "x y z", "x"], 1, 1),
    ("Denver Broncos", ["Denver Broncos", "Denver Broncos", "Broncos"], 1, 1),
    ("the Broncos", ["Denver Broncos", "Carolina"], 0, 2 / 3),
    # Unicode: only ASCII's punctuation is removed, and nothing is decomposed
    ("Zürich", ["zürich"], 1, 1),
    ("Zürich", ["Zurich"], 0, 0),
    ("Zu\u0308rich", ["Z\u00fcrich"], 0, 0),
    ("ÉCOLE", ["école"], 1, 1),
    ("“Paris”", ["Paris"], 0, 0),
    ("1990\u20131995", ["19901995"], 0, 0),
    ("1990-1995", ["19901995"], 1, 1),
    ("東京", ["東京"], 1, 1),
    ("東京 タワー", ["東京"], 0, 2 / 3),
    ("ΣΑΣ", ["σας"], 1, 1),  # lower() writes the final sigma
    ("Straße", ["STRASSE"], 0, 0),
    ("½ cup", ["1/2 cup"], 0, HALF),
    ("Москва", ["москва"], 1, 1),
    ("🎉 party", ["party 🎉"], 0, 1),
    ("a\u200bdog", ["a\u200bdog"], 1, 1),
]

# prediction, right answers, (exact match, F1) by 1.1, (exact match, F1) by 2.0
EMPTY = [
    ("", ["Paris"], (0, 0), (0, 0)),
    ("the", ["Paris"], (0, 0), (0, 0)),
    ("...", ["Paris"], (0, 0), (0, 0)),
    ("", ["the"], (1, 0), (1, 1)),
    ("a", ["The!"], (1, 0), (1, 1)),
    ("Paris", ["the"], (0, 0), (0, 0)),
    ("Paris", ["the", "Paris"], (1, 1), (1, 1)),
    ("", ["the", "Paris"], (1, 0), (0, 0)),  # by 2.0 "the" does not count beside "Paris"
    ("", [], (0, 0), (1, 1)),
    ("an", [], (0, 0), (1, 1)),
    ("Paris", [], (0, 0), (0, 0)),
]


@pytest.mark.parametrize("version_2", [False, True])
@pytest.mark.parametrize(("prediction", "answers", "exact_match", "f1"), PAIRS)
def test_hand_worked_pairs(prediction, answers, exact_match, f1, version_2):
    found = score(prediction, answers, version_2)
    assert found.exact_match == exact_match
    if f1 is not None:
        assert found.f1 == pytest.approx(f1, abs=1e-12)


@pytest.mark.parametrize(("prediction", "answers", "of_1", "of_2"), EMPTY)
def test_texts_without_words(prediction, answers, of_1, of_2):
    assert score(prediction, answers, False) == Score(*of_1)
    assert score(prediction, answers, True) == Score(*of_2)


def test_normalize():
    assert normalize(" The  U.S.A., an\tAPPLE (a day)! ") == "usa apple day"
    assert normalize("a.b the-x") == "ab thex"
    assert normalize("") == normalize("The, a; an?") == ""


ANSWERS = {"a": ["Paris"], "b": ["New York", "York"], "c": [], "d": []}


def test_the_metrics_of_1_1():
    answers = {name: golds for name, golds in ANSWERS.items() if golds}
    predictions = {"a": "the Paris", "b": "New York City", "unasked": "x"}
    found = evaluate(predictions, answers, version_2=False)
    assert found == {"exact_match": 50.0, "f1": pytest.approx(100 * (1 + 4 / 5) / 2)}


def test_the_metrics_of_2_0():
    predictions = {"a": "", "b": "York city", "c": "", "d": "x"}
    assert evaluate(predictions, ANSWERS, version_2=True) == {
        "exact_match": 25.0,
        "f1": pytest.approx(100 * (0 + 2 / 3 + 1 + 0) / 4),
        "has_answer_exact_match": 0.0,
        "has_answer_f1": pytest.approx(100 * (2 / 3) / 2),
        "no_answer_accuracy": 50.0,
    }
    of_one = evaluate({"a": "Paris"}, {"a": ["Paris"]}, version_2=True)
    assert "no_answer_accuracy" not in of_one and of_one["has_answer_f1"] == 100.0


def test_a_question_without_prediction_is_an_error():
    with pytest.raises(KeyError, match="b"):
        evaluate({"a": ""}, {"a": [], "b": []}, version_2=True)


def test_the_threshold_of_hand_worked_odds():
    # From "no answer" for all (2 of 4 right): a is right at -3, c is lost at -1, b gains at 2.
    odds = {"a": -3.0, "b": 2.0, "c": -1.0, "d": 5.0}
    predictions = {"a": "Paris", "b": "New York", "c": "x", "d": "y"}
    scores = {"a": 1.0, "b": 1.0, "c": 0.0, "d": 0.0}
    assert best_threshold(scores, predictions, ANSWERS, odds) == (75.0, -3.0)
    odds["b"] = -2.0
    assert best_threshold(scores, predictions, ANSWERS, odds) == (100.0, -2.0)
    # "No answer" is best for all: a threshold of 0 would let the answer of a, at -3, count.
    zeros = dict.fromkeys(scores, 0.0)
    nothing, threshold = best_threshold(zeros, predictions, ANSWERS, odds)
    assert nothing == 50.0
    assert threshold == np.nextafter(np.float32(-3), np.float32(-np.inf)) < -3
    # A prediction of "" is right beyond any threshold, if there is no answer.
    assert best_threshold(scores, {**predictions, "c": ""}, ANSWERS, odds)[0] == 100.0


def test_questions_of_equal_odds_count_together():
    # Of equal odds, a gains and c is lost: no threshold has the one without the other.
    answers, predictions = {"a": ["x"], "c": []}, {"a": "x", "c": "y"}
    for names in (("a", "c"), ("c", "a")):
        answers = {name: answers[name] for name in names}
        found = best_threshold({"a": 1.0, "c": 0.0}, predictions, answers, {"a": 1.0, "c": 1.0})
        assert found == (50.0, np.nextafter(np.float32(1), np.float32(0)))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_the_threshold_gives_its_score_and_is_as_good_as_any(ties, scale):
    random = np.random.default_rng(0)
    for _ in range(100):
        names = [str(i) for i in range(random.integers(1, 12))]
        answers = {name: ["x"] * random.integers(2) for name in names}
        scores = {name: random.random() if answers[name] else 0.0 for name in names}
        predictions = dict.fromkeys(names, "x")
        odds = {name: scale * float(random.normal()) for name in names}
        if ties:
            odds = {name: scale * float(random.integers(-2, 2)) for name in names}
        best, threshold = best_threshold(scores, predictions, answers, odds)
        nothing = with_threshold(-np.inf, answers, scores, odds)
        found = [with_threshold(value, answers, scores, odds) for value in odds.values()]
        assert best == pytest.approx(max(nothing, *found))
        assert best == pytest.approx(with_threshold(threshold, answers, scores, odds))
        # Metrics are float32, which are rounded up.
        rounded = float(question_answering._not_below(threshold))
        assert best == pytest.approx(with_threshold(rounded, answers, scores, odds))
        if not ties:
            assert best == pytest.approx(best_one_by_one(scores, answers, odds))


def best_one_by_one(scores, answers, odds):
    """Returns the best score as SQuAD 2.0's own script finds it, which does not look for ties."""
    current = best = sum(not golds for golds in answers.values())
    for name in sorted(odds, key=odds.get):
        current += scores[name] if answers[name] else -1
        best = max(best, current)
    return 100 * best / len(odds)


def with_threshold(threshold, answers, scores, odds):
    """Returns the score, in percent, if "no answer" is given above a threshold."""
    total = sum(
        float(not answers[name]) if odds[name] > threshold else scores[name] for name in odds
    )
    return 100 * total / len(odds)
