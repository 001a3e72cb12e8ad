"""Converting a model from one format to the other, and checking that it is still the same."""

import dataclasses
import os
import tempfile
from collections.abc import Mapping

import numpy as np

from bert_estimator import memory_needed
from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import network_variables
from bert_estimator.interchange.google import tf1_checkpoint
from bert_estimator.interchange.hugging_face import weight_files
from bert_estimator.interchange.onnx import model_directory
from bert_estimator.interchange.opening import open_source
from bert_estimator.interchange.source import HUGGING_FACE, ONNX, TAGGING, TF1, Source
from bert_estimator.interchange.weights import fixed_batch, logits_of, open_network
from bert_estimator.system import paths
from bert_estimator.system.errors import listed

WRITERS = {
    TF1: tf1_checkpoint.write,
    HUGGING_FACE: weight_files.write,
    ONNX: model_directory.write,
}

# The weights are copied, not computed: on one machine the logits are the same bit for bit, unless
# its threads split a sum differently.
_TOLERANCE = 1e-5


def check(source: Source, target: str, to: str) -> None:
    """Raises ValueError if `convert` cannot write this model there."""
    if paths.is_remote(target):
        raise ValueError(f"{target}: must be a directory of this machine; copy it there afterwards")
    if os.path.exists(target) and not (os.path.isdir(target) and not os.listdir(target)):
        raise ValueError(f"{target}: exists already; choose another target, or remove it")
    # TensorFlow reads such a path as a pattern of several files.
    if to != HUGGING_FACE:
        paths.check_no_pattern(target, f"{target}: ")
    names_left_out(source, to)  # for its errors
    # The weights are in memory several times when the copy is compared with the source, so this is
    # checked before any weight is read.
    needed = memory_needed.of_conversion(source.config)
    memory_needed.check(needed, source.path, "convert it on a machine with more memory")


def convert(source: Source, target: str, to: str) -> dict[str, float]:
    """Writes a model in another format to an empty or new directory, and compares the written files
    with the source; returns output -> greatest absolute difference of the logits on a fixed
    batch."""
    check(source, target, to)
    left_out = names_left_out(source, to)
    tokenizer = source.open_tokenizer()
    weights = {name: source.read(name) for name in source.shapes if name not in left_out}
    for name, value in weights.items():
        if value.dtype != np.float32:
            raise ValueError(f"{source.path}: {name} is {value.dtype}, not float32")
    bad = [name for name, value in weights.items() if not np.all(np.isfinite(value))]
    if bad:
        raise ValueError(
            f"{source.path}: these weights are not finite: {listed(bad)}. Nothing was written; "
            "convert a checkpoint or a model whose weights are"
        )
    parent, name = os.path.split(os.path.abspath(target))
    os.makedirs(parent, exist_ok=True)
    # The target appears when it is complete and equal to the source, not before.
    with tempfile.TemporaryDirectory(prefix=f"{name}.partial-", dir=parent) as folder:
        partial = os.path.join(folder, name)  # within, since the outer one is for its owner only
        os.mkdir(partial)
        WRITERS[to](partial, source, weights, tokenizer)
        if to == ONNX:
            batches = [fixed_batch(source.config)]
            differences = model_directory.check(partial, source.config, weights, batches)
        else:
            differences = compare(source.config, weights, open_source(partial), target)
        os.replace(partial, target)
    return differences


def names_left_out(source: Source, to: str) -> list[str]:
    """Returns the names of the source's weights that a format does not have."""
    heads = network_variables.check(source.config, source.shapes, source.path)
    if to == ONNX:
        return model_directory.names_left_out(source, heads)
    if to == HUGGING_FACE and (source.kind == TAGGING or network_variables.ANSWER in heads):
        # These networks do not use their pooler, and BertForTokenClassification and
        # BertForQuestionAnswering do not have one.
        return [name for name in source.shapes if name.startswith(network_variables.POOLER)]
    return []


def compare(
    config: BertConfig, weights: Mapping[str, np.ndarray], written: Source, target: str
) -> dict[str, float]:
    """Compares the weights, bit for bit, and the logits of a model with a written copy, which
    errors call `target`; returns output -> greatest absolute difference."""
    # The copy is in a temporary directory, and errors must name the target.
    dataclasses.replace(written, path=target).check_network(written.config)
    copies = {name: written.read(name) for name in written.shapes}
    wrong = [
        name
        for name in sorted(set(weights) | set(copies))
        if name not in weights
        or name not in copies
        or not np.array_equal(weights[name], copies[name], equal_nan=True)
    ]
    if wrong:
        raise ValueError(
            f"{target}: these weights differ from the source's when they are read back: "
            f"{listed(wrong)}"
        )
    with open_network(config, weights) as outputs_of:
        before = outputs_of(weights)
        is_same = written.config == config  # then one graph is enough
        after = outputs_of(copies) if is_same else logits_of(written.config, copies)
    differences = {name: float(np.max(np.abs(before[name] - after[name]))) for name in before}
    for name, difference in differences.items():
        if not difference <= _TOLERANCE:  # a NaN does not agree
            raise ValueError(
                f"{target}: {name} differs from the source's by {difference:g}, which is more than "
                f"{_TOLERANCE:g}. Nothing was kept"
            )
    return differences
