"""Tests the transformations of tf.contrib.data that this project implements."""

import numpy as np
import tensorflow as tf2

from bert_estimator.legacy.stand_ins import data


def elements(dataset):
    return [np.asarray(element).tolist() for element in dataset.as_numpy_iterator()]


def test_batches_without_the_remainder():
    numbers = tf2.data.Dataset.range(5)
    assert elements(numbers.apply(data.batch_and_drop_remainder(2))) == [[0, 1], [2, 3]]


def test_padded_batches_without_the_remainder():
    rows = tf2.data.Dataset.range(1, 6).map(lambda n: tf2.fill([n], n))
    batches = rows.apply(data.padded_batch_and_drop_remainder(2, [None]))
    assert elements(batches) == [[[1, 0], [2, 2]], [[3, 3, 3, 0], [4, 4, 4, 4]]]


def test_sloppy_interleave_gives_every_element():
    numbers = tf2.data.Dataset.range(3)
    drawn = elements(
        numbers.apply(
            data.sloppy_interleave(lambda n: tf2.data.Dataset.from_tensors(n), cycle_length=2)
        )
    )
    assert sorted(drawn) == [0, 1, 2]
