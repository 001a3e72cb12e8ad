"""Exports that take text, whatever the task: whether they can, and what they consist of.

What the graph does with text is compared with what training does, on every text of the task's files
and before step 0, so that a difference is not found after the training; and for SentencePiece, on
probes of the model's features.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import tensorflow.compat.v1 as tf

from bert_estimator import tokenization, tpu
from bert_estimator.command_line import flags
from bert_estimator.serving.graph import graph_sentencepiece, graph_tokenizer
from bert_estimator.serving.graph.text_model import TextDifferenceError, check_texts

DEFAULT = tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY
_WINDOWS = "windows"  # the signature of the ids of windows


class TextParts(NamedTuple):
    """Holds what makes an export take text.

    Attributes:
      receiver: the `serving_input_receiver_fn`.
      wrap: a function of the model_fn that returns the model_fn to export, whose outputs are made
        for people.
    """

    receiver: Callable[[], tpu.serving.ServingInputReceiver]
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]]


class WindowedText(Protocol):
    """What a model that splits long texts into windows adds to a graph.

    Attributes:
      texts: the placeholders of texts, by name.
      ids: the features of the windows by name, which may be fed instead.
    """

    texts: dict[str, tf.Tensor]
    ids: dict[str, tf.Tensor]

    def outputs(self, predictions: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns the outputs of `serving_default`, from the predictions for the windows."""


def why_not(vocab_file: str, casing: tokenization.Casing, with_offsets: bool = False) -> str:
    """Returns why a graph cannot split text by a vocabulary, or "".

    Args:
      vocab_file, casing: the vocabulary and its casing.
      with_offsets: whether the graph has to tell, too, which characters a token comes from.
    """
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
      export_inputs: the flag.
      why_not: returns why the export cannot take text, or "".
      check: compares the graph with training; returns what it has compared.

    Raises:
      FlagError: --export_inputs=text is not possible, or the graph treats a text of the task
        differently from training.
    """
    if export_inputs == "ids":
        print("The SavedModel takes ids.")
        return False
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
    """Returns the parts of an export whose texts become windows.

    Its signatures are `serving_default`, and `ids:windows` with the predictions for windows.

    Args:
      make: adds the inputs to the current graph.
    """
    made: list[WindowedText] = []

    def receiver():
        made[:] = [make()]
        return tpu.serving.ServingInputReceiver(made[0].ids, made[0].texts, {"ids": made[0].ids})

    def wrap(model_fn):
        def with_outputs(features, labels, mode, params):
            spec = model_fn(features, labels, mode, params)
            outputs = {DEFAULT: made[0].outputs(spec.predictions), _WINDOWS: dict(spec.predictions)}
            outputs = {name: tpu.serving.PredictOutput(values) for name, values in outputs.items()}
            return spec._replace(export_outputs=outputs)

        return with_outputs

    return TextParts(receiver, wrap)
