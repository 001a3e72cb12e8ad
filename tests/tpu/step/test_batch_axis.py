"""batch_axis: the model sees its inputs as the input_fn gave them, split along the batch."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from toy import HostLog, make_estimator

from bert_estimator import tpu

ROWS = 4


def image():
    """Returns an image [height 2, width 3, rows]: all pixels of row r are r."""
    return np.broadcast_to(np.arange(ROWS, dtype=np.float32), [2, 3, ROWS])


def make(folder, axes, log, cores=1):
    def model_fn(features, labels, mode, params):
        x = features["image"]
        assert x.shape.as_list() == [2, 3, ROWS // cores]
        sums = tf.reduce_sum(x, [0, 1])
        seen = {"sums": sums}
        if labels is not None:
            assert labels.shape.as_list() == [ROWS // cores]
            seen["labels"] = labels
        total = tpu.cross_replica_sum(tf.reduce_sum(sums))
        weight = tf.get_variable("w", initializer=0.0)
        step = tf.train.get_global_step()
        return tpu.TPUEstimatorSpec(
            mode,
            loss=tf.reduce_mean(sums),
            train_op=tf.group(step.assign_add(1), weight.assign(total)),
            host_call=(log, seen),
        )

    return make_estimator(folder, model_fn, batch_axis=axes)


def test_a_dataset_and_its_labels(tmp_path, cores):
    log = HostLog()

    def input_fn(params):
        element = ({"image": image()}, np.arange(ROWS, dtype=np.float32))
        return tf.data.Dataset.from_tensors(element).repeat()

    make(tmp_path, [2, 0], log, cores).train(input_fn, steps=1)
    assert log.values == [{"sums": [0.0, 6.0, 12.0, 18.0], "labels": [0.0, 1.0, 2.0, 3.0]}]


def test_tensors_without_labels(tmp_path):
    log = HostLog()
    estimator = make(tmp_path, (2,), log)
    estimator.train(lambda params: {"image": tf.constant(image())}, steps=1)
    assert log.values == [{"sums": [0.0, 6.0, 12.0, 18.0]}]


def test_the_axes_are_those_of_all_tensors(tmp_path):
    estimator = make(tmp_path, [2, 0, 0], HostLog())
    with pytest.raises(ValueError, match=r"\[2, 0, 0\] has 3 axes, but input_fn gives 1 tensors"):
        estimator.train(lambda params: {"image": tf.constant(image())}, steps=1)


def test_predict_does_not_take_it(tmp_path):
    with pytest.raises(TypeError, match="batch_axis is not supported by predict"):
        make(tmp_path, [2], HostLog()).predict(None)
