"""Writers of `tf.summary` that a model_fn itself uses: the same events on every runtime."""

import glob

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tensorflow.compat.v2 as tf2
import toy
from tensorflow.python.ops import summary_ops_v2 as contrib_summary

from bert_estimator import tpu


def written(folder):
    """Returns a list of (step, tag, value) of the events in a folder, sorted."""
    values = []
    for path in sorted(glob.glob(f"{folder}/*tfevents*")):
        for event in tf.train.summary_iterator(path):
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    number = value.simple_value
                else:
                    number = tf.make_ndarray(value.tensor).tolist()
                values.append((event.step, value.tag, number))
    return sorted(values, key=str)


def make_estimator(folder, write, rules):
    """Returns an estimator whose step waits for `write(x, y)`; y is a step's number as [1, 2]."""

    def model_fn(features, mode, params):
        weight = tf.get_variable("w", initializer=1.0)
        x = features["x"]
        loss = tf.reduce_mean(weight * x)
        with tf2.summary.create_file_writer(f"{folder}/own").as_default():
            write(tf.reduce_mean(x), tf.reshape(x, [1, -1])[:, :2])
        optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.125))
        with tf.control_dependencies(tf.summary.all_v2_summary_ops()):
            loss = tf.identity(loss)
            train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, {"x": x}, loss, train_op)

    return toy.make_estimator(
        folder / "model", model_fn, iterations_per_loop=2, predict_batch_size=4, **rules
    )


def at(*steps):
    """Returns whether the step is one of these, a tensor: SimCLR and others record so."""
    current = tf.train.get_global_step()
    return tf.reduce_any([tf.equal(current, step) for step in steps])


def scalar(x, y):
    tf2.summary.write("loss", x, step=tf.train.get_global_step())


def scalar_in_condition(x, y):
    with tf2.summary.record_if(at(0, 2)):
        scalar(x, y)
        tf2.summary.write("twice", 2 * x, step=tf.train.get_global_step())


def own_scalar(x, y):
    with tf2.summary.record_if(at(0, 2)):
        tpu.summary.scalar("loss", x, tf.train.get_global_step())


def text(x, y):
    words = tf.strings.join(["step ", tf.as_string(tf.cast(x, tf.int32))])
    tpu.summary.text("words", words, tf.train.get_global_step())


def texts_of_a_loop(x, y):
    words = tf.map_fn(lambda row: tf.as_string(tf.cast(row[0], tf.int32)), y, tf.string)
    tpu.summary.text("words", words, tf.train.get_global_step())


def histogram(x, y):
    tpu.summary.histogram("values", tf.concat([y, 2 * y], 1), tf.train.get_global_step(), 2)


def old_scalar(x, y):
    with contrib_summary.always_record_summaries():
        contrib_summary.scalar("loss", x)


def old_scalar_in_condition(x, y):
    with contrib_summary.record_summaries_every_n_global_steps(2):
        contrib_summary.scalar("loss", x)


BOTH = [(0, "loss", 1.0), (2, "loss", 3.0)]
ALL = [(0, "loss", 1.0), (1, "loss", 2.0), (2, "loss", 3.0)]
WRITES = {
    "scalar": (scalar, ALL),
    "scalar in condition": (
        scalar_in_condition,
        [*BOTH, (0, "twice", 2.0), (2, "twice", 6.0)],
    ),
    "own scalar": (own_scalar, BOTH),
    "text": (text, [(i, "words", f"step {i + 1}".encode()) for i in range(3)]),
    "texts of a loop": (texts_of_a_loop, [(i, "words", [b"%d" % (i + 1)]) for i in range(3)]),
    "histogram": (
        histogram,
        [(i - 1, "values", [[i, 1.5 * i, 2.0], [1.5 * i, 2.0 * i, 2.0]]) for i in (1, 2, 3)],
    ),
    "old scalar": (old_scalar, ALL),
    "old scalar in condition": (old_scalar_in_condition, BOTH),
}


@pytest.mark.parametrize("write, events", WRITES.values(), ids=WRITES)
def test_each_runtime_writes_the_same_events(tmp_path, rules, write, events):
    estimator = make_estimator(tmp_path, write, rules)
    estimator.train(toy.input_fn, max_steps=3)
    assert written(tmp_path / "own") == sorted(events, key=str)


