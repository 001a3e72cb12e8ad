"""`python -m bert_estimator.legacy`: a script runs as python would run it."""

import json
import os
import pathlib
import subprocess
import sys

import locked

import bert_estimator
import bert_estimator.legacy
from bert_estimator.legacy import __main__ as runner

ROOT = pathlib.Path(bert_estimator.__file__).parent.parent

SCRIPT = """
import json, os, sys
import helper
import tensorflow as tf
import tensorflow.compat.v1 as tf1
import tensorflow.contrib.slim as slim
import tensorflow.gfile
from tensorflow.contrib import tpu as contrib_tpu
from tensorflow.contrib.tpu.python.tpu import async_checkpoint
from tensorflow.contrib.tpu.python.tpu import tpu_config
from tensorflow.contrib.tpu.python.tpu import tpu_function
from tensorflow.python.estimator import estimator as estimator_lib
from tensorflow.python.framework import ops
from tensorflow.python.ops import array_ops
from tensorflow.python.tpu import tpu_function as inner_tpu_function
from tensorflow.python.tpu import tpu_optimizer
from tensorflow.python.tpu.ops import tpu_ops
from tensorflow_estimator.python.estimator.tpu import tpu_estimator
import tensorflow_estimator as tfe

tf.flags.DEFINE_string("word", None, "A word.")

def error(get):
    try:
        get()
    except AttributeError as error:
        return str(error)

def main(rest):
    seen = {
        "argv": sys.argv[1:],
        "rest": rest[1:],
        "word": tf.flags.FLAGS.word,
        "main": __name__,
        "file": os.path.basename(__file__),
        "folder": sys.path[0] == os.path.dirname(os.path.abspath(__file__)),
        "one_module": tf is tf1 is tf.compat.v1 is tf.compat.v1.compat.v1,
        "same_estimator": contrib_tpu.TPUEstimator is tpu_estimator.TPUEstimator
        is tf.estimator.tpu.TPUEstimator is tfe.estimator.tpu.TPUEstimator,
        "estimators": [tpu_config.RunConfig.__module__, estimator_lib.Estimator.__module__],
        "across_cores": [
            tf.tpu.CrossShardOptimizer.__module__,
            tf.tpu.CrossShardOptimizer is contrib_tpu.CrossShardOptimizer
            is tpu_optimizer.CrossShardOptimizer,
            tf.tpu.cross_replica_sum.__module__,
            tf.tpu.cross_replica_sum is contrib_tpu.cross_replica_sum is tpu_ops.cross_replica_sum,
            tf.tpu.bfloat16_scope is contrib_tpu.bfloat16_scope,
        ],
        "number_of_shards": [
            tpu_function.get_tpu_context is inner_tpu_function.get_tpu_context,
            tpu_function.get_tpu_context().number_of_shards,
        ],
        "saver": async_checkpoint.AsyncCheckpointSaverHook.__base__ is tf.train.CheckpointSaverHook,
        "last_step": estimator_lib._load_global_step_from_checkpoint_dir("absent"),
        "early_stopping": [
            tf.estimator.experimental.stop_if_no_decrease_hook.__module__,
            tf.contrib.estimator.stop_if_no_decrease_hook.__module__,
        ],
        "eager": tf.executing_eagerly(),
        "dimension": type(tf.placeholder(tf.float32, [2, 3]).shape[-1]).__name__,
        "variable": type(tf.get_variable("v", [2])).__name__,
        "resource": type(tf.get_variable("r", [2], use_resource=True)).__name__,
        "sources": [slim.fully_connected.__module__, tf.contrib.layers.layer_norm.__module__],
        "moved": ops.IndexedSlices is tf.IndexedSlices and array_ops.stack is tf.stack,
        "gfile": tensorflow.gfile.Exists(__file__),
        "listed": {"contrib", "estimator", "layers", "placeholder"} <= set(dir(tf)),
        "has": [hasattr(tf, "Session"), hasattr(tf, "no_such_name"), hasattr(tf, "__nothing__")],
        "errors": [
            error(lambda: tf.contrib.crf),
            error(lambda: tf.contrib.opt.ShampooOptimizer),
            error(lambda: tf.contrib.layers.embed_sequence),
            error(lambda: tf.contrib.estimator.multi_head),
            error(lambda: tf.estimator.experimental.InMemoryEvaluatorHook),
            error(lambda: tf.estimator.DNNClassifier),
            error(lambda: tf.no_such_name),
            error(lambda: tf.contrib.no_such_name),
        ],
    }
    with tf.gfile.Open(helper.path(__file__), "w") as file:
        file.write(json.dumps(seen))
    tf.logging.warning("This is said once.")
    sys.exit(7)

if __name__ == "__main__":
    tf.app.run()
"""


