"""Hugging Face's config.json: the network, and what the outputs of a classifier mean."""

import json
import os
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import network_files, network_variables
from bert_estimator.interchange.source import (
    ALBERT,
    ARCHITECTURES,
    BERT,
    CLASSIFICATION,
    ELECTRA,
    MULTI_LABEL,
    REGRESSION,
    TAGGING,
    TRANSFORMERS,
    Source,
    check_layer_groups,
)
from bert_estimator.system import json_files

CONFIG = "config.json"

# transformers keeps a key that it does not know. Under this one are facts of task.json, and what
# they were written for: the class of the model, and the names of its outputs if they are known.
OWN = "bert_estimator"
_FACTS = ("is_pair", "version_2_with_negative")

# google-research/bert's "gelu" is the tanh form, transformers' "gelu" the exact form. If
# transformers has several names for one function, the first of them is written.
HIDDEN_ACTS = {
    "gelu": ("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate", "gelu_fast"),
    "gelu_erf": ("gelu", "gelu_python"),
    "relu": ("relu",),
    "tanh": ("tanh",),
    "linear": ("linear",),
    "silu": ("silu", "swish"),
    **{name: (name,) for name in ("quick_gelu", "mish", "relu6", "leaky_relu")},
}

# What transformers builds if a configuration does not say it, by its model_type.
_DEFAULTS = {
    BERT: BertConfig(vocab_size=30522, hidden_act="gelu_erf"),
    ALBERT: BertConfig(
        vocab_size=30000,
        hidden_size=4096,
        num_attention_heads=64,
        intermediate_size=16384,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        embedding_size=128,
        num_hidden_groups=1,
    ),
    ELECTRA: BertConfig(
        vocab_size=30522,
        hidden_size=256,
        num_attention_heads=4,
        intermediate_size=1024,
        hidden_act="gelu_erf",
        embedding_size=128,
    ),
}
# The key of the head's dropout, and its default; None is the dropout of the hidden layers.
_HEAD_DROPOUT = {
    BERT: ("classifier_dropout", None),
    ALBERT: ("classifier_dropout_prob", 0.1),
    ELECTRA: ("classifier_dropout", None),
}
# ALBERT's settings of variants that it never published.
_ONLY_ALBERT = ("inner_group_num", "net_structure_type", "gap_size", "num_memory_blocks")

