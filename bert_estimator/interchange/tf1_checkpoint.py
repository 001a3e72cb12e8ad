"""TF1 checkpoints, as google-research/bert and this project write them."""

import glob
import json
import os
import shutil

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.bert_config import BertConfig
from bert_estimator.interchange.source import TF1, Source
from bert_estimator.tpu.verbs import checkpoints

CONFIG, VOCABULARY, BASENAME = "bert_config.json", "vocab.txt", "bert_model.ckpt"
SENTENCE_PIECE = "vocab.model"  # as a run keeps it; google-research/bert has no such thing
LABELS = "labels.txt"  # of run_classifier.py: one a line
_RUN, _BEST = "config.json", "best.json"  # of run_classifier.py; the second in <its run>/best


def exists(prefix):
    """Whether there is a checkpoint of this path."""
    return tf.io.gfile.exists(f"{prefix}.index")


def find(folder):
    """Returns the path of a directory's checkpoint, or None without one.

    In the directory of a run it is the newest whole one.

    Raises:
      ValueError: there are several, and nothing says which is meant.
    """
    prefix = checkpoints.newest_whole(folder)
    if prefix is not None:
        return prefix
    found = [
        p.removesuffix(".index") for p in glob.glob(os.path.join(glob.escape(folder), "*.index"))
    ]
    if len(found) > 1:
        names = ", ".join(sorted(os.path.basename(prefix) for prefix in found))
        raise ValueError(f"{folder}: holds several checkpoints; give the path of one of {names}")
    return found[0] if found else None


def open_prefix(prefix, path):
    """Opens a checkpoint, and what lies beside it.

    Args:
      prefix: its path, without .index.
      path: what the user called it.

    Raises:
      ValueError: the checkpoint is damaged, or the configuration beside it is none.
    """
    try:
        reader = tf.train.load_checkpoint(prefix)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path}: the checkpoint cannot be read: {error}") from None
    shapes = reader.get_variable_to_shape_map()
    weights = {name: shapes[name] for name in sorted(shapes) if not _is_no_weight(name, shapes)}

    def read(name):
        try:
            return reader.get_tensor(name)
        except (tf.errors.OpError, LookupError, RuntimeError) as error:
            raise ValueError(f"{path}: {name} cannot be read: {error}") from None

    folder = os.path.dirname(prefix)
    config = os.path.join(folder, CONFIG)
    vocabularies = [os.path.join(folder, name) for name in (VOCABULARY, SENTENCE_PIECE)]
    return Source(
        path=path,
        format=TF1,
        shapes=weights,
        read=read,
        left_out=tuple(sorted(set(shapes) - set(weights))),
        config=BertConfig.from_json_file(config) if tf.io.gfile.exists(config) else None,
        vocab_file=next((path for path in vocabularies if tf.io.gfile.exists(path)), None),
        labels=_read_labels(os.path.join(folder, LABELS)),
        do_lower_case=_read_casing(folder),
    )


def write(folder, config, vocab_file, weights, labels=(), do_lower_case=None):
    """Writes a directory as google-research/bert publishes its models.

    Args:
      folder: an empty directory.
      config: `BertConfig`.
      vocab_file: path to copy the vocabulary from, or None.
      weights: name -> float32 array.
      labels: names of the classifier's outputs, or none.
      do_lower_case: not written: google-research/bert takes it from a flag.
    """
    del do_lower_case
    if labels:
        with open(os.path.join(folder, LABELS), "w", encoding="utf-8") as writer:
            writer.writelines(f"{label}\n" for label in labels)
    with open(os.path.join(folder, CONFIG), "w", encoding="utf-8") as writer:
        writer.write(config.to_json_string())
    if vocab_file is not None:
        name = SENTENCE_PIECE if vocab_file.endswith(".model") else VOCABULARY
        shutil.copyfile(vocab_file, os.path.join(folder, name))
    names = sorted(weights)
    with tf.Graph().as_default(), tf.Session() as session:
        values = [tf.placeholder(tf.float32, weights[name].shape) for name in names]
        save = tf.raw_ops.SaveV2(
            prefix=os.path.join(folder, BASENAME),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=values,
        )
        session.run(save, dict(zip(values, (np.float32(weights[n]) for n in names), strict=True)))


def _read_labels(path):
    if not tf.io.gfile.exists(path):
        return ()
    with tf.io.gfile.GFile(path, "r") as reader:
        return tuple(reader.read().splitlines())


def _read_casing(folder):
    """Returns the --do_lower_case of the run whose directory this is; None where it is no run's."""
    is_best = tf.io.gfile.exists(os.path.join(folder, _BEST))
    path = os.path.join(folder, os.pardir if is_best else "", _RUN)
    try:
        with tf.io.gfile.GFile(path, "r") as reader:
            value = json.load(reader)["flags"]["do_lower_case"]["value"]
    except (tf.errors.OpError, ValueError, KeyError, TypeError):  # another program's config.json
        return None
    return value if isinstance(value, bool) else None


def _is_no_weight(name, shapes):
    """Slots are named after their variable, `<variable>/adam_m`; counters and steps are scalars."""
    return shapes[name] == [] or name.rpartition("/")[0] in shapes
