"""A directory with an ONNX model: written, and compared with the network that it was made from.

Predictor and embedder read model.onnx, task.json, bert_config.json and the vocabulary; transformers
and the package tokenizers read the other files, which are there if they have such a model.
"""

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line.choices import QUESTION_ANSWERING
from bert_estimator.interchange import network_files
from bert_estimator.interchange.hugging_face import config_json, weight_files
from bert_estimator.interchange.network_variables import (
    ANSWER,
    CLASSIFIER,
    MASKED_LM,
    NEXT_SENTENCE,
    POOLER,
)
from bert_estimator.interchange.onnx import network_graph, runtime
from bert_estimator.interchange.source import ONNX, REGRESSION, TAGGING, Source
from bert_estimator.interchange.weights import open_network
from bert_estimator.tokenization import Tokenizer

# How far outputs may be from what TensorFlow computes in float32; further in proportion, if there
# are numbers above _LARGE among them.
TOLERANCE, _LARGE = 1e-4, 10.0


def names_left_out(source: Source, heads: Iterable[str]) -> list[str]:
    """Returns the names of a source's weights that its ONNX model does not have: the heads of
    pretraining, except that for masked words if it is the only one; and a pooler that is not
    used."""
    is_unused = source.kind == TAGGING or ANSWER in heads
    has_task = ANSWER in heads or CLASSIFIER in source.shapes
    left_out = (NEXT_SENTENCE, *[MASKED_LM] * has_task, *[POOLER] * is_unused)
    return [name for name in source.shapes if name.startswith(left_out)]


def write(
    folder: str,
    source: Source,
    weights: Mapping[str, np.ndarray],
    tokenizer: Tokenizer,
    task: Mapping[str, Any] | None = None,
) -> None:
    """Writes a network to an empty directory, with `task` added to task.json; says what
    transformers cannot read, and why."""
    model = network_graph.make(source.config, weights)
    with open(os.path.join(folder, runtime.FILE), "wb") as writer:
        writer.write(model.SerializeToString())
    network_files.write(folder, source)
    values = {**_task(source, weights, tokenizer), **(task or {})}
    with open(os.path.join(folder, network_files.TASK), "w", encoding="utf-8") as writer:
        writer.write(json.dumps(values, indent=2) + "\n")
    # transformers has other outputs for masked words.
    names = (name for name in weights if not name.startswith(MASKED_LM))
    shapes = {name: list(weights[name].shape) for name in names}
    try:
        model_class = weight_files.class_of(source, shapes)
    except ValueError as error:
        # --to=tf1 is bert-convert's flag, and the ONNX model has been written.
        reason = str(error).partition("; --to=tf1")[0]
        tf.logging.warning("transformers cannot read the ONNX model's directory: %s.", reason)
        return
    weight_files.write_description(folder, source, shapes, tokenizer, model_class)


def _task(source, weights, tokenizer):
    """Returns the contents of task.json; all that the predictor needs has a value."""
    kind, labels = source.kind, source.labels
    if f"{ANSWER}/output_weights" in weights:
        kind = QUESTION_ANSWERING
    if CLASSIFIER in weights:
        number = len(weights[CLASSIFIER])
        kind = kind or config_json.usual_kind(number)
        if kind != REGRESSION:
            labels = labels or config_json.default_labels(number)
    # The predictor needs a value for each key.
    if CLASSIFIER in weights and source.is_pair is None:
        tf.logging.warning(
            "Nothing beside %s says whether it reads pairs of texts; the ONNX model's task.json "
            'says "is_pair": false. For pairs, say true there.',
            source.path,
        )
    return {
        **network_files.task_of_source(source),
        "kind": kind,
        "labels": list(labels),
        "is_pair": bool(source.is_pair),
        **(source.casing or tokenizer.casing)._asdict(),
        "max_seq_length": source.max_seq_length or source.config.max_position_embeddings,
    }


def check(
    folder: str,
    config: BertConfig,
    weights: Mapping[str, np.ndarray],
    batches: Iterable[Mapping[str, np.ndarray]],
) -> dict[str, float]:
    """Compares the outputs of an ONNX model with what TensorFlow computes from the weights for
    batches like `weights.fixed_batch`'s; returns output -> greatest absolute difference, padding
    left out."""
    model = runtime.Model(folder)
    differences = dict.fromkeys(model.outputs, 0.0)
    with open_network(config, weights, has_any_shape=True) as outputs_of:
        for batch in batches:
            expected, is_token = outputs_of(weights, batch), batch["input_mask"] > 0
            if runtime.MASKED in differences:
                batch = {**batch, runtime.POSITIONS: np.arange(is_token.size)}
            for name, value in model.run(batch).items():
                ours = _ours(expected, name)
                value = value.reshape(ours.shape)
                # These outputs have values for each token; padding's do not count.
                if name in runtime.ENDS or ours.ndim == 3:
                    ours, value = ours[is_token], value[is_token]
                difference = float(np.max(np.abs(ours - value)))
                allowed = TOLERANCE * max(1.0, float(np.max(np.abs(ours))) / _LARGE)
                if not difference <= allowed:  # a NaN does not agree
                    raise ValueError(
                        f"{name} of the ONNX model differs from what TensorFlow computes by "
                        f"{difference:g}, which is more than {allowed:g}. Nothing was kept; please "
                        "report it, with the versions of onnx and onnxruntime"
                    )
                differences[name] = max(differences[name], difference)
    return differences


def _ours(outputs, name):
    """Returns the output of `weights.logits_of` that an ONNX model calls `name`."""
    if name in runtime.ENDS:
        return outputs["answer_logits"][..., runtime.ENDS.index(name)]
    return outputs[_OURS[name]]


_OURS = {
    runtime.LOGITS: "classifier_logits",
    runtime.MASKED: "masked_lm_logits",
    runtime.HIDDEN: "sequence_output",
    runtime.POOLED: "pooled_output",
}


def open_directory(folder: str, path: str) -> Source:
    """Returns what lies beside an ONNX model, as a `Source` without weights; `path` is what the
    user called it."""
    return Source(path, ONNX, {}, {}.__getitem__, **network_files.read(folder))