# Settings that transformers would let a configuration change, and the values that this project's
# network is built with.
_FIXED = {
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

# The end of the class whose classifier labels each token; its configuration does not have a
# problem_type.
TOKEN_CLASSIFIER = "ForTokenClassification"
_SEQUENCE_CLASSIFIER = "ForSequenceClassification"


def is_config(path: str) -> bool:
    """Returns whether a JSON file is transformers' configuration, which names a type of model."""
    with tf.io.gfile.GFile(path, "rb") as reader:
        return b'"model_type"' in reader.read(json_files.MOST_BYTES)


def read_config(path: str) -> BertConfig:
    """Returns the `BertConfig` of a config.json of transformers."""
    return config_of(read_json(path), path)


def read_any_config(path: str) -> BertConfig:
    """Returns the `BertConfig` of a bert_config.json, or of a config.json of transformers."""
    is_theirs = tf.io.gfile.exists(path) and is_config(path)
    return read_config(path) if is_theirs else BertConfig.from_json_file(path)


def config_of(values: dict[str, Any], path: str) -> BertConfig:
    """Returns the `BertConfig` that the values of a config.json describe."""
    kind = model_type(values, path)
    for key, allowed in _FIXED.items():
        if values.get(key, allowed) != allowed:
            raise ValueError(
                f"{path}: {key}={values[key]!r}, but the network supports {allowed!r} only"
            )
    if values.get("quantization_config") is not None:
        raise ValueError(
            f"{path}: quantization_config: quantized weights are not supported. Give the model "
            "before its quantization, or delete quantization_config from the file if the weights "
            "are floats"
        )
    ours = {theirs: name for name, names in HIDDEN_ACTS.items() for theirs in names}
    known = {"layer_norm_eps": BertConfig.layer_norm_eps, **_DEFAULTS[kind].to_dict()}
    keys = (*known, *_ONLY_ALBERT) if kind == ALBERT else known
    sizes = {**known, **{key: value for key, value in values.items() if key in keys}}
    # null is a value, too: the dropout of the hidden layers.
    dropout = values.get(*_HEAD_DROPOUT[kind])
    sizes["classifier_dropout"] = sizes["hidden_dropout_prob"] if dropout is None else dropout
    if "hidden_act" in values:
        act = json_files.field(values, "hidden_act", str, path)
        if act not in ours:
            known_acts = ", ".join(ours)
            raise ValueError(f"{path}: hidden_act={act!r} is not known; known are {known_acts}")
        sizes["hidden_act"] = ours[act]
    # Here the network has no layer after embeddings of the hidden size, like transformers' ELECTRA.
    # transformers' ALBERT always has the layer.
    if "embedding_size" in sizes and sizes["embedding_size"] == sizes["hidden_size"]:
        if kind == ALBERT:
            raise ValueError(
                f"{path}: embedding_size and hidden_size are both {sizes['hidden_size']}, but the "
                "network maps embeddings to another size only"
            )
        del sizes["embedding_size"]
    config = BertConfig.from_dict(sizes, source=path)
    if kind == ALBERT:
        check_layer_groups(config, TRANSFORMERS, path)
    return config


def model_type(values: dict[str, Any], path: str) -> str:
    """Returns the model_type of the values of a config.json, one of `ARCHITECTURES`."""
    kind = values.get("model_type", BERT)
    if kind not in ARCHITECTURES:
        supported = ", ".join(map(repr, ARCHITECTURES))
        raise ValueError(f"{path}: model_type={kind!r}, but the network supports {supported} only")
    return kind


def task_of(
    values: dict[str, Any], path: str, num_outputs: int, kind: str | None
) -> dict[str, Any]:
    """Returns what a config.json says of a task, as fields of `Source`."""
    own = json_files.field(values, OWN, dict, path, default={})
    keys = (*_FACTS, *network_files.OF_LONG_TEXTS)
    said = {key: own.get(key) for key in ("labels", *keys, *network_files.OF_READING)}
    facts = network_files.task_of(said, f"{path}: {OWN}")
    names = _names_of(values, path, num_outputs) if num_outputs else ()
    # Names are empty if they are the defaults of transformers, LABEL_0, LABEL_1 and so on, and OWN
    # does not say that they are the task's.
    is_default = names == default_labels(num_outputs)
    if is_default and not facts["labels"]:
        names = ()
    # transformers keeps OWN in a model that it trains further. So OWN counts only if it was written
    # for the class and the names that the file has.
    if [own.get("class")] != values.get("architectures") or facts["labels"] != names:
        facts = {**dict.fromkeys(facts), "reading": {}}
        names = () if is_default else names
    key = "output_names" if kind == REGRESSION else "labels"
    return {key: names, **{name: facts[name] for name in (*keys, "reading")}}


def _names_of(values, path, num_outputs):
    """Returns the labels of a config.json, in their order."""
    names = json_files.field(values, "id2label", dict, path, default={})
    # transformers leaves out its defaults.
    if not names:
        return default_labels(num_outputs)
    if len(names) != num_outputs:
        raise ValueError(
            f"{path}: id2label: {len(names)} labels, but the number of the classifier's outputs, "
            f"which need a label each, is {num_outputs}. Correct id2label, or take it out of the "
            "file"
        )
    labels: dict[str, int] = {}
    for i in range(num_outputs):
        if str(i) not in names:
            raise ValueError(
                f"{path}: id2label: lacks the key {str(i)!r}; its keys must be the numbers of the "
                f"outputs, 0 to {num_outputs - 1}. Correct id2label, or take it out of the file"
            )
        name = names[str(i)]
        label = json_files.check(str(name) if type(name) is int else name, str, f"{path}: id2label")
        if label in labels:
            raise ValueError(
                f"{path}: id2label: the outputs {labels[label]} and {i} have the same label, "
                f"{json_files.shown(label)}. Give each output a label of its own"
            )
        labels[label] = i
    return tuple(labels)


def kind_of(values: dict[str, Any], path: str, num_outputs: int) -> str | None:
    """Returns what a config.json says that the outputs mean, one of `source.KINDS`, or None."""
    classes = json_files.field(values, "architectures", list, path, default=[])
    if any(str(name).endswith(TOKEN_CLASSIFIER) for name in classes):
        return TAGGING
    kinds = {theirs: ours for ours, theirs in _PROBLEM_TYPES.items()}
    kind = kinds.get(json_files.field(values, "problem_type", str, path, default=None))
    # Without a problem_type, transformers takes a single output for a number, and several for
    # classes.
    if kind is None and any(str(name).endswith(_SEQUENCE_CLASSIFIER) for name in classes):
        return usual_kind(num_outputs)
    return kind


def write(folder: str, source: Source, architecture: str, num_labels: int, pad_id: int) -> None:
    """Writes config.json for weights of transformers' class `architecture`; `num_labels` is the
    number of the classifier's outputs, 0 without a classifier."""
    kind, sizes = network_variables.architecture_of(source), source.config.to_dict()
    sizes[_HEAD_DROPOUT[kind][0]] = sizes.pop("classifier_dropout")
    values = {
        "architectures": [architecture],
        "model_type": kind,
        "layer_norm_eps": source.config.layer_norm_eps,
        **_FIXED,
        **sizes,
        # transformers' default is another width.
        **({"embedding_size": source.config.embedding_width()} if kind == ELECTRA else {}),
        "hidden_act": HIDDEN_ACTS[source.config.hidden_act][0],
        "pad_token_id": pad_id,
        "torch_dtype": "float32",
    }
    # The task's facts are written with what they hold for; see OWN.
    known = (source.labels or source.output_names) if num_labels else ()
    facts = {key: getattr(source, key) for key in _FACTS} | network_files.of_texts(source)
    if known or any(fact is not None for fact in facts.values()):
        values[OWN] = {"class": architecture, "labels": list(known), **facts}
    if num_labels:
        labels = known or default_labels(num_labels)
        if len(labels) != num_labels:
            raise ValueError(
                f"{source.path}: the classifier has {num_labels} outputs, but {len(labels)} labels "
                f"are beside it: {', '.join(labels)}. Correct the labels, or remove their file"
            )
        kind = source.kind or usual_kind(num_labels)
        if kind in _PROBLEM_TYPES:
            values["problem_type"] = _PROBLEM_TYPES[kind]
        values["id2label"] = {str(i): label for i, label in enumerate(labels)}
        values["label2id"] = {label: i for i, label in enumerate(labels)}
    write_json(os.path.join(folder, CONFIG), values)


def read_json(path: str) -> dict[str, Any]:
    """Returns the object in a config.json."""
    try:
        return json_files.read(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: is missing beside the weights") from None


def write_json(path: str, values: Any) -> None:
    """Writes a JSON file."""
    with open(path, "w", encoding="utf-8") as writer:
        writer.write(json.dumps(values, indent=2) + "\n")


def usual_kind(num_outputs: int) -> str:
    """Returns what the outputs of a classifier are, if nothing says it."""
    # A classifier with a single output has nothing to choose from: it tells a number.
    return REGRESSION if num_outputs == 1 else CLASSIFICATION


def default_labels(number: int) -> tuple[str, ...]:
    """Returns the labels that transformers gives to outputs without labels."""
    return tuple(f"LABEL_{i}" for i in range(number))
