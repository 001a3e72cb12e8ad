"""Tests which operations of a graph a tensor depends on."""

import tensorflow.compat.v1 as tf

from bert_estimator.graph.graph_walk import is_computed_from


def test_what_is_computed_from_a_placeholder():
    with tf.Graph().as_default():
        a, b = tf.placeholder(tf.float32, 2), tf.placeholder(tf.float32, 2)
        total = tf.add(a, 1)
        with tf.control_dependencies([total]):
            after = tf.no_op()
        loop = tf.while_loop(lambda i: i < 3, lambda i: i + tf.cast(a[0], tf.int32), [0])
        for value in (a, total, total.op, after, loop):
            assert is_computed_from(value, [a])
            assert not is_computed_from(value, [b])
            assert not is_computed_from(value, [])
        assert not is_computed_from(None, [a])
