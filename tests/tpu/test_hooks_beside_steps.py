"""What hooks ask of a step, on each runtime: they get it, or an error that says why."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator import tpu

LOCAL, SESSION = {"use_tpu": False}, {"use_tpu": True}  # of the fixture `rules`


def halving(features, labels, mode, params):
    """A model_fn whose weight goes halfway to 8 in a step, at a rate that hooks feed."""
    weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
    rate = tf.placeholder_with_default(0.25, [], "rate")
    predictions = {"y": features * 0 + weight * rate}
    if mode == "infer":
        return tpu.TPUEstimatorSpec(mode, predictions=predictions)
    loss = tf.reduce_mean(tf.square(weight - features)) + 0 * rate
    optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(rate))
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def estimator(tmp_path, rules, iterations=1, model_fn=halving):
    return toy.make_estimator(
        tmp_path, model_fn, iterations_per_loop=iterations, predict_batch_size=4, **rules
    )


def input_fn(params):
    rows = tf.data.Dataset.from_tensor_slices((np.full(4, 8, np.float32), np.zeros(4)))
    return rows.batch(params["batch_size"], drop_remainder=True)


def endless(params):
    return input_fn(params).repeat()


class OriginalLoss(tf.train.SessionRunHook):
    """Fetches the loss of the step, as hooks do that hold nothing of the graph."""

    def __init__(self):
        self.losses = []

    def before_run(self, run_context):
        fetches = run_context.original_args.fetches
        return tf.train.SessionRunArgs(fetches[1] if isinstance(fetches, list) else fetches)

    def after_run(self, run_context, run_values):
        self.losses.append(float(run_values.results))


class Feed(tf.train.SessionRunHook):
    def __init__(self, tensor="rate:0"):
        self._name = tensor

    def begin(self):
        self._tensor = tf.get_default_graph().get_tensor_by_name(self._name)

    def before_run(self, run_context):
        return tf.train.SessionRunArgs(None, {self._tensor: 0.5})


def test_the_loss_of_the_original_arguments(tmp_path, rules):
    hook = OriginalLoss()
    if rules == SESSION:
        with pytest.raises(
            ValueError, match=r"OriginalLoss fetches .*, a tensor of the step itself"
        ):
            estimator(tmp_path, rules).train(endless, hooks=[hook], steps=3)
        return
    estimator(tmp_path, rules).train(endless, hooks=[hook], steps=3)
    assert hook.losses == [64.0, 16.0, 4.0]


@pytest.mark.usefixtures("xla_runtime")
def test_on_cores_it_is_the_last_loss_of_a_loop(tmp_path):
    hook = OriginalLoss()
    estimator(tmp_path, {"master": "rehearse:2"}, iterations=2).train(
        endless, hooks=[hook], steps=4
    )
    assert hook.losses == [16.0, 1.0]


@pytest.mark.parametrize("verb", ["train", "evaluate", "predict"])
def test_a_hook_that_feeds_the_step(tmp_path, rules, verb):
    """Locally the value is fed; elsewhere it cannot be, and is not ignored."""
    trained = estimator(tmp_path, rules)
    trained.train(endless, steps=1)
    weight = trained.get_variable_value("weight")
    assert weight == 4.0

    def run():
        if verb == "train":
            trained.train(endless, hooks=[Feed()], steps=1)
            return trained.get_variable_value("weight")
        if verb == "evaluate":
            return trained.evaluate(endless, hooks=[Feed()], steps=1)["loss"]
        return next(iter(trained.predict(input_fn, hooks=[Feed()])))["y"]

    if rules == LOCAL:
        assert run() == {"train": 8.0, "evaluate": 16.0, "predict": 2.0}[verb]
        return
    message = "fetches rate:0, a tensor of the step itself"
    if rules == SESSION:
        message = r"A hook feeds rate:0, on which the step depends.* make it a variable that the"
    with pytest.raises(ValueError, match=message):
        run()


def test_a_hook_that_feeds_a_placeholder_of_the_session(tmp_path, rules):
    """A step on cores has its default as a constant, as with Keras's learning phase."""

    def model_fn(features, labels, mode, params):
        with tf.init_scope():
            phase = tf.placeholder_with_default(1.0, [], "phase")
        weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(weight - features)) * phase
        optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.25))
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    trained, hook = estimator(tmp_path, rules, model_fn=model_fn), Feed("phase:0")
    if rules == LOCAL:
        trained.train(endless, hooks=[hook], steps=1)
        assert trained.get_variable_value("weight") == 2.0
        return
    with pytest.raises(ValueError, match="A hook feeds phase:0, on which the step depends"):
        trained.train(endless, hooks=[hook], steps=1)
