"""Fine-tuning to answer questions: the runs of run_squad.py."""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

from bert_estimator import tpu
from bert_estimator.command_line import flags, provenance
from bert_estimator.command_line.choices import QUESTION_ANSWERING
from bert_estimator.interchange import network_files
from bert_estimator.interchange.network_variables import ANSWER
from bert_estimator.interchange.onnx import runtime
from bert_estimator.jobs.fine_tuning import onnx_export, question_answering_data
from bert_estimator.jobs.fine_tuning.fine_tuning_job import FineTuning, network_in_use
from bert_estimator.model_fns import fine_tuning, question_answering, update
from bert_estimator.storage import remote
from input_pipelines.tasks import answers
from input_pipelines.tasks.answers import Search
from input_pipelines.tasks.features import Batches
from input_pipelines.tasks.windows import Windows


@dataclasses.dataclass(frozen=True)
class QuestionAnswering(FineTuning):
    """Holds the fine-tuning of a `QuestionAnsweringConfig` on `QuestionAnsweringData`."""

    # The softmax of a training that is not packed is over padding, as in google-research/bert.
    IGNORES_PADDING = False
    load = staticmethod(question_answering_data.load)

    @classmethod
    def completed(cls, config: Any) -> Any:
        """Returns the configuration of a run, which without training also has the network's own
        --version_2_with_negative."""
        config, name = super().completed(config), "version_2_with_negative"
        is_said = config.sources[name] in (provenance.FLAG, provenance.RUN)
        if config.embedded or is_said or (used := network_in_use(config)) is None:
            return config
        flag, source = used
        says = source.version_2_with_negative
        files = [flags.values_of(config)[file] for file in config.DATA_FLAGS]
        flags.check(
            says is not None or any(files),
            flag,
            source.path,
            "nothing beside this network says whether it may leave questions without an answer, as "
            f"for SQuAD 2.0; add --{name}, or --no{name} if it answers all",
        )
        return flags.changed(config, **{name: bool(says)})

    def model_fn(
        self, network: fine_tuning.NetworkBuilder, rule: update.UpdateRule | None
    ) -> Callable[..., tpu.TPUEstimatorSpec]:
        scorer = self.data.evaluate and AnswerScorer(self.data.evaluate, self._search())
        return question_answering.model_fn_builder(network, rule, scorer)

    def task(self) -> dict[str, Any]:
        questions, evaluation = self.config.data, self.config.evaluation
        return {
            "kind": QUESTION_ANSWERING,
            "vocab_file": network_files.name_of_vocabulary(self.data.vocab_file),
            **self.data.casing._asdict(),
            "max_seq_length": questions.max_seq_length,
            "doc_stride": questions.doc_stride,
            "max_query_length": questions.max_query_length,
            "version_2_with_negative": questions.version_2_with_negative,
            "n_best_size": evaluation.n_best_size,
            "max_answer_length": evaluation.max_answer_length,
            "null_score_diff_threshold": evaluation.null_score_diff_threshold,
        }

    def head(self) -> tuple[str, ...]:
        return (f"{ANSWER}/output_weights",)

    def examples(self) -> list[Batches]:
        sets = self.data.train, self.data.evaluate, self.data.predict
        # Evaluation and prediction may have the same windows.
        return list({id(windows): windows for windows in sets if windows}.values())

    def score(self, answer: onnx_export.Answer) -> tuple[str, float]:
        windows = self.data.evaluate
        scorer = AnswerScorer(windows, self._search())
        for numbers, _, outputs in onnx_export.answered(answer, windows):
            scorer.add(numbers, *(outputs[name] for name in runtime.ENDS))
        metric = self.data.deciding_metric
        return metric, dict(zip(scorer.names, scorer.scores(), strict=True))[metric]

    def text_input(self) -> None:
        print("The SavedModel takes ids.")

    def _search(self):
        evaluation = self.config.evaluation
        return Search(
            evaluation.n_best_size,
            evaluation.max_answer_length,
            self.config.data.version_2_with_negative,
            evaluation.null_score_diff_threshold,
        )

    def evaluate_once(self, checkpoint: str | None) -> dict[str, Any]:
        metrics = self.evaluate_on(self.data.evaluate, checkpoint)
        deciding = self.data.deciding_metric
        return {deciding: metrics[deciding], **metrics}

    def evaluation_digest(self) -> str:
        of = self.data.evaluate.digest().hex(), self._search()
        return hashlib.sha256(repr(of).encode()).hexdigest()

    def predict(self) -> None:
        """Writes predictions.json, nbest_predictions.json and, for SQuAD 2.0, null_odds.json."""
        config, windows = self.config, self.data.predict
        logits = [(row["start_logits"], row["end_logits"]) for row in self.predictions_of(windows)]
        predictions = list(answers.predict(windows, logits, self._search()))
        paths = answers.write(config.output_dir, predictions, config.data.version_2_with_negative)
        print(f"Answers: {remote.shown(', '.join(paths))} ({len(predictions)} questions)")


class AnswerScorer:
    """Computes SQuAD's metrics of an evaluation; it is a `question_answering.Scorer`."""

    def __init__(self, windows: Windows, search: Search):
        self.names = answers.metric_names(windows, search.version_2)
        self._windows, self._search = windows, search
        shape = len(windows), windows.max_seq_length
        # An evaluation goes through all windows, so that each overwrites the logits of the one
        # before.
        self._starts, self._ends = np.zeros(shape, np.float32), np.zeros(shape, np.float32)

    def add(self, unique_ids: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> None:
        # What pads the last batch has the number -1.
        is_window = unique_ids >= 0
        self._starts[unique_ids[is_window]] = starts[is_window]
        self._ends[unique_ids[is_window]] = ends[is_window]

    def scores(self) -> list[float]:
        logits = zip(self._starts, self._ends, strict=True)
        predictions = answers.predict(self._windows, logits, self._search)
        metrics = answers.evaluate(self._windows, predictions, self._search.version_2)
        return [metrics[name] for name in self.names]
