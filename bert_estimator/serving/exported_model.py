"""An exported model's directory: found, opened and checked, whatever lies in it.

It holds a SavedModel, whose task.json and vocabulary lie in `assets.extra`, or an ONNX model, which
has them beside it. Below the directory of a run, SavedModels are in export/, and ONNX models in
export/onnx/, each in a directory whose name is a number. A fine-tuned run without an export answers
from its checkpoint, which stands for the directory here (`checkpoint_model`).
"""

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from bert_estimator import memory_needed, tokenization
from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line.choices import LEAST_TOKENS, QUESTION_ANSWERING
from bert_estimator.interchange import network_files
from bert_estimator.interchange.onnx import runtime
from bert_estimator.serving.commands import batches_by_length
from bert_estimator.storage import remote
from bert_estimator.system import json_files, paths
from bert_estimator.system.errors import listed
from input_pipelines.tasks import tag_files
from input_pipelines.tasks.answers import Search
from input_pipelines.tasks.features import Batches, Features
from input_pipelines.tasks.long_texts import CUT, LongTexts

ENDS = ("start_logits", "end_logits")  # the outputs of a network for answers

_EXPORTS, _ONNX = "export", "onnx"  # the directories of a run's exported models
_MODEL_FILES = ("saved_model.pb", runtime.FILE)
# Where models lie below a path.
_FOLDER = re.compile(rf"({_EXPORTS}/)?(?:(?:{_ONNX}/)?(\d+)/)?")
_REGRESSION, _TAGGING, _MULTI_LABEL = "regression", "tagging", "multi_label"
_OUTPUTS = ("logits", "probabilities")
# What exported models may be fed; `Features.batch` and `TagFeatures.batch` give them.
_FEATURES = ("input_ids", "input_mask", "segment_ids", "is_real_example")
_ANY = -1  # in a signature, the size of a dimension that may have any size
_USUAL = LongTexts()


class Reading(NamedTuple):
    """Says how contexts are read for answers, as `Windows` does, and how answers are searched."""

    doc_stride: int
    max_query_length: int
    search: Search


@dataclasses.dataclass(frozen=True)
class TextTask:
    """Says how text becomes ids, and what the outputs mean: the task.json of an exported model."""

    kind: str  # one of `choices.TASK_KINDS`, or QUESTION_ANSWERING
    # In the order of the outputs' columns; empty for regression and answers.
    labels: tuple[str, ...]
    is_pair: bool
    vocab_file: str  # a path
    casing: tokenization.Casing
    max_seq_length: int  # of an example, in tokens
    reading: Reading | None = None  # None for other tasks than answers
    words: str = tag_files.SPACES  # for tagging; one of `tag_files.WORD_FORMS`
    long_texts: LongTexts = _USUAL  # what is read of longer examples

    def open_tokenizer(self) -> tokenization.Tokenizer:
        """Returns the tokenizer of the vocabulary."""
        return tokenization.reopen_tokenizer(self.vocab_file, self.casing)


def find(path: str) -> str | None:
    """Returns the directory of the exported model that a path means, or None; raises ValueError if
    TensorFlow cannot open the path."""
    if paths.is_remote(path):
        newest = _newest(remote.files(path))
        if newest is None:
            return None
        # Only the newest is copied: a run may have many, of hundreds of megabytes each.
        path = remote.local_directory(path, lambda name: name.startswith(newest))
    else:
        paths.check_no_pattern(path, f"{path}: ")
        newest = _newest(_files(path))
    return None if newest is None else os.path.join(path, newest).rstrip("/")


def _files(path):
    """Yields the files of models where `_FOLDER` allows them in a directory of this machine."""
    for folder in ("", f"{_ONNX}/", f"{_EXPORTS}/", f"{_EXPORTS}/{_ONNX}/"):
        parent = os.path.join(path, folder)
        names = os.listdir(parent) if os.path.isdir(parent) else []
        for within in ("", *(f"{name}/" for name in names if name.isdecimal())):
            for file in (f"{folder}{within}{name}" for name in _MODEL_FILES):
                if os.path.isfile(os.path.join(path, file)):
                    yield file


