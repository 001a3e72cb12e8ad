"""Tests a script's own saver of checkpoints, and the last step of a directory."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.legacy.stand_ins import contrib_estimator
from bert_estimator.tpu import errors


def model_fn(features, mode, params):
    weight = tf.get_variable("w", initializer=0.0)
    step = tf.train.get_global_step()
    train_op = tf.group(weight.assign_add(1.0), step.assign_add(1))
    return tpu.TPUEstimatorSpec(mode, loss=tf.reduce_mean(features), train_op=train_op)


def input_fn(params):
    return tf.data.Dataset.from_tensors(np.ones([params["batch_size"], 1], np.float32)).repeat()


def test_the_hook_saves_in_place_of_the_estimator(tmp_path):
    config = tpu.RunConfig(model_dir=str(tmp_path), save_checkpoints_steps=3)
    estimator = tpu.TPUEstimator(model_fn, config=config, use_tpu=False, train_batch_size=2)
    asked = contrib_estimator.load_global_step_from_checkpoint_dir
    assert asked(str(tmp_path)) == asked(str(tmp_path / "absent")) == 0
    hook = contrib_estimator.AsyncCheckpointSaverHook(str(tmp_path), save_steps=2)
    estimator.train(input_fn, steps=5, hooks=[hook])
    saved = sorted(path.stem for path in tmp_path.glob("*.index"))
    assert saved == ["model.ckpt-0", "model.ckpt-2", "model.ckpt-4", "model.ckpt-5"]
    assert asked(str(tmp_path)) == 5
    assert estimator.get_variable_value("w") == 5


def test_its_arguments_by_place_are_those_of_tensorflow_1(tmp_path):
    with tf.Graph().as_default():
        saver, listener = tf.train.Saver([tf.Variable(0)]), tf.train.CheckpointSaverListener()
        hook = contrib_estimator.AsyncCheckpointSaverHook(
            str(tmp_path), None, 10, saver, "other.ckpt", None, [listener]
        )
    assert (hook._saver, hook._listeners) == (saver, [listener])
    assert hook._save_path == str(tmp_path / "other.ckpt")


def test_a_directory_of_broken_checkpoints_has_no_last_step(tmp_path):
    (tmp_path / "model.ckpt-7.index").write_bytes(b"broken")
    with pytest.raises(errors.NoWholeCheckpointError, match=r"model\.ckpt-7"):
        contrib_estimator.load_global_step_from_checkpoint_dir(str(tmp_path))
