"""Opening a model wherever it is: a checkpoint's path, a directory, or an archive of one."""

import glob
import os
import stat

from bert_estimator.interchange import remote_model
from bert_estimator.interchange.google import archive, tf1_checkpoint
from bert_estimator.interchange.hub import reader
from bert_estimator.interchange.hugging_face import weight_files
from bert_estimator.interchange.source import Source
from bert_estimator.system import disk_files, paths

# Lies in the models that the scripts export.
_TASK_OF_EXPORT = ("assets.extra", "task.json")
# Lies beside the weights that PEFT trains, such as LoRA's. transformers adds them to the weights of
# the model that it names, or of the model beside it.
_ADAPTER = "adapter_config.json"


def open_source(path: str, choice: str | None = None) -> Source:
    """Opens a model in google-research/bert's format, in Hugging Face's or in TF Hub's.

    Args:
      path: a TF1 checkpoint without .index (`uncased_L-12_H-768_A-12/bert_model.ckpt`); a directory
        with one checkpoint, such as the directory of a run, or with Hugging Face's config.json and
        model.safetensors, or with TF Hub's saved_model.pb; or a zip archive of such a directory.
        Each may be remote, such as gs://bucket/run.
      choice: which checkpoint of a run's directory, as for `tf1_checkpoint.find`.

    Raises:
      ValueError: there is no model, it cannot be read, or it leaves nothing to choose; the text
        says what.
    """
    if paths.is_remote(path):
        path = remote_model.fetched(path, choice)
    if os.path.exists(path) and (why := disk_files.why_unreadable(path)):
        raise ValueError(f"{path}: {why}")
    for file in (path, *glob.glob(f"{glob.escape(path)}.*"), *glob.glob(f"{glob.escape(path)}/*")):
        if os.path.exists(file) and stat.S_ISFIFO(os.stat(file).st_mode):
            raise ValueError(f"{file}: is a pipe, not a file")  # TensorFlow would wait without end
    is_prefix = tf1_checkpoint.exists(path)
    is_model = weight_files.is_model(path) or reader.is_model(path)
    if choice is not None and (is_prefix or os.path.isfile(path) or is_model):
        raise ValueError(
            f"{path}: is not the directory of a run, so that there is no {choice} checkpoint to "
            "choose; leave --checkpoint out"
        )
    if is_prefix:
        module = reader.folder_of(path)
        if module is not None:
            return reader.open_directory(module, path)
        return tf1_checkpoint.open_prefix(path, path)
    folder = path
    if os.path.isfile(path):
        folder = archive.extracted(path)
    if not os.path.isdir(folder):
        raise ValueError(
            f"{path}: there is no such checkpoint. Give the path of a checkpoint without .index or "
            ".data, such as uncased_L-12_H-768_A-12/bert_model.ckpt, a directory, or a zip archive"
        )
    if os.path.isfile(os.path.join(folder, _ADAPTER)):
        raise ValueError(
            f"{path}: holds an adapter ({_ADAPTER}), which changes another model's weights. Have "
            "PEFT merge it into that model (merge_and_unload), save the model that this returns "
            "in another directory, and give that directory. If the weights here are merged "
            f"already, delete {_ADAPTER}"
        )
    if weight_files.is_model(folder):
        return weight_files.open_directory(folder, path)
    if os.path.isfile(os.path.join(folder, *_TASK_OF_EXPORT)):
        raise ValueError(
            f"{path}: is an exported model, which answers by bert_estimator.serving.predictor; "
            "give the directory of the run that it was exported from"
        )
    if reader.is_model(folder):
        return reader.open_directory(folder, path)
    prefix = tf1_checkpoint.find(folder, choice)
    if prefix is not None:
        return tf1_checkpoint.open_prefix(prefix, path)
    bins = glob.glob(os.path.join(glob.escape(folder), "pytorch_model*.bin"))
    raise ValueError(
        f"{path}: holds neither a TF1 checkpoint (*.index) nor Hugging Face's model.safetensors "
        "nor TF Hub's saved_model.pb"
        + ("; save the model with safe_serialization=True, not as pytorch_model.bin" * bool(bins))
    )
