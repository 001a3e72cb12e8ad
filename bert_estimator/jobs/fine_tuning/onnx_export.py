"""Exports of fine-tuned networks as ONNX models, below export/onnx/.

A model is delivered after its outputs have been compared with what TensorFlow computes from the
same weights in float32, whatever the precision of the run. If its products are rounded to int8, the
loss of the task's metric is printed.
"""

import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_estimator import interchange, tokenization
from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange import network_files
from bert_estimator.interchange import weights as weights_lib
from bert_estimator.interchange.network_variables import ANSWER
from bert_estimator.interchange.onnx import model_directory, network_graph, runtime
from bert_estimator.interchange.source import KINDS
from bert_estimator.storage import remote
from bert_estimator.system import lock
from bert_estimator.system.errors import listed
from input_pipelines.tasks.features import Batches

# How many examples of the task's files are compared, and how many are computed at a time.
_COMPARED, _BATCH = 256, 32

# A function of features that returns the outputs of a model by name.
Answer = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def check(config: BertConfig) -> None:
    """Checks, before step 0, that packages are installed and that ONNX can hold the network."""
    runtime.load("onnx")
    runtime.load("onnxruntime")
    network_graph.check_size(config)


def fine_tuned(
    checkpoint: str, config: BertConfig, vocab_file: str, task: Mapping[str, Any]
) -> interchange.Source:
    """Returns the fine-tuned network of a checkpoint, with all that task.json says of it."""
    source = interchange.open_source(checkpoint).with_files(config, vocab_file)
    names = {field.name for field in dataclasses.fields(source)} - {"vocab_file"}
    # `task` leaves out what is usual, which the flags may have asked for instead.
    facts = {**dict.fromkeys(network_files.OF_LONG_TEXTS), "reading": {}}
    facts |= {name: value for name, value in task.items() if name in names}
    kind = facts["kind"] if facts["kind"] in KINDS else None
    facts |= {"kind": kind, "labels": tuple(task.get("labels", ()))}
    return dataclasses.replace(source, **facts)


def write(
    base: str,
    source: interchange.Source,
    task: Mapping[str, Any],
    sets: Sequence[Batches],
    score: Callable[[Answer], tuple[str, float]] | None,
) -> None:
    """Writes an ONNX model below `base`, prints where it is, and leaves nothing behind if it fails.

    Args:
      sets: the examples whose outputs are compared; without any, random ones are.
      score: function of the model that returns a metric of the task and its value, for a model of
        int8; None for a model of float32.
    """
    heads = (ANSWER,) if f"{ANSWER}/output_weights" in source.shapes else ()
    left_out = model_directory.names_left_out(source, heads)
    weights = {name: source.read(name) for name in source.shapes if name not in left_out}
    # Differences of NaN would not be greater than any tolerance.
    bad = [name for name, value in weights.items() if not np.isfinite(value).all()]
    if bad:
        raise ValueError(f"{source.path}: these weights are not finite: {listed(bad)}")
    tokenizer = tokenization.reopen_tokenizer(source.vocab_file, source.casing)
    with _new_directory(base) as (unfinished, export_dir):
        model_directory.write(unfinished, source, weights, tokenizer, task)
        batches = list(_batches(sets)) or [weights_lib.fixed_batch(source.config)]
        differences = model_directory.check(unfinished, source.config, weights, batches)
        shown = ", ".join(f"{name} {value:.1g}" for name, value in differences.items())
        number = sum(len(batch["input_ids"]) for batch in batches)
        what = f"{number} examples of the task" if sets else f"{number} random texts"
        print(f"Greatest differences between ONNX and TensorFlow on {what}: {shown}")
        if score is not None:
            _quantize(unfinished, score)
    print(f"ONNX model: {remote.shown(export_dir)}")


def answered(
    answer: Answer, examples: Batches
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Yields the numbers of examples, their features and a model's outputs, batch by batch."""
    for numbers in np.array_split(np.arange(len(examples)), -(-len(examples) // _BATCH)):
        features = examples.batch(numbers)
        yield numbers, features, answer(features)


def _quantize(folder, score):
    """Rounds the products of a model to int8, and prints what this loses."""
    metric, before = score(runtime.Model(folder).run)
    runtime.write_quantized(folder)
    _, after = score(runtime.Model(folder).run)
    print(
        f"{metric} of the model with int8: {after:.4f} (with float32: {before:.4f}; the loss: "
        f"{before - after:.4f})"
    )


@contextlib.contextmanager
def _new_directory(base: str) -> Iterator[tuple[str, str]]:
    """Yields a directory to fill, and the path that it gets when it is complete."""
    os.makedirs(base, exist_ok=True)
    lock.remove_leftovers(base)
    # Like a SavedModel, the model is named by the time in seconds. Of two with one number, the
    # SavedModel beside `base` is taken for the newer one.
    number, places = int(time.time()), (base, os.path.dirname(base))
    while any(os.path.exists(os.path.join(place, str(number))) for place in places):
        number += 1
    export_dir = os.path.join(base, str(number))
    unfinished = os.path.join(base, f"temp-{number}")
    try:
        with lock.held(unfinished):  # so that another export does not take it for a leftover
            yield unfinished, export_dir
        os.replace(unfinished, export_dir)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _batches(sets: Sequence[Batches]) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches of examples from all places of sets, and of the longest example of each."""
    for examples in sets:
        most = min(len(examples), -(-_COMPARED // len(sets)))
        numbers = np.linspace(0, len(examples) - 1, most).astype(np.int64)
        # The longest example needs most positions. Batches of similar lengths have little padding.
        numbers = np.unique([*numbers, examples.lengths.argmax()] if most else numbers)
        numbers = numbers[np.argsort(examples.lengths[numbers], kind="stable")]
        for first in range(0, len(numbers), _BATCH):
            part = numbers[first : first + _BATCH]
            yield examples.batch(part, int(examples.lengths[part].max()))