def _newest(files):
    """Returns the directory of the model to open among files below a path, relative to it, or
    None."""
    parts = [file.rpartition("/") for file in files]
    folders = [folder + slash for folder, slash, name in parts if name in _MODEL_FILES]
    places = [place for place in map(_FOLDER.fullmatch, folders) if place]
    # A path that is a model itself comes first. The numbers of SavedModels and of ONNX models are
    # the times of their exports, so that the greatest number is the newest of both.
    newest = max(
        places,
        key=lambda place: (place[1] is None, place[2] is None, int(place[2] or 0)),
        default=None,
    )
    return newest and newest[0]


def is_checkpoint(path: str) -> bool:
    """Returns whether a path without .index is a checkpoint."""
    return os.path.isfile(f"{path}.index")


def task_file(export_dir: str) -> str:
    """Returns the path of an exported model's task.json, which may not be there."""
    if is_checkpoint(export_dir):
        return os.path.join(os.path.dirname(export_dir), "task.json")
    folders = [export_dir] if runtime.is_model(export_dir) else [export_dir, "assets.extra"]
    return os.path.join(*folders, "task.json")


def read_task(export_dir: str) -> TextTask:
    """Reads the task of an exported model."""
    path = task_file(export_dir)
    extra = os.path.dirname(path)
    if not os.path.isfile(path):
        raise ValueError(
            f"{path} is missing, which says how text becomes ids. Export the model with "
            "run_classifier.py --do_export"
        )
    values = json_files.read(path)
    facts = network_files.task_of(values, path)
    # The task.json of an ONNX model without a head says how text becomes ids, but names no kind.
    kind = values.get("kind")
    is_answering = kind == QUESTION_ANSWERING
    if not is_answering and facts["kind"] is None:
        raise ValueError(
            f"{path}: names no kind of a task, so that the model gives vectors alone: bert-embed"
        )
    for key in ("do_lower_case", "max_seq_length", *["is_pair"] * (not is_answering)):
        if facts[key] is None:
            raise ValueError(f"{path}: the key {key!r} is missing. Export the model again")
    labels = () if is_answering else facts["labels"]
    if not is_answering and (kind == _REGRESSION) == bool(labels):
        raise ValueError(f"{path}: {list(labels)} cannot be the labels of a task of {kind}")
    name = json_files.field(values, "vocab_file", str, path)
    try:
        # An exported model may come from others: its task.json must not name files elsewhere.
        vocab_file = paths.inside(extra, name)
    except ValueError as error:
        raise ValueError(f"{path}: vocab_file: {error}") from None
    if not os.path.isfile(vocab_file):
        raise ValueError(f"{vocab_file}: the vocabulary is missing. Export the model again")
    length = facts["max_seq_length"]
    if length < LEAST_TOKENS:
        raise ValueError(f"{path}: max_seq_length must be at least {LEAST_TOKENS}, not {length}")
    casing = tokenization.Casing(facts["do_lower_case"], facts["strip_accents"])
    reading = _reading(values, path, length) if is_answering else None
    words = tag_files.recorded_form(values, path)
    is_pair = is_answering or facts["is_pair"]
    long_texts = LongTexts(facts["long_texts"] or CUT, facts["doc_stride"])
    return TextTask(kind, labels, is_pair, vocab_file, casing, length, reading, words, long_texts)


def _reading(values, path, length):
    """Returns how contexts are read, with the defaults of run_squad.py for what task.json does not
    say."""

    def number(key, kind, default):
        return json_files.field(values, key, kind, path, default=default)

    reading = Reading(
        number("doc_stride", int, 128),
        number("max_query_length", int, 64),
        Search(
            number("n_best_size", int, Search.n_best_size),
            number("max_answer_length", int, Search.max_answer_length),
            number("version_2_with_negative", bool, False),
            number("null_score_diff_threshold", float, Search.null_score_diff_threshold),
        ),
    )
    counts = *reading[:2], reading.search.n_best_size, reading.search.max_answer_length
    # A window has [CLS] and two [SEP], and at least one token of the context.
    if min(counts) < 1 or reading.max_query_length > length - 4:
        raise ValueError(
            f"{path}: doc_stride, max_query_length, n_best_size and max_answer_length must be "
            "positive, and a window must have room for a question, 3 special tokens and a token "
            f"of the context, but they are {counts}, and max_seq_length is {length}"
        )
    return reading


