"""The lines of TensorFlow 1 that a script logs under the runner."""

import json
import os
import re
import subprocess
import sys

import legacy_script
import pytest
import replay
import tensorflow.compat.v1 as tf
import toy

from bert_estimator import tpu
from bert_estimator.legacy import strictness


@pytest.fixture
def lines(caplog):
    """A function that returns what was logged so far, as the runner has it logged."""
    logger = tf.get_logger()
    before = list(logger.filters)
    strictness.log_old_lines(logger)
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
def main(_):
    estimator.train(input_fn, max_steps=4)
    estimator.evaluate(input_fn, steps=1)

if sys.argv[2] == "main":
    main([])
else:
    tf.app.run()
"""


@pytest.mark.parametrize(("master", "way"), [("", "main"), ("", "app"), ("rehearse:2", "app")])
def test_a_script_under_the_runner_logs_them(request, tmp_path, master, way):
    if master:
        request.getfixturevalue("xla_runtime")
    done = legacy_script.run(tmp_path, SCRIPT, master, way)
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


MAIN = """
import tensorflow as tf
{top}
def main(_):
{body}
    tf.logging.info("info in main")
    tf.logging.warning("warning in main")
{run}
"""
OF_TENSORFLOW = ["INFO:tensorflow:info in main", "WARNING:tensorflow:warning in main"]
# absl's `app.run` adds a handler of its own, which writes each line again.
IN_MAIN = [
    "INFO:tensorflow:info in main",
    "I] info in main",
    "WARNING:tensorflow:warning in main",
    "W] warning in main",
]
AT_THE_TOP = "tf.logging.set_verbosity(tf.logging.INFO); tf.logging.info('at the top')"
BASIC = "import logging; logging.basicConfig(level=logging.INFO)"
# A name -> (at the top, in main, how main is run, flags, the lines that TensorFlow 1.15.5 writes).
CASES = {
    "no app": (AT_THE_TOP, "", "main([])", [], ["INFO:tensorflow:at the top", *OF_TENSORFLOW]),
    "default": ("", "", "main([])", [], OF_TENSORFLOW[1:]),
    "app": (AT_THE_TOP, "", "tf.app.run()", [], ["INFO:tensorflow:at the top", *IN_MAIN]),
    "default of app": ("tf.logging.info('at the top')", "", "tf.app.run()", [], IN_MAIN),
    "in main": ("", "tf.logging.set_verbosity(tf.logging.INFO)", "tf.app.run()", [], IN_MAIN),
    "warnings only": (
        "",
        "tf.logging.set_verbosity(tf.logging.WARN)",
        "tf.app.run(main)",
        [],
        IN_MAIN[2:],
    ),
    "a flag": (
        "tf.flags.DEFINE_string('a', '', '')",
        "tf.logging.info(tf.flags.FLAGS.a)",
        "tf.app.run()",
        ["--a=x"],
        ["INFO:tensorflow:x", "I] x", *IN_MAIN],
    ),
    "verbosity": ("", "", "tf.app.run()", ["--verbosity=0"], IN_MAIN),
    "v": (
        "",
        "tf.logging.debug('debug')",
        "tf.app.run()",
        ["-v=1"],
        ["DEBUG:tensorflow:debug", "I] debug", *IN_MAIN],
    ),
    "threshold": ("", "", "tf.app.run()", ["--stderrthreshold=error"], IN_MAIN),
    "absl's app": ("from absl import app", "", "app.run(main)", [], IN_MAIN),
    "absl's log": (
        "from absl import logging",
        "logging.warning('absl')",
        "tf.app.run()",
        [],
        ["W] absl", *IN_MAIN],
    ),
    "basic": (BASIC, "", "main([])", [], [line for line in OF_TENSORFLOW for _ in range(2)]),
    "basic and app": (BASIC, "", "tf.app.run()", [], IN_MAIN),  # absl's handler takes the place
    "no propagation": (
        "tf.get_logger().propagate = False",
        "tf.logging.set_verbosity(tf.logging.INFO)",
        "tf.app.run()",
        [],
        OF_TENSORFLOW,
    ),
    "no handler": ("tf.get_logger().handlers = []", "", "tf.app.run()", [], IN_MAIN[1::2]),
}


# Runs each case in a process of its own; the streams of TensorFlow's and absl's handlers are open.
DRIVER = """
import json, os, sys, tempfile, traceback
import tensorflow as tf

tf.Session  # TensorFlow 1.15.5 loads itself when a name is used
with open("cases.json") as file:
    cases = json.load(file)
written = {}
for case, (script, flags) in cases.items():
    with tempfile.TemporaryFile() as file:
        process = os.fork()
        if not process:
            for stream in (2, sys.stderr.fileno()):
                os.dup2(file.fileno(), stream)
            sys.argv = ["script.py"] + flags
            try:
                exec(compile(script, "script.py", "exec"), vars(sys.modules["__main__"]))
            except SystemExit:
                pass
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(0)
        os.waitpid(process, 0)
        file.seek(0)
        written[case] = file.read().decode()
with open("written.json", "w") as file:
    json.dump(written, file)
"""


def run_cases(command, folder):
    """Runs all cases by a command; returns case -> the lines of the log that it writes."""
    scripts = {
        case: (MAIN.format(top=top, body=f"    {body}" if body else "", run=run), flags)
        for case, (top, body, run, flags, _) in CASES.items()
    }
    (folder / "cases.json").write_text(json.dumps(scripts))
    (folder / "driver.py").write_text(DRIVER)
    environment = {**os.environ, "PYTHONPATH": str(replay.ROOT)}
    subprocess.run([*command, "driver.py"], cwd=folder, env=environment, check=True)
    texts = json.loads((folder / "written.json").read_text())
    # TensorFlow 1.15.5 says that the script is old, in lines that begin with "From".
    line = re.compile(r"^(?:([IWE])[0-9. :]+ script\.py:\d+(\])|([A-Z]+:\w+:)(?!From))(.*)", re.M)
    return {case: ["".join(line) for line in line.findall(text)] for case, text in texts.items()}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Case -> the lines that it writes under the runner, in a new process: absl's handler keeps
    the stream that it found first."""
    command = [sys.executable, "-m", "bert_estimator.legacy", "--tf1"]
    return run_cases(command, tmp_path_factory.mktemp("written"))


@pytest.mark.parametrize("case", CASES)
def test_lines_are_written_as_by_tensorflow_1(written, case):
    assert written[case] == CASES[case][-1]


@pytest.mark.skipif(not os.environ.get("TF115_PYTHON"), reason="needs TF115_PYTHON")
def test_tensorflow_1_writes_these_lines(tmp_path):
    lines = {case: lines for case, (*_, lines) in CASES.items()}
    assert run_cases([os.environ["TF115_PYTHON"]], tmp_path) == lines