def test_a_resumed_training_and_an_evaluation_write_on(tmp_path, rules):
    estimator = make_estimator(tmp_path, scalar, rules)
    estimator.train(toy.input_fn, max_steps=1)
    estimator.train(toy.input_fn, max_steps=2)
    assert written(tmp_path / "own") == ALL[:2]
    estimator.evaluate(toy.input_fn, steps=1)
    assert written(tmp_path / "own") == ALL
    # A prediction does not wait for the summary.
    assert [p["x"] for p in estimator.predict(toy.ending_at(3))] == [3.0] * 4
    assert written(tmp_path / "own") == ALL


@pytest.mark.parametrize("after", [False, True])
def test_the_step_of_a_summary_is_before_the_update_unless_it_waits(tmp_path, rules, after):
    def model_fn(features, mode, params):
        weight = tf.get_variable("w", initializer=1.0, use_resource=True)
        loss = tf.reduce_mean(weight * features["x"])
        step = tf.train.get_global_step()
        optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.125))
        with tf2.summary.create_file_writer(f"{tmp_path}/own").as_default():
            update = optimizer.minimize(loss)
            waits_for = [update, step.assign_add(1)] if after else []
            recording = tf2.summary.record_if(tf.greater(loss, -100.0))
            with tf.control_dependencies(waits_for), recording:
                summary = tf2.summary.write("w", weight.read_value(), step=step)
        first = [summary] if after else []
        with tf.control_dependencies([] if after else [summary]):
            rest = [] if after else [tf.group(update, step.assign_add(1))]
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=tf.group(*first, *rest))

    estimator = toy.make_estimator(tmp_path / "model", model_fn, **rules)
    estimator.train(toy.input_fn, max_steps=2)
    weights = [1.0, 0.875, 0.625]
    first = 1 if after else 0
    expected = [(step, "w", weights[step]) for step in range(first, first + 2)]
    assert written(tmp_path / "own") == expected


def test_a_train_op_may_be_a_group_with_summaries(tmp_path, rules):
    def model_fn(features, mode, params):
        weight = tf.get_variable("w", initializer=1.0)
        loss = tf.reduce_mean(weight * features["x"])
        optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.125))
        update = optimizer.minimize(loss, tf.train.get_global_step())
        with tf2.summary.create_file_writer(f"{tmp_path}/own").as_default():
            tf2.summary.write("loss", loss, step=7)
        train_op = tf.group(update, *tf.summary.all_v2_summary_ops())
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = toy.make_estimator(tmp_path / "model", model_fn, **rules)
    estimator.train(toy.input_fn, max_steps=2)
    assert written(tmp_path / "own") == [(7, "loss", 1.0), (7, "loss", 1.75)]
    assert estimator.get_variable_value("w") == 0.625


@pytest.mark.parametrize(
    "in_loss, error, message",
    [
        (True, RuntimeError, "the writer of a summary, whose result the step uses"),
        (False, ValueError, "takes the variable counted, which is on the cores"),
    ],
)
def test_what_a_step_on_cores_cannot_take_from_a_writer(
    tmp_path, xla_runtime, in_loss, error, message
):
    def model_fn(features, mode, params):
        counted = tf.get_variable("counted", initializer=0.0)
        loss = tpu.cross_replica_sum(tf.reduce_mean(features["x"]))
        writer = tf2.summary.create_file_writer(f"{tmp_path}/own")
        with writer.as_default(), tf2.summary.record_if(at(0)):
            done = tf2.summary.write("loss", loss, step=0)
        done = tf.cast(done, tf.float32)
        train_op = tf.train.get_global_step().assign_add(1)
        if in_loss:
            loss += done
        else:
            train_op = tf.group(train_op, counted.assign_add(done))
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = toy.make_estimator(tmp_path / "model", model_fn, master="rehearse:2")
    with pytest.raises(error, match=message):
        estimator.train(toy.input_fn, max_steps=1)


def test_images_are_encoded_on_the_host(tmp_path, rules):
    def write(x, y):
        pixels = tf.cast(tf.fill([2, 2, 1], x), tf.uint8)
        image = tf.stack(["2", "2", tf.image.encode_png(pixels)])
        tf2.summary.write("image", image, step=tf.train.get_global_step())

    make_estimator(tmp_path, write, rules).train(toy.input_fn, max_steps=2)
    with tf.Graph().as_default(), tf.Session() as session:
        for (_, _, (_, _, png)), number in zip(written(tmp_path / "own"), (1, 2), strict=True):
            decoded = session.run(tf.image.decode_png(png))
            np.testing.assert_array_equal(decoded, np.full([2, 2, 1], number))
