"""The SavedModel of a fine-tuned network that takes text, and gives labels.

`serving.text_model` and, for tagging, `serving.tag_model` list its signatures and outputs.
"""

from bert_estimator import tokenization, tpu
from bert_estimator.jobs.fine_tuning import text_export
from bert_estimator.jobs.fine_tuning.classification_config import ClassificationConfig
from bert_estimator.jobs.fine_tuning.text_export import TextParts
from bert_estimator.serving.graph import tag_model, text_model
from input_pipelines.tasks.task_data import TaskData

_TAGGING = "tagging"


def takes_text(config: ClassificationConfig, task: TaskData) -> bool:
    """Returns whether an export is to take text; see `text_export.takes_text`."""

    def why_not():
        return text_export.why_not(task.vocab_file, task.casing)

    def check():
        tokenizer = tokenization.reopen_tokenizer(task.vocab_file, task.casing)
        number = text_model.check_texts(tokenizer, task.texts())
        if not number:
            return "has no texts of a file to be compared on with training"
        what = "words" if task.kind == _TAGGING else "texts"
        return f"splits all {number} {what} of the task as training does"

    return text_export.takes_text(config.export_inputs, why_not, check)


def text_parts(config: ClassificationConfig, task: TaskData) -> TextParts:
    """Returns what makes an export take text, if `takes_text` says that it can."""
    tokenizer = tokenization.reopen_tokenizer(task.vocab_file, task.casing)
    length = config.max_seq_length
    if task.kind == _TAGGING:
        return text_export.windowed(lambda: tag_model.TaggedText(tokenizer, length, task.labels))
    made = []

    def receiver():
        made[:] = [text_model.inputs(tokenizer, task.is_pair, length)]
        return tpu.serving.ServingInputReceiver(made[0].ids, made[0].texts, {"ids": made[0].ids})

    def wrap(model_fn):
        def with_named_outputs(features, labels, mode, params):
            spec = model_fn(features, labels, mode, params)
            outputs = text_model.named_outputs(task.kind, task.labels, spec.predictions)
            outputs = _export_outputs(task.kind, made[0], outputs)
            return spec._replace(export_outputs=outputs)

        return with_named_outputs

    return TextParts(receiver, wrap)


class _OfExamples:
    """An export output for requests of `tf.Example`s, whatever else the model takes."""

    inputs: text_model.Inputs

    def as_signature_def(self, receiver_tensors):
        """Returns the signature; raises ValueError, which leaves it out, for other receivers."""
        if receiver_tensors.keys() != self.inputs.texts.keys():
            raise ValueError("requests to classify and to regress have tf.Examples")
        return super().as_signature_def({"inputs": self.inputs.examples})


class _Classification(_OfExamples, tpu.serving.ClassificationOutput):
    pass


class _Regression(_OfExamples, tpu.serving.RegressionOutput):
    pass


def _export_outputs(kind, inputs, named):
    """Returns the outputs of all signatures by name, as an `EstimatorSpec` has them."""
    if kind == "regression":
        name, requests = "regress", _Regression(named["number"])
    else:
        name, requests = "classify", _Classification(named["probabilities"], named["labels"])
    requests.inputs = inputs
    return {text_export.DEFAULT: tpu.serving.PredictOutput(named), name: requests}