def start(folder, script, *flags):
    (folder / "script.py").write_text(script)
    return subprocess.run(
        [sys.executable, "-m", "bert_estimator.legacy", str(folder / "script.py"), *flags],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_a_script_sees_tensorflow_1_and_its_own_flags(tmp_path):
    (tmp_path / "helper.py").write_text("def path(file):\n    return file + '.json'\n")
    done = start(tmp_path, SCRIPT, "--word=hello", "more")
    assert done.returncode == 7, done.stderr
    assert "deprecated" not in done.stderr
    assert done.stderr.count("This is said once.") == 1
    seen = json.loads((tmp_path / "script.py.json").read_text())
    errors = seen.pop("errors")
    assert seen == {
        "argv": ["--word=hello", "more"],
        "rest": ["more"],
        "word": "hello",
        "main": "__main__",
        "file": "script.py",
        "folder": True,
        "one_module": True,
        "same_estimator": True,
        "estimators": ["bert_estimator.tpu.config", "bert_estimator.tpu.base_estimator"],
        "across_cores": [
            "bert_estimator.tpu.cross_shard_optimizer",
            True,
            "bert_estimator.tpu.replica",
            True,
            True,
        ],
        "number_of_shards": [True, None],
        "saver": True,
        "last_step": 0,
        "early_stopping": ["bert_estimator.tpu.early_stopping"] * 2,
        "eager": False,
        "dimension": "Dimension",
        "variable": "RefVariable",
        "resource": "ResourceVariable",
        "sources": ["tf_slim.layers.layers", "tf_slim.layers.layers"],
        "moved": True,
        "gfile": True,
        "listed": True,
        "has": [True, False, False],
    }
    for error, words in zip(
        errors,
        [
            ("tf.contrib.crf was conditional random fields", "contrib/crf/python/ops/crf.py"),
            ("tf.contrib.opt was further optimizers", "bert_estimator.optimization"),
            ("contrib.layers.embed_sequence", "tf.nn.embedding_lookup"),
            ("tf.contrib.estimator.multi_head was an addition", "a model_fn for tf.estimator"),
            ("InMemoryEvaluatorHook was evaluations", "tf.estimator.train_and_evaluate"),
            ("tf.estimator.DNNClassifier was a ready-made model", "model_fn"),
            ("tensorflow.no_such_name", "neither"),
            ("contrib.no_such_name", "docs/legacy.md"),
        ],
        strict=True,
    ):
        assert all(word in error for word in words), error


def test_a_failing_script_fails(tmp_path):
    done = start(tmp_path, "import tensorflow.contrib.seq2seq\n")
    assert done.returncode == 1
    assert "ModuleNotFoundError: tensorflow.contrib.seq2seq is not supported" in done.stderr
    assert "script.py" in done.stderr


IMPORTS = """
import sys
import bert_estimator.legacy.names
import tensorflow as tf

def error_of(statement):
    try:
        exec(statement)
    except ImportError as error:
        return f"{type(error).__name__}: {error}"

def exists(path):
    value = tf
    for name in path.split(".")[1:]:
        value = getattr(value, name, None)
    return value is not None

for statement in sys.argv[1:]:
    print(error_of(statement))
for _, instead in bert_estimator.legacy.removed.REMOVED.values():
    for word in instead.split():
        path = word.split("(")[0].rstrip(":,")
        if path.startswith("tf.") and not exists(path):
            print("missing:", path)
"""


def test_an_import_of_a_removed_name_says_what_to_use(tmp_path):
    """The error is the same for every form of import, and the advised names of tf exist."""
    wanted = {
        "from tensorflow.contrib import crf": ("contrib.crf", "a copy of TensorFlow 1.15's contri"),
        "from tensorflow.contrib import seq2seq": ("contrib.seq2seq", "copies of TensorFlow 1.15"),
        "from tensorflow.contrib.layers import embed_sequence": (
            "contrib.layers.embed_sequence",
            "tf.nn.embedding_lookup",
        ),
        "import tensorflow.contrib.opt as opt": ("contrib.opt", "bert_estimator.optimization"),
        "import tensorflow.contrib.image": ("contrib.image", "tf.raw_ops.ImageProjectiveTransf"),
        "from tensorflow.estimator import DNNClassifier": ("estimator.DNNClassifier", "a model_fn"),
        "import tensorflow.pywrap_tensorflow": ("pywrap_tensorflow", "tf.train.NewCheckpointReade"),
        "from tensorflow import pywrap_tensorflow": ("pywrap_tensorflow", "tf.train.NewCheckpoint"),
        "from tensorflow.compat.v1.estimator import MultiClassHead": (
            "estimator.MultiClassHead",
            "a model_fn",
        ),
    }
    done = start(tmp_path, IMPORTS, *wanted)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(wanted), lines[len(wanted) :]
    for line, (name, instead) in zip(lines, wanted.values(), strict=True):
        assert line.startswith("ModuleNotFoundError: tensorflow.")
        assert f" is not supported: tf.{name} was " in line
        assert f". Use {instead}" in line


NAMES = """
import tensorflow as tf
import tensorflow.estimator.inputs
from tensorflow.contrib.framework.python.ops import arg_scope
from tensorflow.python import pywrap_tensorflow
from tensorflow.python.framework import graph_util

@tf.contrib.framework.add_arg_scope
def f(x=1):
    return x

with arg_scope([f], x=2), tf.contrib.framework.arg_scope([f], x=3):
    assert f() == 3
tf.contrib.lookup.index_table_from_tensor(mapping=tf.constant(["a"]))
tf.estimator.inputs.numpy_input_fn({"x": __import__("numpy").zeros([2])}, shuffle=False)()
assert pywrap_tensorflow.NewCheckpointReader and graph_util.convert_variables_to_constants
for statement in (
    "import tensorflow_estimator.python.estimator.canned",
    "from tensorflow.python.estimator.canned import head",
    "tf.keras.estimator",
    "tf.estimator.add_metrics",
):
    try:
        exec(statement)
    except (ImportError, AttributeError) as error:
        assert " is not supported: " in str(error), error
    else:
        raise AssertionError(statement)
print("all")
"""


def test_names_that_old_scripts_import(tmp_path):
    done = start(tmp_path, NAMES)
    assert done.stdout.splitlines()[-1:] == ["all"], done.stderr


def test_no_script(tmp_path, capsys):
    assert runner.main(["runner"]) == 2
    assert "usage:" in capsys.readouterr().err
    assert runner.main(["runner", str(tmp_path / "absent.py")]) == 2
    assert "absent.py" in capsys.readouterr().err


def test_a_script_whose_model_dir_is_in_use(tmp_path, monkeypatch, capsys):
    script = tmp_path / "script.py"
    script.write_text(
        "from bert_estimator.tpu import lock\nwith lock.held('run'):\n    raise AssertionError"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(bert_estimator.legacy, "install", lambda: None)
    os.mkdir("run")
    with locked.by_another("run/.lock"):
        assert runner.main(["runner", "script.py"]) == 2
    assert capsys.readouterr().err.startswith(f"script.py: run {locked.WHO}")