class OpenModel(NamedTuple):
    """Holds an exported model in a session."""

    session: Any  # a `tf.Session`, or an object with its `run` and `close`
    inputs: dict[str, str]  # feature -> name of its tensor
    outputs: dict[str, str]  # output -> name of its tensor
    # Whether a batch is as long as its longest example. Models that were exported before this was
    # possible take sequences of one length.
    pads_to_longest: bool

    def run(self, features: Batches, batch_size: int) -> dict[str, list[np.ndarray]]:
        """Returns output name -> the row of each example, in order; `batch_size` is the most
        examples that are computed at a time."""
        rows: dict[str, list[Any]] = {name: [None] * len(features) for name in self.outputs}
        for numbers in batches_by_length(features.lengths, batch_size):
            length = features.lengths[numbers].max() if self.pads_to_longest else None
            batch = features.batch(numbers, length)
            feeds = {tensor: batch[name] for name, tensor in self.inputs.items()}
            for name, outputs in self.session.run(self.outputs, feeds).items():
                # Batches are sorted by length; the rows go back to the places of their examples.
                for number, row in zip(numbers, outputs, strict=True):
                    rows[name][number] = row
        return rows


def of_texts(
    features: Features, rows: Iterable[Mapping[str, np.ndarray]], kind: str
) -> Iterator[Mapping[str, np.ndarray]]:
    """Yields the outputs for texts, from the outputs for their windows, in order: the means of the
    logits, with the windows' tokens as weights, and the probabilities that follow."""
    for windows, weights in features.by_text(rows):
        if len(windows) == 1:
            yield windows[0]  # as it is: probabilities that are computed again may differ in a bit
            continue
        logits = np.float32(np.average([row["logits"] for row in windows], 0, weights))
        outputs = {"logits": logits, "probabilities": _probabilities(logits, kind)}
        yield {name: outputs[name] for name in _outputs_of(kind)}


def open_session(export_dir: str, task: TextTask, batch_size: int) -> OpenModel:
    """Loads an exported model into a session, whose batches have at most so many examples."""
    if runtime.is_model(export_dir):
        return _open_onnx(export_dir, task, batch_size)
    # TensorFlow takes seconds to load; a wrong directory has been reported before.
    import tensorflow.compat.v1 as tf

    # Before the graph is loaded, since a model that needs too much memory ends the process.
    _check_sizes(export_dir, task, batch_size)
    session = tf.Session(graph=tf.Graph())
    try:
        with session.graph.as_default():
            meta_graph = tf.saved_model.load(session, [tf.saved_model.SERVING], export_dir)
        _check_finite(export_dir)
        signatures = meta_graph.signature_def
        # A model that takes texts takes ids, too. Version 0.2 also wrote models of tags and answers
        # that take texts; their ids are of windows.
        names = ("ids:windows", "ids:serving_default", "serving_default")
        signature = signatures[next(name for name in names if name in signatures)]
        pads_to_longest = _check_signature(signature, task)
    except Exception as error:  # TensorFlow raises errors of all kinds for damaged files
        session.close()
        reason = (str(error).strip().splitlines() or [repr(error)])[0]
        if "Sentencepiece" in reason:
            reason = "its graph splits text by SentencePiece, as an earlier version exported it"
        raise ValueError(
            f"{export_dir}: the exported model cannot be used: {reason}. Export it again"
        ) from None
    inputs = {name: tensor.name for name, tensor in signature.inputs.items()}
    outputs = {
        name: tensor.name
        for name, tensor in signature.outputs.items()
        if name in (*_OUTPUTS, *ENDS)
    }
    return OpenModel(session, inputs, outputs, pads_to_longest)


def _check_sizes(export_dir, task, batch_size):
    """Raises ValueError if a model needs far more memory than this machine has, or does not fit its
    vocabulary."""
    import tensorflow.compat.v1 as tf

    try:
        stored = tf.train.list_variables(os.path.join(export_dir, "variables", "variables"))
    except (tf.errors.OpError, ValueError):
        return  # it cannot be loaded either, and the error says why
    shapes = {name.removeprefix("bert/"): shape for name, shape in stored}
    layers = [name for name in shapes if name.endswith("/intermediate/dense/kernel")]
    embeddings = [shapes.get(f"embeddings/{name}_embeddings") for name in ("word", "position")]
    if not layers or None in embeddings:
        return  # not a network of this project
    hidden, inner = shapes[layers[0]]
    network = BertConfig(
        vocab_size=embeddings[0][0],
        hidden_size=hidden,
        num_hidden_layers=len(layers),
        # The graph alone knows the number of heads. Published networks have one for 64 columns.
        num_attention_heads=1 if hidden % 64 else hidden // 64,
        intermediate_size=inner,
        max_position_embeddings=embeddings[1][0],
    )
    check_network(export_dir, network, task, batch_size)


