"""Tests that the version of TensorFlow a script was written for is found out from its names."""

import os
import re
import sys
import zipfile

import forked
import legacy_script
import pytest
import replay
import tensorflow  # noqa: F401  (`script_version` reads the names of TensorFlow's modules)

import bert_estimator.legacy
from bert_estimator.legacy import __main__ as runner
from bert_estimator.legacy import script_version

PLAIN = "import tensorflow as tf\n"
NEUTRAL = "tf.estimator.DNNClassifier([4], [tf.feature_column.numeric_column('x')])\n"

OF_1 = [
    PLAIN + "tf.placeholder(tf.float32)",
    PLAIN + "tf.nn.rnn_cell.LSTMCell(1)",
    PLAIN + "tf.contrib.layers.fully_connected(x, 1)",
    PLAIN + "tf.estimator.inputs.numpy_input_fn(x)",
    PLAIN + "tf.losses.softmax_cross_entropy(x, y)",
    PLAIN + "tf.metrics.accuracy(x, y)",
    PLAIN + "tf.initializers.global_variables()",
    PLAIN + "tf.data.Dataset.range(3).make_one_shot_iterator()",
    PLAIN + "tf.random.set_random_seed(1)",
    PLAIN + "tf.estimator.experimental.KMeans(2)",
    PLAIN + "tf.nn.dropout(x, keep_prob=0.9)",
    PLAIN + "tf.reduce_sum(x, reduction_indices=1)",
    PLAIN + "tf.saved_model.load(session, ['serve'], path, import_scope='a')",
    PLAIN + "estimator = tf.estimator\nestimator.inputs.numpy_input_fn(x)",
    "import tensorflow\ntensorflow.get_variable('a', [])",
    "import tensorflow.contrib.slim as slim",
    "import tensorflow.contrib",
    "from tensorflow.contrib import tpu",
    "from tensorflow import flags",
    "import tensorflow.compat.v1 as tf\n" + NEUTRAL,
    "from tensorflow.compat import v1 as tf\n" + NEUTRAL,
    "try:\n  import tensorflow.compat.v1 as tf\nexcept ImportError:\n  import tensorflow as tf\n"
    + NEUTRAL,
]
OF_2 = [
    PLAIN + "tf.optimizers.Adam()",
    PLAIN + "tf.metrics.Mean()",
    PLAIN + "tf.losses.BinaryCrossentropy()",
    PLAIN + "tf.keras.optimizers.legacy.Adam()",
    PLAIN + "tf.random.set_seed(1)",
    PLAIN + "tf.summary.create_file_writer('x')",
    PLAIN + "tf.compat.v1.disable_v2_behavior()\ntf.compat.v1.Session()",
    PLAIN + "tf.compat.v1.disable_eager_execution()\n" + NEUTRAL,
    PLAIN + "tf.initializers.GlorotUniform()",
    "import tensorflow.compat.v2 as tf\n" + NEUTRAL,
    "from tensorflow import optimizers",
    PLAIN + "tf.saved_model.load('model').signatures['serving_default']",
    "import tensorflow.compat.v1 as v1\n" + PLAIN + "tf.saved_model.load('model')",
]
SAID = [
    ("import tensorflow.compat.v2 as tf\nimport tensorflow.compat.v1 as tf1", False, ""),
    (PLAIN + "import tensorflow.compat.v2 as v2\ntf.Session()", False, ""),
    (PLAIN + "tf.compat.v2.summary.scalar('x', 1)\ntf.Session()", False, ""),
    (PLAIN + NEUTRAL, True, "uses no name that only TensorFlow 1 has"),
    (PLAIN + "tf.train.Example.FromString(b'')", True, "uses no name that only TensorFlow 1 has"),
    (PLAIN + "tf.compat.v1.estimator.DNNClassifier()", True, "uses no name that only"),
    (PLAIN + "with tf.Graph().as_default():\n  tf.compat.v1.Session()", True, "uses no name"),
    (PLAIN + "\ntf.compat.v1.Session()", False, r"uses tf.compat.v1.Session \(s.py:3\), which"),
    (
        PLAIN + "tf.optimizers.Adam()\ntf.placeholder(1)",
        False,
        r"uses both tf.optimizers.Adam \(s.py:2\) and tf.placeholder \(s.py:3\)",
    ),
    (PLAIN + "tf.nn.dropout(*x)\ntf.nn.dropout(**x)\ntf.nn.dropout(x, 0.1)", True, "uses no name"),
    ("import tensorflow.compat.v1 as v1\n" + PLAIN + NEUTRAL, False, r"uses tf.compat.v1 \(s.py:1"),
    (
        PLAIN + "tf.saved_model.load('x')\ntf.nn.dropout(x, keep_prob=1)",
        False,
        r"uses both tf.saved_model.load with the arguments of TensorFlow 2 \(s.py:2\) and tf.nn",
    ),
    ("print(1)", False, "uses no name of TensorFlow itself"),
    ("from tensorflow.python.framework import ops", False, "uses no name of TensorFlow itself"),
]


