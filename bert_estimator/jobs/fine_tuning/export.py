"""The SavedModels of fine-tuned networks: whether they take text, and what they consist of.

What the graph does with text is compared with what training does, on every text of the task's files
and before step 0, so that a difference is not found after the training; and for SentencePiece, on
probes of the model's features. `serving.graph.text_model`, `tag_model` and `answer_model` list
signatures and outputs.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow.compat.v1 as tf

from bert_estimator import precision, tokenization, tpu
from bert_estimator.command_line import flags
from bert_estimator.interchange import weights
from bert_estimator.serving.graph import (
    answer_model,
    graph_sentencepiece,
    graph_tokenizer,
    tag_model,
    text_model,
)
from bert_estimator.serving.graph.answer_model import AnswerText
from bert_estimator.serving.graph.text_model import TextDifferenceError, check_texts
from bert_estimator.tpu import checkpoints
from input_pipelines.tasks.task_data import TaskData
from input_pipelines.tasks.windows import Windows

_DEFAULT = tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
_WINDOWS = "windows"  # the signature of the ids of windows
_TAGGING = "tagging"


class TextParts(NamedTuple):
    """Holds what makes an export take text."""

    receiver: Callable[[], tpu.serving.ServingInputReceiver]  # serving_input_receiver_fn
    # A function of the model_fn that returns the model_fn to export, with outputs made for people.
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]]


class WindowedText(Protocol):
    """Says what a model that splits long texts into windows adds to a graph."""

    texts: dict[str, tf.Tensor]  # placeholders by name
    ids: dict[str, tf.Tensor]  # the features of the windows, which may be fed instead

    def outputs(self, predictions: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the outputs of `serving_default`, from the predictions for the windows."""


def why_not(vocab_file: str, casing: tokenization.Casing, with_offsets: bool = False) -> str:
    """Returns why a graph cannot split text by a vocabulary, or ""; `with_offsets`, it has to tell,
    too, which characters a token comes from."""
    reason = graph_sentencepiece.load_operations() if vocab_file.endswith(".model") else ""
    if reason:
        return reason
    tokenizer = tokenization.reopen_tokenizer(vocab_file, casing)
    reason = graph_tokenizer.why_not(tokenizer)
    if with_offsets:
        reason = reason or graph_tokenizer.why_not_offsets(tokenizer)
    if reason:
        return reason
    try:
        check_texts(tokenizer, graph_tokenizer.probes(tokenizer), with_offsets)
    except TextDifferenceError as error:
        return f"tensorflow-text cannot do the same as {vocab_file}; for example, {error}"
    return ""


def takes_text(
    export_inputs: str | None, why_not: Callable[[], str], check: Callable[[], str]
) -> bool:
    """Returns whether an export is to take text, and prints whether it will.

    Args:
      why_not: returns why the export cannot take text, or "".
      check: compares the graph with training; returns what it has compared.
    """
    if export_inputs == "ids":
        print("The SavedModel takes ids.")
        return False
    # Without the flag, an export that cannot take text takes ids; with it, that is an error.
    reason = why_not()
    if reason:
        rule = f"{reason}; give --export_inputs=ids"
        flags.check(export_inputs is None, "export_inputs", export_inputs, rule)
        print(f"The SavedModel takes ids: {reason}.")
        return False
    try:
        checked = check()
    except TextDifferenceError as error:
        raise flags.FlagError(f"--export_inputs=text: {error}; give --export_inputs=ids") from None
    print(f"The SavedModel takes text, and {checked}.")
    return True


def windowed(make: Callable[[], WindowedText]) -> TextParts:
    """Returns the parts of an export whose texts become windows, which `make` adds to the graph."""
    # The estimator calls the receiver before the model_fn, in the same graph.
    made: list[WindowedText] = []

    def receiver():
        made[:] = [make()]
        return tpu.serving.ServingInputReceiver(made[0].ids, made[0].texts, {"ids": made[0].ids})

    def wrap(model_fn):
        def with_outputs(features, labels, mode, params):
            spec = model_fn(features, labels, mode, params)
            outputs = {
                _DEFAULT: made[0].outputs(spec.predictions),
                _WINDOWS: dict(spec.predictions),
            }
            outputs = {name: tpu.serving.PredictOutput(values) for name, values in outputs.items()}
            return spec._replace(export_outputs=outputs)

        return with_outputs

    return TextParts(receiver, wrap)


def labels_take_text(export_inputs: str | None, task: TaskData) -> bool:
    """Returns whether the export of a task with labels is to take text; see `takes_text`."""

    def check():
        tokenizer = tokenization.reopen_tokenizer(task.vocab_file, task.casing)
        number = check_texts(tokenizer, task.texts())
        if not number:
            return "is not compared with training, since the task's files do not have texts"
        what = "words" if task.kind == _TAGGING else "texts"
        return f"splits all {number} {what} of the task as training does"

    return takes_text(export_inputs, lambda: why_not(task.vocab_file, task.casing), check)


def labels_of_text(task: TaskData, max_seq_length: int) -> TextParts:
    """Returns what makes the export of a task with labels take text, of a length in tokens."""
    tokenizer = tokenization.reopen_tokenizer(task.vocab_file, task.casing)
    if task.kind == _TAGGING:
        # Texts to tag are split into windows of this length; other texts are cut to it.
        return windowed(lambda: tag_model.TaggedText(tokenizer, max_seq_length, task.labels))
    made = []

    def receiver():
        made[:] = [text_model.inputs(tokenizer, task.is_pair, max_seq_length)]
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
    return {_DEFAULT: tpu.serving.PredictOutput(named), name: requests}


def answers_take_text(
    export_inputs: str | None,
    settings: answer_model.Settings,
    vocab_file: str,
    sets: Sequence[Windows | None],
) -> bool:
    """Returns whether the export of a network for answers is to take text; see `takes_text`."""

    def check():
        # Evaluation and prediction may have the same windows.
        different = {id(windows): windows for windows in sets if windows}.values()
        number = sum(answer_model.check_questions(settings, windows) for windows in different)
        return f"answers all {number} questions of the task as prediction does from the same logits"

    casing = settings.tokenizer.casing
    return takes_text(export_inputs, lambda: why_not(vocab_file, casing, with_offsets=True), check)


def answers_of_text(settings: answer_model.Settings) -> TextParts:
    """Returns what makes the export of a network for answers take text."""
    return windowed(lambda: AnswerText(settings))


class RoundingSaver(tf.train.Saver):
    """Restores variables of bfloat16 from float32, too, rounded to the nearest, as a cast does."""

    def restore(self, sess: tf.Session, save_path: str) -> None:
        """Restores all variables of the graph; adds no operations to it."""
        variables = tf.global_variables()
        checkpoints.check_restorable(save_path, variables, rounds=True)
        reader = tf.train.load_checkpoint(save_path)
        dtypes = {v.op.name: v.dtype.base_dtype.as_numpy_dtype for v in variables}
        weights.load(lambda name: reader.get_tensor(name).astype(dtypes[name]), variables, sess)


def rounded(model_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the model_fn to export, whose variables have the dtype in which it reads them."""

    def with_rounded_weights(features, labels, mode, params):
        # A run with --precision=bfloat16 has float32 weights, since training adds small updates to
        # them. Each step rounds them, and each request would, too, which takes a third of the time
        # of a single text (BERT-base). So an export rounds them once.
        with precision.stored_as_read():
            spec = model_fn(features, labels, mode, params)
        return spec._replace(
            scaffold_fn=lambda: tf.train.Scaffold(saver=RoundingSaver(sharded=True))
        )

    return with_rounded_weights