def check_network(export_dir: str, network: BertConfig, task: TextTask, batch_size: int) -> None:
    """Raises ValueError as `_check_sizes` does, for the network of a model."""
    num_tokens = task.open_tokenizer().vocab_size
    tokenization.check_rows(task.vocab_file, num_tokens, network.vocab_size)
    step = memory_needed.Computation(batch_size, task.max_seq_length)
    needed = memory_needed.of_running(network, step)
    memory_needed.check(needed, export_dir, "give a smaller batch_size")


def _check_finite(export_dir):
    """Raises ValueError if weights are not finite."""
    import tensorflow.compat.v1 as tf

    reader = tf.train.load_checkpoint(os.path.join(export_dir, "variables", "variables"))
    types = reader.get_variable_to_dtype_map()
    floats = [name for name in sorted(types) if types[name].is_floating]
    bad = [name for name in floats if not np.isfinite(reader.get_tensor(name)).all()]
    if bad:
        raise ValueError(f"these weights are not finite: {listed(bad)}")


def _check_signature(signature, task):
    """Returns whether a signature that fits a task takes sequences of any length."""
    outputs = _outputs_of(task.kind)
    if not set(signature.inputs) <= set(_FEATURES) or not set(outputs) <= set(signature.outputs):
        raise ValueError("its signature serving_default has other inputs or outputs")
    length = signature.inputs["input_ids"].tensor_shape.dim[1].size
    expected = _shape(task, _ANY, length)
    for name in outputs:
        sizes = [dim.size for dim in signature.outputs[name].tensor_shape.dim]
        if sizes != expected:
            raise ValueError(f"{name} has the shape {sizes}, which does not fit task.json's labels")
    if length not in (_ANY, task.max_seq_length):
        raise ValueError(
            f"its sequences have {length} tokens, and task.json's {task.max_seq_length}"
        )
    return length == _ANY


def _probabilities(logits, kind):
    """Returns the probabilities of labels, of the shape of their logits [..., L]."""
    with np.errstate(over="ignore"):  # the probability of a logit below -88 is 0
        if kind == _MULTI_LABEL:
            return 1 / (1 + np.exp(-logits))
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return powers / powers.sum(axis=-1, keepdims=True)


def _open_onnx(export_dir, task, batch_size):
    """Does what `open_session` does, for an ONNX model."""
    network = BertConfig.from_json_file(os.path.join(export_dir, "bert_config.json"))
    check_network(export_dir, network, task, batch_size)
    model = runtime.Model(export_dir)
    names = _outputs_of(task.kind)
    shape = model.outputs.get(names[0])
    if shape != _shape(task, None, None):
        raise ValueError(
            f"{export_dir}: the exported model cannot be used: {names[0]} has the shape {shape}, "
            "which does not fit task.json's labels. Export it again"
        )

    def run(outputs: dict[str, str], feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        values = model.run(feeds, [name for name in names if name != "probabilities"])
        if "probabilities" in outputs:
            values["probabilities"] = _probabilities(values["logits"], task.kind)
        return values

    inputs, outputs = ({name: name for name in part} for part in (_FEATURES[:3], names))
    return OpenModel(runtime.Session(run), inputs, outputs, pads_to_longest=True)


def _shape(task, any_size, length):
    """Returns the shape of a task's outputs, for sequences of a length."""
    if task.kind == QUESTION_ANSWERING:
        return [any_size, length]
    return [any_size, *[length] * (task.kind == _TAGGING), len(task.labels) or 1]


def _outputs_of(kind):
    """Returns the outputs that a model of a task has."""
    if kind == QUESTION_ANSWERING:
        return ENDS
    return _OUTPUTS[:1] if kind == _REGRESSION else _OUTPUTS
