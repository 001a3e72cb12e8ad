"""Fine-tuning to label texts: the runs of run_classifier.py."""

import dataclasses
import hashlib
import os
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.command_line import flags, provenance, run_directory
from bert_estimator.interchange import network_files
from bert_estimator.interchange.network_variables import CLASSIFIER, POOLER
from bert_estimator.interchange.onnx import runtime
from bert_estimator.jobs.fine_tuning import classification_data, export, onnx_export
from bert_estimator.jobs.fine_tuning.fine_tuning_job import (
    FineTuning,
    network_in_use,
    write_lines,
)
from bert_estimator.model_fns import classification, classification_report, fine_tuning, update
from bert_estimator.serving import exported_model
from bert_estimator.storage import remote
from bert_estimator.system import json_files
from input_pipelines.tasks import tag_files
from input_pipelines.tasks.features import Batches
from input_pipelines.tasks.long_texts import WINDOWS


@dataclasses.dataclass(frozen=True)
class Classification(FineTuning):
    """Holds the fine-tuning of a `ClassificationConfig` on `ClassificationData`."""

    load = staticmethod(classification_data.load)

    # Name of a set of examples -> what the last evaluation counted for its report.
    reports: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)

    @classmethod
    def completed(cls, config: Any) -> Any:
        """Returns the configuration of a run, which without training also reads long texts as the
        network's training did."""
        config = super().completed(config)
        used, said = network_in_use(config), (provenance.FLAG, provenance.RUN)
        if used is not None and (recorded := used[1].long_texts) is not None:
            if config.sources.get("long_texts") not in said:
                config = flags.changed(config, long_texts=recorded)
            # The stride is of this choice.
            if config.data.long_texts == recorded and config.sources.get("doc_stride") not in said:
                config = flags.changed(config, doc_stride=used[1].doc_stride)
        config.data.check_stride()
        return config

    def model_fn(
        self, network: fine_tuning.NetworkBuilder, rule: update.UpdateRule | None
    ) -> Callable[..., tpu.TPUEstimatorSpec]:
        flags.check(
            not self.data.task.is_pair or network.bert_config.type_vocab_size > 1,
            "bert_config_file",
            self.config.network.bert_config_file,
            "has type_vocab_size 1, but pairs of texts have 2 segments; give a network that was "
            "made for pairs",
        )
        return classification.model_fn_builder(network, self._head(), rule)

    def _head(self):
        """Returns the head of the network; raises FlagError if a flag does not fit it."""
        task, class_weights = self.data.task, self.config.data.class_weights
        is_one_of_several = task.kind in ("classification", "tagging")
        num_labels = len(task.labels) or 1
        weights = class_weights and tuple(map(float, class_weights.split(",")))
        flags.check(
            not weights or (len(weights) == num_labels and is_one_of_several),
            "class_weights",
            class_weights,
            f"must be a number for each of the labels {', '.join(task.labels)}",
        )
        smoothing = self.config.data.label_smoothing
        rule = f"is for one label of several, and not for a task of the kind {task.kind}"
        flags.check(is_one_of_several or not smoothing, "label_smoothing", smoothing, rule)
        reports = task.kind in classification_report.KINDS
        positive = 1 if task.positive is None else task.labels.index(task.positive)
        of_head = (
            task.kind,
            num_labels,
            task.metrics,
            weights or None,
            reports,
            positive,
            smoothing,
        )
        if task.kind == "tagging":
            return classification.TaggingHead(*of_head, labels=task.labels)
        is_windows = task.long_texts.choice == WINDOWS
        return (classification.WindowsHead if is_windows else classification.Head)(*of_head)

    def task(self) -> dict[str, Any]:
        # The key `words` is for taggers whose words are not what stands between spaces.
        task = self.data.task
        words = self._words() if task.kind == "tagging" else tag_files.SPACES
        return {
            "kind": task.kind,
            "labels": task.labels,
            "is_pair": task.is_pair,
            "vocab_file": network_files.name_of_vocabulary(task.vocab_file),
            **task.casing._asdict(),
            "max_seq_length": self.config.data.max_seq_length,
            **({} if words == tag_files.SPACES else {"words": words}),
            **task.long_texts.recorded(),
        }

    def _words(self):
        """Returns what words are, by the sentences to train on, or else as the run recorded it."""
        path = os.path.join(self.directory.path, run_directory.TASK)
        if self.data.task.words or not os.path.exists(path):
            return self.data.task.words or tag_files.SPACES
        return tag_files.recorded_form(json_files.read(path), path)

    def head(self) -> tuple[str, ...]:
        # Tags are predicted from the tokens, without the pooler.
        pooler = () if self.data.task.kind == "tagging" else (f"{POOLER}dense/kernel",)
        return (CLASSIFIER, *pooler)

    def evaluate_once(self, checkpoint: str | None) -> dict[str, Any]:
        """Evaluates on all files of the task; returns metric -> value, the deciding one first."""
        results: dict[str, Any] = {}
        self.reports.clear()
        for name, features in self.data.task.evaluate.items():
            metrics = self.evaluate_on(features, checkpoint, name or None)
            if self.data.task.kind in classification_report.KINDS:
                names = set(classification_report.NAMES) & set(metrics)
                counted = {key: metrics.pop(key) for key in names}
                self.reports[name] = counted
                self._write_summaries(name or None, metrics["global_step"], counted)
            if not results:
                deciding = self.data.deciding_metric
                results = {deciding: metrics[deciding], **metrics}
                continue
            # The spec's loss, a mean over batches, and the step are reported once.
            del metrics["loss"], metrics["global_step"]
            # Metrics of the first file have their own names; the name of the file stands before
            # names of metrics of the other files.
            results.update({f"{name}_{key}": value for key, value in metrics.items()})
        return results

    def evaluation_digest(self) -> str:
        digests = [features.digest().hex() for features in self.data.task.evaluate.values()]
        return hashlib.sha256(repr((self.data.deciding_metric, digests)).encode()).hexdigest()

    def _write_summaries(self, name, step, counted):
        """Writes the report of an evaluation beside its other events."""
        task = self.data.task
        values = classification_report.summaries(task.kind, task.labels, counted)
        with tf.Graph().as_default():  # a FileWriter refuses to be made in eager mode
            writer = tpu.summary.event_writer(self.run.estimator.eval_dir(name))
        writer.add_summary(tf.Summary(value=values), step)
        writer.flush()

    def evaluate(self) -> dict[str, float]:
        """Evaluates as every script does, and writes eval_report.tsv for each file of the task; see
        `classification_report.lines`."""
        results = super().evaluate()
        task = self.data.task
        for name, counted in self.reports.items():
            file = f"eval_report{name and '_' + name}.tsv"
            path = os.path.join(self.config.output_dir, file)
            write_lines(path, classification_report.lines(task.kind, task.labels, counted))
            shown = remote.shown(path)
            print(f"Precision and recall of each label, confusions and calibration: {shown}")
        return results

    def predict(self) -> None:
        """Writes test_results.tsv: for each example, in order, a line with its number, or with the
        probabilities of the labels and tabs between them."""
        task = self.data.task
        for name, features in task.predict.items():
            rows = self.predictions_of(features)
            path = os.path.join(self.config.output_dir, f"test_results{name and '_' + name}")
            # Predicted tags go into a file in the format of the sentences, see
            # `tag_files.tagged_lines`.
            if task.write_tags:
                path += task.tags_extension
                write_lines(path, task.write_tags(_tags(task, features, rows)))
                what = f"{features.num_sentences} sentences with their tags"
            else:
                path += ".tsv"
                rows = exported_model.of_texts(features, rows, task.kind)
                write_lines(path, map(_as_line, rows))
                probabilities = f"probabilities of {', '.join(task.labels)}"
                what = (
                    f"{features.num_texts} lines: {probabilities if task.labels else 'the number'}"
                )
            print(f"Predictions: {remote.shown(path)} ({what})")

    def examples(self) -> list[Batches]:
        task = self.data.task
        sets = task.train, *task.evaluate.values(), *task.predict.values()
        return [features for features in sets if features]

    def score(self, answer: onnx_export.Answer) -> tuple[str, float]:
        features = next(iter(self.data.task.evaluate.values()))
        batches = (
            (batch, outputs[runtime.LOGITS])
            for _, batch, outputs in onnx_export.answered(answer, features)
        )
        scores = classification.scores(self._head(), batches)
        return self.data.deciding_metric, float(scores[self.data.deciding_metric])

    def text_input(self) -> export.TextInput | None:
        inputs = self.config.evaluation.export_inputs
        return export.text_input(inputs, self.data.task, self.config.data.max_seq_length)


def _tags(task, features, predictions):
    """Returns the predicted tags of the words of each sentence."""
    numbers = features.by_sentence([row["logits"].argmax(axis=-1) for row in predictions])
    return [[task.labels[number] for number in sentence] for sentence in numbers]


def _as_line(prediction):
    values = prediction.get("probabilities", prediction["logits"])
    return "\t".join(str(float(value)) for value in values)
