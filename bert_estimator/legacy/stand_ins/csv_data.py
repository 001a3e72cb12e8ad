"""Small tables in CSV files: the module tf.contrib.learn.datasets.base."""

import collections
import csv
import os
import urllib.request
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

Dataset = collections.namedtuple("Dataset", ["data", "target"])
Datasets = collections.namedtuple("Datasets", ["train", "validation", "test"])


def load_csv_with_header(
    filename: str, target_dtype: Any, features_dtype: Any, target_column: int = -1
) -> Dataset:
    """Returns the rows of a file whose first line is the numbers of rows and of features.

    Args:
      target_column: the column of the targets; the others are features.

    Raises:
      ValueError: the file has another number of rows.
    """
    with tf.gfile.Open(filename) as file:
        rows = csv.reader(file)
        number = int(next(rows)[0])
        dataset = _split(rows, target_dtype, features_dtype, target_column)
    if len(dataset.target) != number:
        raise ValueError(
            f"{filename}: its first line says {number} rows; it has {len(dataset.target)}"
        )
    return dataset


def load_csv_without_header(
    filename: str, target_dtype: Any, features_dtype: Any, target_column: int = -1
) -> Dataset:
    """Returns the rows of a file without a header; see `load_csv_with_header`."""
    with tf.gfile.Open(filename) as file:
        return _split(csv.reader(file), target_dtype, features_dtype, target_column)


def _split(rows, target_dtype, features_dtype, target_column):
    data, target = [], []
    for row in rows:
        target.append(row.pop(target_column))
        data.append(np.asarray(row, dtype=features_dtype))
    return Dataset(np.array(data), np.array(target, dtype=target_dtype))


def maybe_download(filename: str, work_directory: str, source_url: str) -> str:
    """Downloads a file if the directory does not have it; returns its path."""
    tf.gfile.MakeDirs(work_directory)
    path = os.path.join(work_directory, filename)
    if not tf.gfile.Exists(path):
        downloaded, _ = urllib.request.urlretrieve(source_url)
        tf.gfile.Copy(downloaded, path)
    return path