@pytest.mark.parametrize("source", OF_1)
def test_names_of_tensorflow_1(source, tmp_path):
    assert script_version.of_script(source, "s.py", str(tmp_path)) == (False, "")


@pytest.mark.parametrize("source", OF_2)
def test_names_of_tensorflow_2(source, tmp_path):
    version = script_version.of_script(source, "s.py", str(tmp_path))
    assert version.tf2 and version.reason.startswith("uses tf."), version


@pytest.mark.parametrize(("source", "tf2", "reason"), SAID)
def test_what_is_not_certain_is_said(source, tf2, reason, tmp_path):
    version = script_version.of_script(source, "s.py", str(tmp_path))
    assert version.tf2 is tf2
    assert re.match(reason, version.reason), version


def test_modules_beside_the_script_are_read_and_not_run(tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from . import middle\nraise AssertionError")
    (package / "middle.py").write_text("from .last import name\n")
    (package / "last.py").write_text(PLAIN + "name = tf.Session")
    (tmp_path / "broken.py").write_text("print 1")
    source = PLAIN + "import broken, absent, package\n" + NEUTRAL
    assert script_version.of_script(source, "s.py", str(tmp_path)) == (False, "")
    (package / "last.py").write_text(PLAIN + "name = tf.optimizers")
    version = script_version.of_script(source, "s.py", str(tmp_path))
    assert version == (True, "uses tf.optimizers (last.py:2)")
    assert script_version.of_script(source, "s.py", "absent") == (
        True,
        "uses no name that only TensorFlow 1 has",
    )
    # As python -m package.module; a package runs its __main__.
    (package / "__main__.py").write_text("from package import last")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in ("package", "package.middle"):
        assert script_version.of_module(name) == (True, "uses tf.optimizers (last.py:2)")
    for name in ("absent", "package.absent", "broken", ""):
        assert script_version.of_module(name) == (False, "")


def test_packages_without_init_are_read(tmp_path, monkeypatch):
    package = tmp_path / "whole" / "without_init" / "below"
    package.mkdir(parents=True)
    (tmp_path / "whole" / "__init__.py").touch()
    (package / "main.py").write_text("from whole.without_init.below import last")
    (package / "last.py").write_text(PLAIN + "tf.optimizers")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    expected = (True, "uses tf.optimizers (last.py:2)")
    assert script_version.of_module("whole.without_init.below.main") == expected
    source = "from whole.without_init.below import main"
    assert script_version.of_script(source, "s.py", str(tmp_path)) == expected


def test_modules_in_a_zip_file(tmp_path):
    path = tmp_path / "program.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("part.py", PLAIN + "tf.Session")
    source = PLAIN + "import part\n" + NEUTRAL
    assert script_version.of_script(source, "s.py", str(path)) == (False, "")


@pytest.mark.parametrize(
    ("flags", "source", "tf2", "says"),
    [
        ([], PLAIN + NEUTRAL, True, "s.py: runs as a script for TensorFlow 2, because it uses no"),
        ([], PLAIN + "tf.app", False, ""),
        ([], "", False, "s.py: runs as a script for TensorFlow 1, because it uses no name"),
        (["--tf1"], PLAIN + NEUTRAL, False, ""),
        (["--tf2"], PLAIN + "tf.app", True, ""),
    ],
)
def test_the_runner_says_what_it_chose(tmp_path, monkeypatch, capsys, flags, source, tf2, says):
    installed = []
    monkeypatch.setattr(bert_estimator.legacy, "install", installed.append)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.chdir(tmp_path)
    # The script ends before its first line that needs the runner.
    (tmp_path / "s.py").write_text(f"raise SystemExit(7)\n{source}")
    with pytest.raises(SystemExit, match="7"):
        runner.main(["runner", *flags, "s.py"])
    error = capsys.readouterr().err
    assert installed == [tf2] and error.startswith(says) and bool(error) == bool(says)
    if says:
        assert error.endswith(
            f"If it is for TensorFlow {1 if tf2 else 2}, give "
            f"--tf{1 if tf2 else 2} before its name\n"
        )


INSTALLED = """
import bert_estimator.legacy
bert_estimator.legacy.install({argument})
import tensorflow as tf
print(tf.executing_eagerly(), tf.estimator.DNNClassifier.__name__, tf.{name}.__name__)
for name in ("placeholder", "optimizers"):
    try:
        getattr(tf, name)
    except AttributeError as error:
        print(error)
"""


@pytest.mark.parametrize("version", [1, 2])
def test_a_program_that_installs_it_gets_one_version(tmp_path, version):
    argument, name, prints, refuses = {
        1: ("", "placeholder", "False DNNClassifier placeholder", "optimizers is a name of Tensor"),
        2: ("tf2=True", "optimizers.Adam", "True DNNClassifierV2 Adam", "placeholder is a name of"),
    }[version]
    (tmp_path / "s.py").write_text(INSTALLED.format(argument=argument, name=name))
    done = forked.run(
        [sys.executable, str(tmp_path / "s.py")],
        env={**os.environ, "PYTHONPATH": str(replay.ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == prints and second.startswith(f"tensorflow.{refuses}")


SPAWNING = """
import multiprocessing, sys
import tensorflow as tf

def work(queue):
    queue.put([tf.executing_eagerly(), tf.estimator.DNNClassifier.__name__])

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
    try:
        tf.placeholder(tf.float32)
    except AttributeError as error:
        print(error)
    for name in ("contrib", "estimator.tpu", "estimator.BoostedTreesClassifier", "absent",
                 "estimator.experimental.KMeans"):
        try:
            module = tf
            for part in name.split("."):
                module = getattr(module, part)
        except AttributeError as error:
            print(error)
    import bert_estimator.legacy
    bert_estimator.legacy.install(tf2=True)
    try:
        bert_estimator.legacy.install()
    except RuntimeError as error:
        print(error)
"""


def test_a_script_of_tensorflow_2_its_processes_and_the_names_it_lacks(tmp_path):
    lines = legacy_script.run(tmp_path, SPAWNING, flags=["--tf2"]).stdout.splitlines()
    assert lines[0] == "[True, 'DNNClassifierV2']"
    of_1 = "is a name of TensorFlow 1, and the script runs as one for TensorFlow 2. Use "
    assert lines[1].startswith(f"tensorflow.placeholder {of_1}tf.compat.v1.placeholder, or")
    assert lines[2].startswith("tensorflow.contrib is a name of TensorFlow 1")
    assert lines[3].startswith(f"tensorflow.estimator.tpu {of_1}tf.compat.v1.estimator.tpu, or")
    assert "tensorflow.estimator.BoostedTreesClassifier is not supported: tf.estimator" in lines[4]
    assert lines[5].startswith("tensorflow.absent is not supported: neither TensorFlow 2 nor")
    assert f"{of_1}tf.compat.v1.estimator.experimental.KMeans, or" in lines[6]
    assert lines[7].startswith("`import tensorflow` gives TensorFlow 2 in this process already")
