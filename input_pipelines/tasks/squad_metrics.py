"""The metrics of SQuAD: exact match and F1 of answers, as its evaluation scripts define them.

Sources: Rajpurkar et al., "SQuAD" (2016), section 6.1, and "Know What You Don't Know" (2018), with
the evaluation scripts of the two data sets, versions 1.1 and 2.0. F1 is of the bags of words that
are left of answers. Of several right answers the best score counts.
"""

import collections
import dataclasses
import itertools
import re
import string
from collections.abc import Mapping, Sequence

import numpy as np

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclasses.dataclass(frozen=True)
class Score:
    """Holds the score of one answer: `exact_match` is 0 or 1, `f1` is from 0 to 1."""

    exact_match: float
    f1: float


def normalize(text: str) -> str:
    """Returns a text in lower case, without punctuation, articles and double spaces."""
    # Punctuation goes before articles, without a space in its place: "the-end" is "theend".
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def score(prediction: str, answers: Sequence[str], version_2: bool) -> Score:
    """Scores one prediction ("" for no answer): the best exact match and the best F1, which may be
    of different answers."""
    predicted = normalize(prediction)
    golds = [normalize(answer) for answer in answers]
    if version_2:
        # In 2.0, answers without words do not count beside others, and a prediction without words
        # is right if the question has no answer. In 1.1, F1 of a text without words is 0.
        golds = [gold for gold in golds if gold] or [""]
    if not golds:
        return Score(0.0, 0.0)
    return Score(
        max(float(predicted == gold) for gold in golds),
        max(_f1(predicted.split(), gold.split(), version_2) for gold in golds),
    )


def evaluate(
    predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]], version_2: bool
) -> dict[str, float]:
    """Computes the metrics of all questions, in percent, as SQuAD's tables have them: over the
    questions with and without answer too with version_2. A mean over 0 questions is left out."""
    scores = {name: score(predictions[name], golds, version_2) for name, golds in answers.items()}
    results = _means("", list(scores.values()))
    if not version_2:
        return results
    with_answer = [score for name, score in scores.items() if answers[name]]
    without = [score for name, score in scores.items() if not answers[name]]
    if with_answer:
        results.update(_means("has_answer_", with_answer))
    if without:
        results["no_answer_accuracy"] = _means("", without)["exact_match"]
    return results


def best_threshold(
    scores: Mapping[str, float],
    predictions: Mapping[str, str],
    answers: Mapping[str, Sequence[str]],
    null_odds: Mapping[str, float],
) -> tuple[float, float]:
    """Returns (score in percent, threshold) for the threshold of the null odds above which "no
    answer" scores best; all arguments are by the questions' ids."""
    # Begin with "no answer" for all; then let one prediction after the other count. A threshold
    # cannot separate questions of equal odds, so it is judged after the last of them.
    names = sorted(answers, key=lambda name: null_odds[name])
    current = best = float(sum(not golds for golds in answers.values()))
    threshold = _below(null_odds[names[0]])
    for odds, equal in itertools.groupby(names, key=lambda name: null_odds[name]):
        for name in equal:
            if answers[name]:
                current += scores[name]
            elif predictions[name]:
                current -= 1
        # The lowest of several equally good thresholds stays.
        if current > best:
            best, threshold = current, odds
    return 100.0 * best / len(answers), threshold


def _below(value):
    """Returns the greatest float32 that is below the float32 next to a value, so below it, too."""
    # Metrics are float32: a greater number might be rounded to the lowest odds, which would then
    # not be above it.
    return float(np.nextafter(np.float32(value), np.float32(-np.inf)))


def _f1(predicted, gold, version_2):
    if version_2 and not (predicted and gold):
        return float(predicted == gold)
    common = (collections.Counter(predicted) & collections.Counter(gold)).total()
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(gold)
    return 2 * precision * recall / (precision + recall)


def _means(prefix, scores):
    return {
        f"{prefix}{name}": 100.0 * sum(getattr(score, name) for score in scores) / len(scores)
        for name in ("exact_match", "f1")
    }
