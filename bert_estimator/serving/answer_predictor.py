"""Answers questions on texts with a fine-tuned model of run_squad.py, as prediction does."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from bert_estimator.command_line.choices import QUESTION_ANSWERING
from bert_estimator.serving import exported_model
from bert_estimator.serving.commands import (
    BATCH_SIZE,
    Text,
    check_list,
    check_windows,
    example_of,
)
from bert_estimator.serving.task_model import TaskPredictor
from input_pipelines.tasks import answers
from input_pipelines.tasks.answers import Prediction
from input_pipelines.tasks.squad_files import Question
from input_pipelines.tasks.windows import Windows


class AnswerPredictor(TaskPredictor):
    """Opens a model that answers questions. An exported one needs no code of the model.

    ```
    predictor = AnswerPredictor("runs/squad")
    predictor([("Who met Bob?", "Ada met Bob.")])
    ```

    Calls may come from several threads at a time. `path` and the errors are as for `Predictor`;
    `batch_size` is the most windows of contexts that are computed at a time, and `max_seq_length` a
    window's tokens: longer contexts are split, and none of their words is lost.
    """

    kind, is_pair, answers_questions = QUESTION_ANSWERING, True, True

    def __init__(self, path: str, batch_size: int = BATCH_SIZE):
        super().__init__(path, batch_size)
        self._doc_stride, self.search = self._task.reading.doc_stride, self._task.reading.search
        # Tokens to which questions are cut; `num_cut` counts the questions that were cut.
        self.max_query_length: int = self._task.reading.max_query_length

    def __call__(self, texts: Iterable[Text]) -> list[dict[str, Any]]:
        """Answers pairs of strings, a question and its context.

        Returns:
          A dict for each question, in order: `answer`, `start` and `end`, its characters in the
          context; `score`, `probability`; with SQuAD 2.0 `null_odds`; and `n_best`, a list of dicts
          of `answer`, `start`, `end` and `probability`. An empty answer is "no answer".
        """
        return [self._answer(prediction) for prediction in self.predict(texts)]

    def predict(self, texts: Iterable[Text]) -> list[Prediction]:
        """Returns the `Prediction` of each question; see `__call__`."""
        check_list(texts)
        what = "a pair of strings, a question and its context"
        pairs = [example_of(number, text, True, what) for number, text in enumerate(texts)]
        questions = [
            Question(str(number), pair.text_a, pair.text_b, None)
            for number, pair in enumerate(pairs)
        ]
        windows = Windows(
            questions,
            self._tokenizer,
            self.max_seq_length,
            self._doc_stride,
            self.max_query_length,
        )
        check_windows(len(windows), len(questions), self.most_windows)
        # Windows are made and answers are searched by the code of training and prediction.
        outputs = self._model.run(windows, self.batch_size)
        logits = list(zip(*map(outputs.get, exported_model.ENDS), strict=True))
        if not all(np.isfinite(rows).all() for rows in logits):
            raise ValueError("the model's output is not finite")
        self._count(windows.num_cut)
        return list(answers.predict(windows, logits, self.search))

    def _answer(self, prediction):
        span, probability = prediction.given()
        answer = _shown(span, probability)
        answer["score"] = span.score
        if self.search.version_2:
            answer["null_odds"] = prediction.null_odds
        answer["n_best"] = list(map(_shown, prediction.spans, prediction.probabilities))
        return answer


def _shown(span, probability):
    return {
        "answer": span.text,
        "start": span.start,
        "end": span.end,
        "probability": probability,
    }
