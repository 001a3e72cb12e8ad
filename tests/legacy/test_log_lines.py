"""The lines of TensorFlow 1 that a script logs under the runner."""

import os
import re
import sys

import forked
import pytest
import replay
import tensorflow.compat.v1 as tf
import toy

from bert_estimator import tpu
from bert_estimator.legacy import log_lines


@pytest.fixture
def lines(caplog):
    """A function that returns what was logged so far, as the runner has it logged."""
    logger = tf.get_logger()
    before = list(logger.filters)
    log_lines.install(logger)
    with caplog.at_level("INFO", logger="tensorflow"):
        yield lambda: [record.getMessage() for record in caplog.records]
    for added in set(logger.filters) - set(before):
        logger.removeFilter(added)


def test_tools_find_the_lines_that_they_look_for(tmp_path, rules, lines):
    def fields(features, loss):
        return {"eval_metrics": (lambda x: {"largest": tf.metrics.mean(x)}, [features["x"]])}

    estimator = toy.make_estimator(
        tmp_path,
        toy.make_model_fn(fields),
        iterations_per_loop=2,
        log_step_count_steps=2,
        **rules,
    )
    estimator.train(toy.input_fn, max_steps=6)
    estimator.evaluate(toy.input_fn, steps=2)
    text = "\n".join(lines())
    losses = re.findall(r"^loss = ([0-9.e+-]+), step = ([0-9]+) \([0-9.]+ sec\)$", text, re.M)
    assert losses == [("2.0", "2"), ("4.0", "4"), ("6.0", "6")]
    assert len(re.findall(r"^global_step/sec: [0-9.e+]+$", text, re.M)) == 3
    assert len(re.findall(r"^examples/sec: [0-9.e+]+$", text, re.M)) == 3
    # As TensorFlow 1.15.5 writes them.
    assert "Saving dict for global step 6: global_step = 6, largest = 7.5, loss = 7.5" in lines()
    path = f"{tmp_path}/model.ckpt-6"
    assert f"Saving 'checkpoint_path' summary for global step 6: {path}" in lines()
    assert any(line.startswith("step 6/6  loss 6.0000") for line in lines())


SCRIPT = """
import sys
import tensorflow as tf

tf.logging.set_verbosity(tf.logging.INFO)

def model_fn(features, labels, mode, params):
    weight = tf.get_variable("w", [], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(features["x"]) + 0 * weight
    optimizer = tf.contrib.tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.1))
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tf.contrib.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

def input_fn(params):
    numbers = tf.data.Dataset.range(1, 100)
    return numbers.map(lambda i: {"x": tf.fill([params["batch_size"]], tf.to_float(i))})

config = tf.contrib.tpu.RunConfig(
    model_dir="model",
    master=sys.argv[1],
    log_step_count_steps=2,
    tpu_config=tf.contrib.tpu.TPUConfig(iterations_per_loop=2),
)
estimator = tf.contrib.tpu.TPUEstimator(
    model_fn, config=config, use_tpu=bool(sys.argv[1]), train_batch_size=4, eval_batch_size=4
)
estimator.train(input_fn, max_steps=4)
estimator.evaluate(input_fn, steps=1)
"""


@pytest.mark.parametrize("master", ["", "rehearse:2"])
def test_a_script_under_the_runner_logs_them(request, tmp_path, master):
    if master:
        request.getfixturevalue("xla_runtime")
    (tmp_path / "script.py").write_text(SCRIPT)
    done = forked.run(
        [sys.executable, "-m", "bert_estimator.legacy", "script.py", master],
        env={**os.environ, "PYTHONPATH": str(replay.ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    losses = r"^INFO:tensorflow:loss = ([0-9.]+), step = ([0-9]+) \([0-9.]+ sec\)$"
    assert re.findall(losses, done.stderr, re.M) == [("2.0", "2"), ("4.0", "4")]
    rates = re.findall(r"^INFO:tensorflow:global_step/sec: [0-9.e+]+$", done.stderr, re.M)
    assert len(rates) == 2, done.stderr
    saving = "INFO:tensorflow:Saving dict for global step 4: global_step = 4, loss = 1.0\n"
    assert saving in done.stderr


def test_an_estimator_has_no_rate_of_examples(tmp_path, lines):
    config = tpu.RunConfig(model_dir=str(tmp_path), log_step_count_steps=1)

    def model_fn(features, mode):
        loss = tf.reduce_mean(features["x"]) / 3
        step = tf.train.get_global_step().assign_add(1)
        return tpu.EstimatorSpec(mode, loss=loss, train_op=step)

    tpu.Estimator(model_fn, config=config).train(lambda: toy.batches(), steps=1)
    assert [line for line in lines() if line.startswith("loss = 0.33333334, step = 1 (")]
    assert not [line for line in lines() if line.startswith("examples/sec")]
