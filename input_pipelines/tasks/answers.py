"""From the logits of windows to the answers of questions: the best spans, and "no answer".

This is google-research/bert's `run_squad.py` (Devlin et al., 2018, sections 4.2 and 4.3) with one
difference: a span's text is the part of the context that its tokens come from, character by
character.
"""

import dataclasses
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from bert_estimator.system import disk_files
from input_pipelines.tasks import squad_metrics
from input_pipelines.tasks.windows import Windows


@dataclasses.dataclass(frozen=True)
class Search:
    """Says how answers are searched."""

    # The number of starts and of ends to look at in each window, and of answers to keep.
    n_best_size: int = 20
    max_answer_length: int = 30  # tokens
    version_2: bool = False  # whether questions may have no answer
    # With version_2, "no answer" is predicted if its score is above the best answer's by more.
    null_score_diff_threshold: float = 0.0


@dataclasses.dataclass(frozen=True)
class Span:
    """Holds a possible answer."""

    text: str  # a part of the context; "" for no answer
    start_logit: float
    end_logit: float
    start: int = 0  # its characters in the context; 0 for no answer
    end: int = 0

    @property
    def score(self) -> float:
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True)
class Prediction:
    """Holds what was found for a question."""

    id: str
    # The best answers with distinct texts, best first; with version_2 also "no answer".
    spans: tuple[Span, ...]
    probabilities: tuple[float, ...]  # the softmax of their scores
    best: str  # the best answer that is not empty; "" if there is not any
    # The score of "no answer" less the best answer's score; 0 without version_2.
    null_odds: float
    answer: str  # `best`, or "" if `null_odds` are above the threshold

    def given(self) -> tuple[Span, float]:
        """Returns the span of `answer`, and its probability."""
        number = [span.text for span in self.spans].index(self.answer)
        return self.spans[number], self.probabilities[number]


def predict(
    windows: Windows, logits: Iterable[tuple[np.ndarray, np.ndarray]], search: Search
) -> Iterator[Prediction]:
    """Finds the answers of all questions, in order, from the logits of starts and of ends, float32
    [F] each, of every window, in order."""
    logits = iter(logits)
    for number in range(len(windows.questions)):
        of_question = windows.of_question(number)
        rows = itertools.islice(logits, of_question.stop - of_question.start)
        yield _of_question(windows, number, list(rows), search)


def evaluate(windows: Windows, predictions: Iterable[Prediction], version_2: bool) -> dict:
    """Computes SQuAD's metrics of predictions, in percent; with version_2 also the best of them
    over all thresholds of the null odds, and these thresholds."""
    predictions = list(predictions)
    golds = {question.id: question.golds() for question in windows.questions}
    answers = {prediction.id: prediction.answer for prediction in predictions}
    results = squad_metrics.evaluate(answers, golds, version_2)
    if version_2:
        # These four values do not depend on `Search.null_score_diff_threshold`.
        best = {prediction.id: prediction.best for prediction in predictions}
        odds = {prediction.id: prediction.null_odds for prediction in predictions}
        scores = {name: squad_metrics.score(best[name], golds[name], True) for name in golds}
        for metric in ("exact_match", "f1"):
            values = {name: getattr(score, metric) for name, score in scores.items()}
            best_score = squad_metrics.best_threshold(values, best, golds, odds)
            results[f"best_{metric}"], results[f"best_{metric}_threshold"] = best_score
    return results


def metric_names(windows: Windows, version_2: bool) -> list[str]:
    """Returns the names of the metrics that `evaluate` computes."""
    nothing = [Prediction(question.id, (), (), "", 0.0, "") for question in windows.questions]
    return list(evaluate(windows, nothing, version_2))


