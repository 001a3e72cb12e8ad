"""Tests the tables of tf.contrib.lookup with the old names of their arguments."""

import tensorflow.compat.v1 as tf

from bert_estimator.legacy.stand_ins import data


def test_there_and_back():
    with tf.Graph().as_default(), tf.Session() as session:
        words = tf.constant(["a", "b"])
        there = data.index_table_from_tensor(mapping=words, num_oov_buckets=1)
        back = data.index_to_string_table_from_tensor(mapping=words, default_value="?")
        ids = there.lookup(tf.constant(["b", "a", "z"]))
        words = back.lookup(ids)
        session.run(tf.tables_initializer())
        assert session.run(ids).tolist() == [1, 0, 2]
        assert session.run(words).tolist() == [b"b", b"a", b"?"]
