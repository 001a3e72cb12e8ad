"""Gradients made dense and float32."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.optimization.gradients import to_dense_float32


def test_none_stays_none():
    assert to_dense_float32(None) is None


def test_bfloat16_becomes_float32():
    with tf.Graph().as_default(), tf.Session() as session:
        dense = to_dense_float32(tf.constant([1.5, -2.0], tf.bfloat16))
        assert dense.dtype == tf.float32
        np.testing.assert_array_equal(session.run(dense), [1.5, -2.0])


def test_rows_of_the_same_id_are_summed_in_float32():
    # In bfloat16, 256 + 1 + 1 is 256.
    with tf.Graph().as_default(), tf.Session() as session:
        values = tf.constant([[256.0, 1.0], [1.0, 2.0], [1.0, 3.0], [5.0, 5.0]], tf.bfloat16)
        sparse = tf.IndexedSlices(values, tf.constant([2, 2, 2, 0]), tf.constant([4, 2]))
        dense = to_dense_float32(sparse)
        assert dense.shape.as_list() == [4, 2]
        np.testing.assert_array_equal(session.run(dense), [[5, 5], [0, 0], [258, 6], [0, 0]])


def test_gradient_of_a_lookup_equals_that_of_a_one_hot_product():
    with tf.Graph().as_default(), tf.Session() as session:
        table = tf.get_variable("table", initializer=np.arange(12, dtype=np.float32).reshape(4, 3))
        ids = tf.constant([3, 1, 3, 3])
        factors = tf.constant([[1.0, 2.0, 3.0]] * 4)
        by_lookup = tf.reduce_sum(tf.gather(table, ids) * factors)
        by_product = tf.reduce_sum(tf.matmul(tf.one_hot(ids, 4), table) * factors)
        sparse = tf.gradients(by_lookup, table)[0]
        assert isinstance(sparse, tf.IndexedSlices)
        found = session.run([to_dense_float32(sparse), tf.gradients(by_product, table)[0]])
        np.testing.assert_array_equal(*found)


def test_sparse_gradient_without_a_shape_is_refused():
    with tf.Graph().as_default():
        sparse = tf.IndexedSlices(tf.ones([2, 3], name="rows"), tf.constant([0, 1]))
        with pytest.raises(ValueError, match=r"Sparse gradient rows:0 has no dense_shape"):
            to_dense_float32(sparse)