def write(directory: str, predictions: Iterable[Prediction], version_2: bool) -> list[str]:
    """Writes predictions.json, nbest_predictions.json and, with version_2, null_odds.json, each an
    object by the questions' ids, and returns their paths."""
    predictions = list(predictions)
    files: dict[str, Mapping] = {
        "predictions.json": {prediction.id: prediction.answer for prediction in predictions},
        "nbest_predictions.json": {
            prediction.id: _n_best(prediction) for prediction in predictions
        },
    }
    if version_2:
        files["null_odds.json"] = {
            prediction.id: prediction.null_odds for prediction in predictions
        }
    paths = []
    for name, content in files.items():
        paths.append(os.path.join(directory, name))
        with disk_files.writer(paths[-1]) as writer:
            json.dump(content, writer, indent=4)
            writer.write("\n")
    return paths


def _of_question(windows, number, logits, search):
    """Returns the `Prediction` of a question, from the logits of its windows."""
    candidates = _candidates(windows, number, logits, search)
    null = None
    if search.version_2:
        # Of the windows, the window that holds "no answer" for least likely counts.
        nulls = [(float(start[0]), float(end[0])) for start, end in logits]
        null = Span("", *min(nulls, key=sum))
        candidates.append((null.score, null))
    spans = _distinct(candidates, windows.contexts[number], search.n_best_size)
    # "No answer" is kept with its odds, however many answers are better.
    if null is not None and null not in spans:
        spans.append(null)
    best = next((span for span in spans if span.text), Span("", 0.0, 0.0))
    odds = null.score - best.start_logit - best.end_logit if null else 0.0
    is_null = null is not None and odds > search.null_score_diff_threshold
    spans = spans or [best]
    return Prediction(
        windows.questions[number].id,
        tuple(spans),
        _softmax([span.score for span in spans]),
        best.text,
        odds,
        "" if is_null else best.text,
    )


def _candidates(windows, number, logits, search):
    """Returns (score, (first token, last token, start logit, end logit)) of all possible spans."""
    spans = []
    in_context = windows.best_contexts(number)
    of_question = windows.of_question(number)
    bounds = zip(windows.starts[of_question], windows.places[of_question], strict=True)
    for (first, place), is_best, (start_logits, end_logits) in zip(
        bounds, in_context, logits, strict=True
    ):
        # Python's floats have 64 bits, and sums of them are compared.
        start_logits, end_logits = (np.asarray(x, np.float64) for x in (start_logits, end_logits))
        starts, ends = (
            np.argsort(-x, kind="stable")[: search.n_best_size] - place
            for x in (start_logits, end_logits)
        )
        starts = starts[(starts >= 0) & (starts < len(is_best))]
        starts = starts[is_best[starts]]
        ends = ends[(ends >= 0) & (ends < len(is_best))]
        lengths = ends - starts[:, np.newaxis] + 1
        is_allowed = (lengths >= 1) & (lengths <= search.max_answer_length)
        # The order decides between equal scores: windows, then the starts' logits, then the ends'.
        for s, e in np.argwhere(is_allowed):
            start, end = starts[s], ends[e]
            pair = float(start_logits[place + start]), float(end_logits[place + end])
            spans.append((sum(pair), (first + start, first + end, *pair)))
    return spans


def _distinct(candidates, context, n_best_size):
    """Returns the best spans with texts of their own; "no answer" is a `Span` already."""
    spans: list[Span] = []
    seen: set[str] = set()
    for _, candidate in sorted(candidates, key=lambda item: item[0], reverse=True):
        if len(spans) >= n_best_size:
            break
        if isinstance(candidate, Span):
            spans.append(candidate)
            continue
        first, last, start_logit, end_logit = candidate
        start, end = context.characters_of(first, last)
        text = context.text[start:end]
        if text and text not in seen:
            seen.add(text)
            spans.append(Span(text, start_logit, end_logit, start, end))
    return spans


def _softmax(scores: Sequence[float]) -> tuple[float, ...]:
    powers = np.exp(np.array(scores) - max(scores))
    return tuple(map(float, powers / powers.sum()))


def _n_best(prediction):
    return [
        {
            "text": span.text,
            "probability": probability,
            "start_logit": span.start_logit,
            "end_logit": span.end_logit,
        }
        for span, probability in zip(prediction.spans, prediction.probabilities, strict=True)
    ]
