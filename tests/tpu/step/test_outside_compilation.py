"""Python, prints and summaries of a model that run on the host, on every runtime."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy

from bert_estimator import tpu


def make_model_fn(part):
    """Returns a model_fn whose loss is w times the mean of y, where y is `part(x, w)`."""

    def model_fn(features, mode, params):
        weight = tf.get_variable("w", initializer=1.0)
        y = part(features["x"], weight)
        loss = weight * tf.reduce_mean(y)
        optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.125))
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return tpu.TPUEstimatorSpec(mode, {"y": y}, loss, train_op)

    return model_fn


def make_estimator(folder, part, **keywords):
    return toy.make_estimator(folder, make_model_fn(part), predict_batch_size=4, **keywords)


def test_random_operations_of_the_host(tmp_path, cores):
    seen = []

    def part(x, weight):
        def on_host():
            drawn = [tf.random.uniform([9]), tf.random.normal([9])]
            return tf.py_func(lambda *drawn: seen.extend(np.concatenate(drawn)), drawn, [])

        tpu.outside_compilation(on_host)
        return x

    make_estimator(tmp_path, part).train(toy.input_fn, max_steps=2)
    assert len(set(seen)) == len(seen) == 2 * cores * 18


def test_python_functions_run_after_each_step_for_each_core(tmp_path, cores):
    seen, printed = [], tmp_path / "printed"

    def part(x, weight):
        def on_host(x, weight):
            noted = tf.py_func(lambda *a: seen.append([v.tolist() for v in a]), [x, 2 * weight], [])
            return tf.group(noted, tf.print(x[0], output_stream=f"file://{printed}"))

        done = tpu.outside_compilation(on_host, x, weight)
        tpu.outside_compilation(lambda: tf.py_func(lambda: seen.append("alone"), [], []))
        with tf.control_dependencies([done]):
            return tf.identity(x)

    def taken():
        values = [each for each in seen if each != "alone"]
        assert seen.count("alone") == len(values)
        seen.clear()
        return values

    rows = 4 // cores
    estimator = make_estimator(tmp_path / "model", part, iterations_per_loop=2)
    estimator.train(toy.input_fn, max_steps=2)
    estimator.train(toy.input_fn, max_steps=3)
    steps = [([1.0] * rows, 2.0), ([2.0] * rows, 1.75), ([3.0] * rows, 1.25)]
    assert taken() == [list(step) for step in steps for _ in range(cores)]
    assert printed.read_text().split() == [str(step) for step in (1, 2, 3) for _ in range(cores)]
    estimator.evaluate(toy.input_fn, steps=1)
    assert taken() == [[[4.0] * rows, 0.5]] * cores
    assert next(estimator.predict(toy.ending_at(4)))["y"] == 4
    assert taken()[:cores] == [[[4.0] * rows, 0.5]] * cores


def test_with_one_batch_for_all_cores_they_run_once(tmp_path, cores):
    seen = []

    def part(x, weight):
        tpu.outside_compilation(lambda: tf.py_func(lambda x: seen.append(x.tolist()), [x], []))
        return x

    mode = tpu.InputPipelineConfig.BROADCAST
    estimator = make_estimator(tmp_path, part, per_host_input_for_training=mode)
    estimator.train(toy.input_fn, max_steps=2)
    assert seen == [[1.0] * 4, [2.0] * 4]


def test_an_error_in_a_python_function_ends_training(tmp_path, cores):
    def fails(x):
        raise RuntimeError(f"failed at {x[0]}")

    def part(x, weight):
        tpu.outside_compilation(lambda x: tf.py_func(fails, [x], []), x)
        return x

    with pytest.raises(tf.errors.UnknownError, match=r"RuntimeError: failed at 1\.0"):
        make_estimator(tmp_path, part).train(toy.input_fn, max_steps=2)


def test_summaries(tmp_path, cores):
    def part(x, weight):
        writer = tpu.summary.create_file_writer(str(tmp_path / "own"))

        def on_host(x):
            with writer.as_default():
                return tpu.summary.scalar("mean", tf.reduce_mean(x), tf.train.get_global_step())

        tpu.outside_compilation(on_host, x)
        return x

    make_estimator(tmp_path, part).train(toy.input_fn, max_steps=3)
    values = [(step, value) for step in range(3) for value in [step + 1.0] * cores]
    assert toy.scalars(tmp_path / "own", "mean") == values


def test_conditions_and_variables(tmp_path, cores):
    """What an outside compilation reads in a condition is the core's variable."""
    seen = []

    def part(x, weight):
        def on_host(x):
            def note():
                noted = tf.py_func(lambda *a: seen.append([v.tolist() for v in a]), [x, weight], [])
                with tf.control_dependencies([noted]):
                    return tf.constant(1)

            return tf.cond(x[0] > 1, note, lambda: tf.constant(0))

        tpu.outside_compilation(on_host, x)
        return x

    make_estimator(tmp_path, part).train(toy.input_fn, max_steps=3)
    rows = 4 // cores
    steps = [[[2.0] * rows, 0.875], [[3.0] * rows, 0.625]]
    assert seen == [step for step in steps for _ in range(cores)]


def test_results_that_a_step_on_cores_would_wait_for(tmp_path, xla_runtime):
    def part(x, weight):
        def on_host(x):
            return tf.py_func(np.sin, [x], tf.float32, name="sine")

        return tf.ensure_shape(tpu.outside_compilation(on_host, x), x.shape)

    make_estimator(tmp_path / "session", part).train(toy.input_fn, max_steps=1)
    words = r"sine \(PyFunc\) in .*outside_compilation, if the step does not use their results"
    with pytest.raises(RuntimeError, match=words):
        make_estimator(tmp_path, part, master="rehearse:2").train(toy.input_fn, max_steps=1)


def test_variables_are_not_updated_on_the_host(tmp_path, xla_runtime):
    def part(x, weight):
        count = tf.get_variable("count", initializer=0.0, trainable=False)
        tpu.outside_compilation(lambda: count.assign_add(1.0))
        return x

    with pytest.raises(ValueError, match=r"AssignAddVariableOp\) takes the variable count"):
        make_estimator(tmp_path, part, master="rehearse:2").train(toy.input_fn, max_steps=1)


def test_in_local_mode_it_only_calls_the_function(tmp_path):
    seen = []

    def part(x, weight):
        tpu.outside_compilation(lambda: tf.py_func(lambda: seen.append(1), [], []))
        return x

    make_estimator(tmp_path, part, use_tpu=False).train(toy.input_fn, max_steps=2)
    assert not seen
