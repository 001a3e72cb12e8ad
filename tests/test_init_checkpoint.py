"""Starting from another model's weights."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import init_checkpoint
from bert_estimator.flags import FlagError


@pytest.fixture
def checkpoint(tmp_path):
    """A trained model with a variable of the new one, a head of its own, slots and a step."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("bert/kernel", initializer=np.full([2, 3], 7.0, np.float32))
        tf.get_variable("bert/kernel/adam_m", initializer=np.ones([2, 3], np.float32))
        tf.get_variable("head/bias", initializer=np.ones([3], np.float32))
        tf.train.create_global_step()
        session.run(tf.global_variables_initializer())
        return tf.train.Saver().save(session, str(tmp_path / "model.ckpt"), write_meta_graph=False)


def model(kernel_shape=(2, 3), name="bert/kernel"):
    """Variables of a new model: a kernel, a bias, a slot and a step."""
    tf.get_variable(name, kernel_shape, initializer=tf.zeros_initializer())
    tf.get_variable("bert/bias", [3], initializer=tf.zeros_initializer())
    tf.get_variable(
        "bert/kernel/adam_m", [2, 3], initializer=tf.zeros_initializer(), trainable=False
    )
    return tf.train.create_global_step()


def test_without_a_checkpoint_there_is_nothing_to_do():
    assert init_checkpoint.scaffold_fn(None) is None


def test_weights_alone_are_initialized_and_the_table_says_which(checkpoint):
    lines = []

    def log(text, *args):
        lines.extend((text % args).splitlines())

    with tf.Graph().as_default(), tf.Session() as session:
        step = model()
        scaffold = init_checkpoint.scaffold_fn(checkpoint, log)()
        assert isinstance(scaffold, tf.train.Scaffold)
        session.run(tf.global_variables_initializer())
        values = session.run({v.op.name: v.read_value() for v in tf.global_variables()})
        assert session.run(step) == 0
    np.testing.assert_array_equal(values["bert/kernel"], np.full([2, 3], 7.0))
    np.testing.assert_array_equal(values["bert/bias"], np.zeros(3))
    np.testing.assert_array_equal(values["bert/kernel/adam_m"], np.zeros([2, 3]))
    assert lines == [
        f"Initial weights from {checkpoint}:",
        "     1 initialized from it: bert/kernel",
        "     1 newly initialized: bert/bias",
        "     1 in it, but unused: head/bias",
    ]


def test_a_long_list_is_shortened():
    names = [f"layer_{i}" for i in range(6)]
    assert init_checkpoint._shortened(names) == "layer_0, layer_1, layer_2, layer_3, ... (2 more)"


def test_another_shape_is_an_error(checkpoint):
    message = (
        rf"--init_checkpoint={checkpoint} does not fit --bert_config_file:\n"
        r"  bert/kernel: \[2, 4\] in the model, \[2, 3\] in the checkpoint"
    )
    with tf.Graph().as_default():
        model(kernel_shape=(2, 4))
        with pytest.raises(FlagError, match=message):
            init_checkpoint.scaffold_fn(checkpoint)()


def test_a_checkpoint_of_something_else_is_an_error(checkpoint):
    with tf.Graph().as_default():
        variable = tf.get_variable("other/kernel", [2, 3])
        message = (
            rf"--init_checkpoint={checkpoint} holds none of the model's 1 variables. The model's "
            r"begin with \['other/kernel'\], the checkpoint's with \['bert/kernel', 'head/bias'\]"
        )
        with pytest.raises(FlagError, match=message):
            init_checkpoint.match(checkpoint, {"other/kernel": variable})
