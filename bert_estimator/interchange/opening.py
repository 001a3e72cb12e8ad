"""Opening weights wherever they are: a checkpoint's path, a directory, or an archive of one."""

import glob
import os

from bert_estimator.interchange import archive, hugging_face, tf1_checkpoint


def open_source(path):
    """Opens a checkpoint, Google's or Hugging Face's.

    Args:
      path: a TF1 checkpoint without .index (`uncased_L-12_H-768_A-12/bert_model.ckpt`); a directory
        with one, or with Hugging Face's config.json and model.safetensors; or a zip archive of
        such a directory.

    Raises:
      ValueError: nothing of the kind is there, or it cannot be read; the text says what.
    """
    if tf1_checkpoint.exists(path):
        return tf1_checkpoint.open_prefix(path, path)
    folder = path
    if os.path.isfile(path):
        folder = archive.extracted(path)
    if not os.path.isdir(folder):
        raise ValueError(
            f"{path}: there is no such checkpoint. Give the path of a checkpoint without .index or "
            ".data, such as uncased_L-12_H-768_A-12/bert_model.ckpt, a directory, or a zip archive"
        )
    if hugging_face.is_model(folder):
        return hugging_face.open_directory(folder, path)
    prefix = tf1_checkpoint.find(folder)
    if prefix is not None:
        return tf1_checkpoint.open_prefix(prefix, path)
    bins = glob.glob(os.path.join(glob.escape(folder), "pytorch_model*.bin"))
    raise ValueError(
        f"{path}: holds neither a TF1 checkpoint (*.index) nor Hugging Face's model.safetensors"
        + ("; save the model with safe_serialization=True, not as pytorch_model.bin" * bool(bins))
    )
