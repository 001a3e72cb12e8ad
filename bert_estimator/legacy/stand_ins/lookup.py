"""The tables of tf.contrib.lookup whose arguments have other names in tf.lookup."""

from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import lookup_ops


def index_table_from_tensor(
    mapping: tf.Tensor,
    num_oov_buckets: int = 0,
    default_value: int = -1,
    hasher_spec: Any = lookup_ops.FastHashSpec,
    dtype: tf.DType = tf.string,
    name: str | None = None,
) -> Any:
    """Returns a table from each element of `mapping`, a tensor [size], to its index."""
    return lookup_ops.index_table_from_tensor(
        mapping, num_oov_buckets, default_value, hasher_spec, dtype, name
    )


def index_to_string_table_from_tensor(
    mapping: tf.Tensor, default_value: str = "UNK", name: str | None = None
) -> Any:
    """Returns a table from each index of `mapping`, a string tensor [size], to its element."""
    return lookup_ops.index_to_string_table_from_tensor(mapping, default_value, name)
