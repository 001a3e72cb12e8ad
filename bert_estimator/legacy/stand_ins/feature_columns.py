"""The input layer of sequences that tf.contrib had."""

from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.feature_column import feature_column, feature_column_v2


def sequence_input_layer(
    features: Mapping[str, Any],
    feature_columns: Iterable[Any],
    weight_collections: Any = None,
    trainable: bool = True,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns what columns of sequences give, [B, T, D], and how long the sequences are, [B]."""
    columns = sorted(feature_columns, key=lambda column: column.name)
    for column in columns:
        if not isinstance(column, feature_column_v2.SequenceDenseColumn):
            raise ValueError(
                f"All feature_columns must be of type _SequenceDenseColumn, not {column!r}: wrap a "
                "sequence_categorical_column with an embedding_column or indicator_column"
            )
    values, lengths = [], []
    with tf.variable_scope(None, "sequence_input_layer", list(features.values())):
        for column in columns:
            with tf.variable_scope(None, column.name):
                if hasattr(column, "_get_sequence_dense_tensor"):  # It may make a variable.
                    tensor, length = column._get_sequence_dense_tensor(
                        feature_column._LazyBuilder(features),
                        weight_collections=weight_collections,
                        trainable=trainable,
                    )
                else:
                    cache = feature_column_v2.FeatureTransformationCache(features)
                    tensor, length = column.get_sequence_dense_tensor(cache, None)
                size = column.variable_shape.num_elements()
                values.append(tf.reshape(tensor, [*tf.unstack(tf.shape(tensor)[:2]), size]))
                lengths.append(length)
        checks = [tf.debugging.assert_equal(lengths[0], other) for other in lengths[1:]]
        with tf.control_dependencies(checks):
            return tf.concat(values, -1), tf.identity(lengths[0])
