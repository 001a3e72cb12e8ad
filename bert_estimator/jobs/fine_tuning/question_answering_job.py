"""Fine-tuning to answer questions: the runs of run_squad.py."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_estimator import tpu
from bert_estimator.interchange.network_variables import ANSWER
from bert_estimator.jobs import vocabulary
from bert_estimator.jobs.fine_tuning import (
    question_answering_data,
    question_answering_export,
    seeds,
)
from bert_estimator.jobs.fine_tuning.job import FineTuning
from bert_estimator.jobs.fine_tuning.question_answering_config import QuestionAnsweringConfig
from bert_estimator.jobs.fine_tuning.question_answering_data import QuestionAnsweringData, search_of
from bert_estimator.jobs.fine_tuning.text_export import TextParts
from bert_estimator.model_fns import fine_tuning, question_answering, update
from bert_estimator.storage import remote
from input_pipelines.tasks import answers
from input_pipelines.tasks.answers import Search
from input_pipelines.tasks.windows import Windows


def run(configs: Sequence[QuestionAnsweringConfig]) -> None:
    """Runs the configurations of `question_answering_config.resolve`; see `seeds.run_all`."""
    seeds.run_all(QuestionAnswering, configs)


class QuestionAnswering(FineTuning):
    """Runs the fine-tuning of a `QuestionAnsweringConfig`."""

    ignores_padding = False  # its logits compete for the n best, as in google-research/bert

    @staticmethod
    def load(config: QuestionAnsweringConfig) -> QuestionAnsweringData:
        return question_answering_data.load(config)

    @staticmethod
    def model_fn(
        config: QuestionAnsweringConfig,
        data: QuestionAnsweringData,
        network: fine_tuning.Network,
        rule: update.UpdateRule | None,
    ) -> Callable[..., tpu.TPUEstimatorSpec]:
        scorer = data.evaluate and Scorer(data.evaluate, search_of(config))
        return question_answering.model_fn_builder(network, rule, scorer)

    def task(self) -> dict[str, Any]:
        """Returns the contents of task.json, which tells a reader of the weights their task:

        kind              "question_answering"
        vocab_file        name of the vocabulary beside it; vocab.model is a SentencePiece model
        do_lower_case     whether text is lower-cased
        strip_accents     whether accents are taken away; null: as is usual with do_lower_case
        max_seq_length    the length in tokens of a question with a window of its context
        doc_stride, max_query_length, version_2_with_negative
                          the flags of these names
        """
        config = self._config
        return {
            "kind": "question_answering",
            "vocab_file": vocabulary.name_in_run(self._data.vocab_file),
            **self._data.casing._asdict(),
            "max_seq_length": config.max_seq_length,
            "doc_stride": config.doc_stride,
            "max_query_length": config.max_query_length,
            "version_2_with_negative": config.version_2_with_negative,
        }

    def head(self) -> tuple[str, ...]:
        return (f"{ANSWER}/output_weights",)

    def takes_text(self) -> bool:
        return question_answering_export.takes_text(self._config, self._data)

    def text_parts(self) -> TextParts:
        return question_answering_export.text_parts(self._config, self._data)

    def evaluate_once(self, checkpoint: str | None) -> dict[str, Any]:
        metrics = self.evaluate_on(self._data.evaluate, checkpoint)
        return {"f1": metrics["f1"], **metrics}

    def evaluation_digest(self) -> str:
        of = self._data.evaluate.digest().hex(), search_of(self._config)
        return hashlib.sha256(repr(of).encode()).hexdigest()

    def predict(self) -> None:
        """Writes predictions.json, nbest_predictions.json and, for SQuAD 2.0, null_odds.json."""
        config, windows = self._config, self._data.predict
        logits = [(row["start_logits"], row["end_logits"]) for row in self.predictions_of(windows)]
        predictions = list(answers.predict(windows, logits, search_of(config)))
        paths = answers.write(config.output_dir, predictions, config.version_2_with_negative)
        print(f"Answers: {remote.shown(', '.join(paths))} ({len(predictions)} questions)")


class Scorer:
    """Computes SQuAD's metrics of an evaluation; it is a `question_answering.Scorer`.

    An evaluation goes through all windows, so that each overwrites the logits of the one before.

    Attributes:
      names: the names of the metrics.
    """

    def __init__(self, windows: Windows, search: Search):
        self.names = answers.metric_names(windows, search.version_2)
        self._windows, self._search = windows, search
        shape = len(windows), windows.max_seq_length
        self._starts, self._ends = np.zeros(shape, np.float32), np.zeros(shape, np.float32)

    def add(self, unique_ids: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> None:
        is_window = unique_ids >= 0
        self._starts[unique_ids[is_window]] = starts[is_window]
        self._ends[unique_ids[is_window]] = ends[is_window]

    def scores(self) -> list[float]:
        logits = zip(self._starts, self._ends, strict=True)
        predictions = answers.predict(self._windows, logits, self._search)
        metrics = answers.evaluate(self._windows, predictions, self._search.version_2)
        return [metrics[name] for name in self.names]
