"""The SavedModel of a fine-tuned network that takes text; `FineTuning.export_model` takes ids.

The signature `serving_default` takes strings; `serving.text_model` and, for tagging,
`serving.tag_model` list signatures and outputs.
The graph's tokens are compared with the tokenizer's on every text of the task's files before step
0, so that a difference is not found after the training.
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator import tokenization, tpu
from bert_estimator.command_line import flags
from bert_estimator.jobs.classification_config import ClassificationConfig
from bert_estimator.serving import tag_model, text_model
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

    def receiver():
        texts, ids = text_model.inputs(tokenizer, task.is_pair, config.max_seq_length)
        return tpu.serving.ServingInputReceiver(ids, texts, {"ids": ids})

    return receiver, functools.partial(_with_named_outputs, task.kind, task.labels)


def _why_not(task):
    """Returns why the exported graph cannot take the task's text, or ""."""
    if task.vocab_file.endswith(".model"):
        return "TensorFlow's graphs do not have operations for a SentencePiece vocabulary"
    return ""


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


def _with_named_outputs(kind, label_names, model_fn):
    """Returns a model_fn whose predictions are exported together with their meaning."""

    def named(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        outputs = text_model.named_outputs(kind, label_names, spec.predictions)
        return spec._replace(export_outputs={_DEFAULT: tpu.serving.PredictOutput(outputs)})

    return named
