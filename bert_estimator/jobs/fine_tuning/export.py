"""The SavedModels of fine-tuned networks: whether they take text besides ids, and their weights.

What the graph does with text is compared with what training does, on every text of the task's files
and before step 0, so that a difference is not found after the training.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from bert_estimator import precision, tokenization, tpu
from bert_estimator.command_line import flags
from bert_estimator.interchange import weights
from bert_estimator.serving.graph import text_model
from bert_estimator.tpu import checkpoints
from input_pipelines.tasks.task_data import TaskData

_DEFAULT = tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY


class TextParts(NamedTuple):
    """Holds what makes an export take text."""

    receiver: Callable[[], tpu.serving.ServingInputReceiver]  # serving_input_receiver_fn
    # A function of the model_fn that returns the model_fn to export, with outputs made for people.
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]]


def text_parts(export_inputs: str | None, task: TaskData, max_seq_length: int) -> TextParts | None:
    """Returns what makes the export of a task with labels take text, cut to a length in tokens, or
    None if it is to take ids alone; prints which, and raises FlagError if it cannot do as asked."""
    if export_inputs == "ids":
        print("The SavedModel takes ids.")
        return None
    # Without the flag, an export that cannot take text takes ids; with it, that is an error.
    if reason := _why_not(task):
        rule = (
            f"{reason}; give --export_inputs=ids: bert-predict and bert-serve turn texts into ids"
        )
        flags.check(export_inputs is None, "export_inputs", export_inputs, rule)
        print(f"The SavedModel takes ids: {reason}.")
        return None
    tokenizer = tokenization.reopen_tokenizer(task.vocab_file, task.casing)
    try:
        number = text_model.check_texts(tokenizer, task.texts())
    except text_model.TextDifferenceError as error:
        raise flags.FlagError(f"--export_inputs=text: {error}; give --export_inputs=ids") from None
    checked = f"splits all {number} texts of the task as training does"
    if not number:
        checked = "is not compared with training, since the task's files do not have texts"
    print(f"The SavedModel takes text, and {checked}.")
    return _parts(tokenizer, task, max_seq_length)


def _why_not(task):
    """Returns why a graph cannot take the texts of a task, or ""."""
    if task.kind == "tagging":
        return "a SavedModel takes text for classes and numbers, and not for tags"
    if task.vocab_file.endswith(".model"):
        return f"a SavedModel splits text by WordPiece, and {task.vocab_file} is SentencePiece"
    return ""


def _parts(tokenizer, task, max_seq_length):
    # The estimator calls the receiver before the model_fn, in the same graph.
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
