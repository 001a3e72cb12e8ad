"""TF1 checkpoints, as google-research/bert and this project write them."""

import glob
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line import run_directory
from bert_estimator.interchange import network_files, network_variables
from bert_estimator.interchange.source import ALBERT, GOOGLE, TF1, Source, check_layer_groups
from bert_estimator.system import paths
from bert_estimator.tokenization import Tokenizer
from bert_estimator.tpu import checkpoints

BASENAME = "bert_model.ckpt"

# Stands before names of variables that only a pretraining has.
_PRETRAINING = "pretraining:"

# The stored types whose values float32 represents exactly.
_EXACT = ("float32", "float16", "bfloat16")

NEWEST, BEST = "newest", "best"


def exists(prefix: str) -> bool:
    """Returns whether there is a checkpoint of this path."""
    return tf.io.gfile.exists(f"{prefix}.index")


def find(folder: str, choice: str | None = None) -> str | None:
    """Returns the path of the checkpoint of a directory, perhaps a run's, or None; of a run it is
    the NEWEST whole one or the BEST one, or by default the checkpoint of the run's predictions and
    its exported model, which is the best one if the run's last training kept it."""
    paths.check_no_pattern(folder, f"{folder}: ")
    if choice == BEST:
        best = run_directory.path_of_best(folder)
        if best is None:
            raise ValueError(
                f"{folder}: does not hold a best checkpoint (best/best.json). run_classifier.py "
                "--keep_best_checkpoint keeps one; --checkpoint=newest takes the newest"
            )
        return best
    if choice is None and (best := run_directory.delivered_best(folder)) is not None:
        return best
    # A run whose last checkpoint is damaged answers from the one before.
    prefix = checkpoints.newest_whole(folder)
    if prefix is not None:
        return prefix
    prefixes = [
        p.removesuffix(".index") for p in glob.glob(os.path.join(glob.escape(folder), "*.index"))
    ]
    if len(prefixes) > 1:
        names = ", ".join(sorted(os.path.basename(prefix) for prefix in prefixes))
        raise ValueError(f"{folder}: holds several checkpoints; give the path of one of {names}")
    return prefixes[0] if prefixes else None


def open_prefix(prefix: str, path: str) -> Source:
    """Opens the checkpoint of a path without .index, and the files beside it; `path` is what the
    user called it."""
    with checkpoints.explaining_loss(prefix):
        reader = open_reader(prefix, path)
    # Our name -> the name in the file. What only an ELECTRA's pretraining has keeps its name, with
    # a mark, so that it cannot be taken for a weight.
    stored = {}
    for name in sorted(reader.get_variable_to_shape_map()):
        stored[network_variables.from_tf1(name) or f"{_PRETRAINING}{name}"] = name
    stored_shapes = reader.get_variable_to_shape_map()
    shapes = {name: stored_shapes[theirs] for name, theirs in stored.items()}
    weights = {name: shapes[name] for name in sorted(shapes) if _is_weight(name, shapes)}

    def read(name):
        with checkpoints.explaining_loss(prefix):
            return weight(reader, stored.get(name, name), name, path)

    return Source(
        path=path,
        format=TF1,
        shapes=weights,
        read=read,
        checkpoint=prefix,
        left_out=tuple(n.removeprefix(_PRETRAINING) for n in sorted(set(shapes) - set(weights))),
        architecture=network_variables.architecture_in_tf1(stored_shapes),
        **network_files.read(os.path.dirname(prefix)),
    )


def open_reader(prefix: str, path: str) -> Any:
    """Opens a checkpoint's files; the arguments are as for `open_prefix`."""
    paths.check_no_pattern(prefix, f"{prefix}: ")
    try:
        return tf.train.load_checkpoint(prefix)
    # TensorFlow raises some errors as Python's types, such as IndexError for a short read.
    except (tf.errors.OpError, ValueError, LookupError, RuntimeError) as error:
        raise ValueError(f"{path}: the checkpoint cannot be read: {error}") from None


def tensor(reader: Any, key: str, name: str, path: str) -> Any:
    """Reads the tensor `key` of what `open_reader` returned; errors call it `name`, and the
    checkpoint `path`."""
    try:
        return reader.get_tensor(key)
    except (tf.errors.OpError, ValueError, LookupError, RuntimeError) as error:
        raise ValueError(f"{path}: {name} cannot be read: {error}") from None


def weight(reader: Any, key: str, name: str, path: str) -> np.ndarray:
    """Reads a tensor as a float32 array; raises ValueError if its type is not exact in float32."""
    value = np.asarray(tensor(reader, key, name, path))
    if value.dtype.name not in _EXACT:
        raise ValueError(
            f"{path}: {name} is {value.dtype.name}; allowed are {', '.join(_EXACT)}. Save the "
            "checkpoint with one of these types"
        )
    return value.astype(np.float32, copy=False)


def write(
    folder: str,
    source: Source,
    weights: Mapping[str, np.ndarray],
    tokenizer: Tokenizer | None = None,
) -> None:
    """Writes an empty directory as google-research/bert publishes its models, or
    google-research/albert."""
    # Hugging Face's files need it; all writers have the same arguments.
    del tokenizer
    architecture = network_variables.architecture_of_tf1_names(source)
    if architecture == ALBERT:
        check_layer_groups(source.config, GOOGLE, source.path)
    if source.config.layer_norm_eps != BertConfig.layer_norm_eps:
        tf.logging.warning(
            "%s: the code of google-research does not read layer_norm_eps=%g, and computes another "
            "network, with 1e-12; this project reads it.",
            source.path,
            source.config.layer_norm_eps,
        )
    network_files.write(folder, source)
    values = {
        network_variables.to_tf1(n, architecture): np.float32(weights[n]) for n in sorted(weights)
    }
    save(os.path.join(folder, BASENAME), values)


def save(prefix: str, values: Mapping[str, np.ndarray]) -> None:
    """Writes a checkpoint of arrays by name; `prefix` is its path, without .index."""
    # The arrays are fed: constants would be copied into the graph, which holds at most 2 GiB.
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = [tf.placeholder(value.dtype, value.shape) for value in values.values()]
        operation = tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=list(values),
            shape_and_slices=[""] * len(values),
            tensors=tensors,
        )
        session.run(operation, dict(zip(tensors, values.values(), strict=True)))


def _is_weight(name, shapes):
    """Returns whether a tensor is a weight: not a slot, `<variable>/adam_m`, and not a counter,
    which is a scalar."""
    is_slot = name.rpartition("/")[0] in shapes
    return shapes[name] != [] and not is_slot and not name.startswith(_PRETRAINING)
