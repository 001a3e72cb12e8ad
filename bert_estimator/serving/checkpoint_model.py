"""The checkpoint of a fine-tuned run answers with the head of its task, as its export would.

Beside it lie the files that say what it is: task.json, bert_config.json and the vocabulary; and for
a run config.json, whose --precision the network is computed in.
"""

import glob
import os
import sys

import tensorflow.compat.v1 as tf

from bert_estimator import interchange, precision, tpu
from bert_estimator.command_line import own_directory, run_directory
from bert_estimator.command_line.choices import QUESTION_ANSWERING, TASK_KINDS
from bert_estimator.interchange import network_files, network_variables, opening, weights
from bert_estimator.interchange.google import tf1_checkpoint
from bert_estimator.layers import primitives
from bert_estimator.model_fns import classification, fine_tuning, question_answering
from bert_estimator.serving.exported_model import ENDS, OpenModel, TextTask, check_network
from bert_estimator.storage import remote
from bert_estimator.system import json_files, paths

_IDS = ("input_ids", "input_mask", "segment_ids")


def files_of(checkpoint: str) -> list[str]:
    """Returns the paths of a checkpoint's files, and of those beside it that describe it."""
    beside = [os.path.join(os.path.dirname(checkpoint), n) for n in run_directory.NETWORK_FILES]
    return [*glob.glob(f"{glob.escape(checkpoint)}.*"), *filter(os.path.exists, beside)]


def find(path: str, reads_all: bool = True) -> str | None:
    """Returns the checkpoint, without .index, that a path of a fine-tuned network means, or None:
    itself, or a run's best checkpoint, or else its newest."""
    if paths.is_remote(path):
        path = opening.copied_here(path, None)
    is_prefix = tf1_checkpoint.exists(path)
    folder = os.path.dirname(path) if is_prefix else path
    task_file = os.path.join(folder, network_files.TASK)
    if not os.path.isfile(task_file):
        return None
    kind = json_files.field(json_files.read(task_file), "kind", str, task_file, default=None)
    if kind not in (*TASK_KINDS, QUESTION_ANSWERING):
        return None
    if is_prefix:
        return path
    # `tf1_checkpoint.find` reads the newest checkpoints, so that damaged ones are left out. A
    # server that looks every few seconds does not (`reads_all`).
    name = opening.checkpoint_wanted(folder)
    wanted = name and os.path.join(folder, name)
    checkpoint = tf1_checkpoint.find(folder) if reads_all else wanted
    if None not in (wanted, checkpoint) and not os.path.samefile(
        f"{wanted}.index", f"{checkpoint}.index"
    ):
        print(
            f"{remote.shown(wanted)} is damaged; {remote.shown(checkpoint)} is used.",
            file=sys.stderr,
        )
    return checkpoint


def open_session(checkpoint: str, task: TextTask, batch_size: int) -> OpenModel:
    """Opens a checkpoint as `exported_model.open_session` opens an exported model."""
    source = interchange.open_source(checkpoint)
    if source.config is None:
        raise ValueError(f"{checkpoint}: there is no bert_config.json beside it")
    check_network(checkpoint, source.config, task, batch_size)
    heads = network_variables.check(source.config, source.shapes, checkpoint)
    number = source.shapes.get(network_variables.CLASSIFIER, [0])[0]
    # The checkpoint may be of the pretraining, or task.json of another run.
    is_whole = network_variables.ANSWER in heads
    if task.kind != QUESTION_ANSWERING:
        is_whole = number == (len(task.labels) or 1)
    if not is_whole:
        raise ValueError(
            f"{checkpoint}: its head is not of the task that {network_files.TASK} beside it names"
        )
    session = tf.Session(graph=tf.Graph())
    with session.graph.as_default(), primitives.portable(), precision.stored_as_read():
        ids = {name: tf.placeholder(tf.int32, [None, None], name) for name in _IDS}
        network = fine_tuning.NetworkBuilder(source.config, _precision(checkpoint))
        spec = _model_fn(network, task)(ids, None, tpu.ModeKeys.PREDICT, {})
        weights.load_all(source, session)
    inputs = {name: tensor.name for name, tensor in ids.items()}
    outputs = {
        name: tensor.name
        for name, tensor in spec.predictions.items()
        if name in (*ENDS, "logits", "probabilities")
    }
    return OpenModel(session, inputs, outputs, pads_to_longest=True)


def _precision(checkpoint):
    # A checkpoint that was copied elsewhere has no run.
    run = own_directory.run_of(checkpoint)
    recorded = run_directory.recorded_settings(run) if run else {}
    return recorded.get("precision", "float32")


def _model_fn(network, task):
    if task.kind == QUESTION_ANSWERING:
        return question_answering.model_fn_builder(network)
    make = classification.TaggingHead if task.kind == "tagging" else classification.Head
    return classification.model_fn_builder(network, make(task.kind, len(task.labels) or 1))
