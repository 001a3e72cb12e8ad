"""Philox gives the words of TensorFlow's operation; `test_dropout` has a numpy twin."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.layers.kernels import masks


@pytest.mark.parametrize("first", [0, 2**32 - 3, 2**63 + 5])
def test_words_are_those_of_the_operation(first):
    with tf.Graph().as_default(), tf.Session() as session:
        key = tf.constant([0xFEDCBA9876543210], tf.uint64)
        counter = tf.constant([first, 2**40 + 1], tf.uint64)
        words = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[1000, 4], key=key, counter=counter, alg=masks.ALGORITHM, dtype=tf.uint32
        )
        mine, words = session.run([masks.blocks(key, counter, 1000), words])
    np.testing.assert_array_equal(np.stack(mine, axis=1), words)
