"""The SavedModel of a fine-tuned network that takes text; `FineTuning.export_model` takes ids.

The signature `serving_default` takes strings; `serving.text_model` and, for tagging,
`serving.tag_model` list signatures and outputs.
The graph's tokens are compared with the tokenizer's on every text of the task's files before step
0, so that a difference is not found after the training; and for SentencePiece, on probes of the
model's features.
"""

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator import tokenization, tpu
from bert_estimator.command_line import flags
from bert_estimator.jobs.classification_config import ClassificationConfig
from bert_estimator.serving import graph_sentencepiece, graph_tokenizer, tag_model, text_model
from input_pipelines.task_data import TaskData

_DEFAULT = tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
_TAGGING = "tagging"


def takes_text(config: ClassificationConfig, task: TaskData) -> bool:
    """Returns whether an export is to take text, and prints whether it will.

    Raises:
      FlagError: --export_inputs=text is not possible, or the graph splits a text of the task
        differently from training.
    """
    why_not = _why_not(task)
    if config.export_inputs == "text":
        flags.check(not why_not, "export_inputs", "text", f"{why_not}; give --export_inputs=ids")
    if why_not or config.export_inputs == "ids":
        print("The SavedModel takes ids" + (f": {why_not}." if why_not else "."))
        return False
    tokenizer = tokenization.open_tokenizer(task.vocab_file, task.do_lower_case)
    what = "words" if task.kind == _TAGGING else "texts"
    try:
        text_model.check_texts(tokenizer, graph_tokenizer.probes(tokenizer))
        number = text_model.check_texts(tokenizer, task.texts())
    except text_model.TextDifferenceError as error:
        raise flags.FlagError(f"--export_inputs=text: {error}; give --export_inputs=ids") from None
    print(
        f"The SavedModel takes text, and splits all {number} {what} of the task as training does."
    )
    return True


def text_parts(
    config: ClassificationConfig, task: TaskData
) -> tuple[Callable[[], tpu.serving.ServingInputReceiver], Callable[..., Any]]:
    """Returns what makes an export take text, if `takes_text` says that it can.

    Returns:
      (the `serving_input_receiver_fn`; a function of the model_fn that returns the model_fn to
      export, whose outputs have names for labels).
    """
    tokenizer = tokenization.open_tokenizer(task.vocab_file, task.do_lower_case)
    if task.kind == _TAGGING:
        return _tagging_parts(tokenizer, config.max_seq_length, task.labels)
    made = []

    def receiver():
        made[:] = [text_model.inputs(tokenizer, task.is_pair, config.max_seq_length)]
        return tpu.serving.ServingInputReceiver(made[0].ids, made[0].texts, {"ids": made[0].ids})

    def wrap(model_fn):
        def with_named_outputs(features, labels, mode, params):
            spec = model_fn(features, labels, mode, params)
            outputs = text_model.named_outputs(task.kind, task.labels, spec.predictions)
            outputs = _export_outputs(task.kind, made[0], outputs)
            return spec._replace(export_outputs=outputs)

        return with_named_outputs

    return receiver, wrap


def _why_not(task):
    """Returns why the exported graph cannot take the task's text, or ""."""
    return graph_sentencepiece.load_operations() if task.vocab_file.endswith(".model") else ""


def _tagging_parts(tokenizer, max_seq_length, tags):
    """Returns the same for tagging, whose texts become windows, and windows words with tags."""
    tagged = []

    def receiver():
        tagged[:] = [tag_model.TaggedText(tokenizer, max_seq_length)]
        return tpu.serving.ServingInputReceiver(
            tagged[0].ids, tagged[0].texts, {"ids": tagged[0].ids}
        )

    def wrap(model_fn):
        def with_words(features, labels, mode, params):
            spec = model_fn(features, labels, mode, params)
            outputs = tagged[0].outputs(tags, spec.predictions["probabilities"])
            return spec._replace(
                export_outputs={
                    _DEFAULT: tpu.serving.PredictOutput(outputs),
                    tag_model.WINDOWS: tpu.serving.PredictOutput(dict(spec.predictions)),
                }
            )

        return with_words

    return receiver, wrap


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
    return {_DEFAULT: tpu.serving.PredictOutput(named), name: requests}
