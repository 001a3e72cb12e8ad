"""Hugging Face's config.json: the network, and what the outputs of a classifier mean."""

import json
import os
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator import json_files
from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange.source import (
    CLASSIFICATION,
    MULTI_LABEL,
    REGRESSION,
    TAGGING,
    Source,
)

CONFIG = "config.json"

# google-research/bert's "gelu" is the tanh form, transformers' "gelu" the exact form. If
# transformers has several names for one function, the first of them is written.
HIDDEN_ACTS = {
    "gelu": ("gelu_new", "gelu_pytorch_tanh", "gelu_fast"),
    "gelu_erf": ("gelu", "gelu_python"),
    "relu": ("relu",),
    "tanh": ("tanh",),
    "linear": ("linear",),
}

# Settings that transformers would let a configuration change, and the values that this project's
# network is built with.
_FIXED = {
    "model_type": "bert",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}

# Without a problem_type, transformers' pipelines apply a sigmoid to a single output and a softmax
# to several outputs.
_PROBLEM_TYPES = {
    CLASSIFICATION: "single_label_classification",
    MULTI_LABEL: "multi_label_classification",
    REGRESSION: "regression",
}

# The class whose classifier labels each token; its configuration does not have a problem_type.
TOKEN_CLASSIFIER = "BertForTokenClassification"


def is_config(path: str) -> bool:
    """Returns whether a JSON file is transformers' configuration, which names a type of model."""
    with tf.io.gfile.GFile(path, "rb") as reader:
        return b'"model_type"' in reader.read(json_files.MOST_BYTES)


def read_config(path: str) -> BertConfig:
    """Returns the `BertConfig` of a config.json of transformers.

    Raises:
      ValueError: the file is missing or is not a configuration, or the network cannot be built
        here.
    """
    return config_of(read_json(path), path)


def config_of(values: dict[str, Any], path: str) -> BertConfig:
    """Returns the `BertConfig` that the values of a config.json describe.

    Args:
      values: the dict in the file.
      path: the file, for errors.

    Raises:
      ValueError: the network cannot be built here.
    """
    for key, allowed in _FIXED.items():
        if values.get(key, allowed) != allowed:
            raise ValueError(
                f"{path}: {key}={values[key]!r}, but the network supports {allowed!r} only"
            )
    ours = {theirs: name for name, names in HIDDEN_ACTS.items() for theirs in names}
    act = json_files.field(values, "hidden_act", str, path) if "hidden_act" in values else "gelu"
    if act not in ours:
        raise ValueError(f"{path}: hidden_act={act!r} is not known; known are {', '.join(ours)}")
    known = BertConfig(vocab_size=30522).to_dict()  # transformers has the same defaults
    known.update({key: value for key, value in values.items() if key in known})
    return BertConfig.from_dict({**known, "hidden_act": ours[act]}, source=path)


def labels_of(values: dict[str, Any], path: str) -> tuple[str, ...]:
    """Returns the labels that a config.json names, in their order; empty if they are the defaults
    of transformers, LABEL_0, LABEL_1 and so on. Raises ValueError if they are not strings."""
    names = json_files.field(values, "id2label", dict, path, default={})
    default = _default_labels(len(names))
    given = [names.get(str(i), label) for i, label in enumerate(default)]
    labels = tuple(
        str(label) if type(label) is int else json_files.check(label, str, f"{path}: id2label")
        for label in given
    )
    return () if labels == default else labels


def kind_of(values: dict[str, Any], path: str) -> str | None:
    """Returns what a config.json says that the outputs mean, one of `source.KINDS`, or None. Raises
    ValueError if it is not said in a string."""
    if TOKEN_CLASSIFIER in json_files.field(values, "architectures", list, path, default=[]):
        return TAGGING
    kinds = {theirs: ours for ours, theirs in _PROBLEM_TYPES.items()}
    return kinds.get(json_files.field(values, "problem_type", str, path, default=None))


def write(folder: str, source: Source, architecture: str, num_labels: int, pad_id: int) -> None:
    """Writes config.json.

    Args:
      folder: the directory.
      source: `Source`, with its configuration.
      architecture: the class of transformers that the weights are for.
      num_labels: number of the classifier's outputs; 0 without a classifier.
      pad_id: id of the padding token.

    Raises:
      ValueError: there are labels, but not one for each output.
    """
    values = {
        "architectures": [architecture],
        **_FIXED,
        **source.config.to_dict(),
        "hidden_act": HIDDEN_ACTS[source.config.hidden_act][0],
        "pad_token_id": pad_id,
        "torch_dtype": "float32",
    }
    if num_labels:
        labels = source.labels or _default_labels(num_labels)
        if len(labels) != num_labels:
            raise ValueError(
                f"{source.path}: the classifier has {num_labels} outputs, but {len(labels)} labels "
                f"are beside it: {', '.join(labels)}. Correct the labels, or remove their file"
            )
        # A classifier with a single output has nothing to choose from: it tells a number.
        kind = source.kind or (REGRESSION if num_labels == 1 else CLASSIFICATION)
        if kind in _PROBLEM_TYPES:
            values["problem_type"] = _PROBLEM_TYPES[kind]
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    write_json(os.path.join(folder, CONFIG), values)


def read_json(path: str) -> dict[str, Any]:
    """Returns the object in a config.json.

    Raises:
      ValueError: the file is missing, or does not hold a JSON object.
    """
    try:
        return json_files.read(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: is missing beside the weights") from None


def write_json(path: str, values: Any) -> None:
    """Writes a JSON file."""
    with open(path, "w", encoding="utf-8") as writer:
        writer.write(json.dumps(values, indent=2) + "\n")


def _default_labels(number):
    return tuple(f"LABEL_{i}" for i in range(number))
