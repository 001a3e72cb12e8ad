"""`python -m bert_estimator.legacy`: a script runs as python would run it."""

import json
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import forked
import locked
import pytest

import bert_estimator
import bert_estimator.legacy
from bert_estimator.legacy import __main__ as runner

ROOT = pathlib.Path(bert_estimator.__file__).parent.parent

SCRIPT = """
import json, os, sys
import keras
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
from tensorflow.python.tpu import tpu_function as inner_tpu_function
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
        "keras": keras.layers.Dense(3).units,
        "resource": type(tf.get_variable("r", [2], use_resource=True)).__name__,
        "sources": [slim.fully_connected.__module__, tf.contrib.layers.layer_norm.__module__],
        "gfile": tensorflow.gfile.Exists(__file__),
        "listed": {"contrib", "estimator", "layers", "placeholder"} <= set(dir(tf)),
        "has": [hasattr(tf, "Session"), hasattr(tf, "no_such_name"), hasattr(tf, "__nothing__")],
        "errors": [
            error(lambda: tf.contrib.cudnn_rnn.CudnnLSTM),
            error(lambda: tf.contrib.estimator.forward_features),
            error(lambda: tf.no_such_name),
            error(lambda: tf.contrib.no_such_name),
        ],
    }
    with tf.gfile.Open(helper.path(__file__), "w") as file:
        file.write(json.dumps(seen))
    tf.logging.warning("This is said.")
    sys.exit(7)

if __name__ == "__main__":
    tf.app.run()
"""


def start(folder, script, *flags, run=forked.run):
    (folder / "script.py").write_text(script)
    return run(
        [sys.executable, "-m", "bert_estimator.legacy", str(folder / "script.py"), *flags],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "2"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


def test_without_tf_keras_the_runner_asks_for_the_extra(tmp_path, monkeypatch, capsys):
    (tmp_path / "script.py").write_text("print('It runs.')")
    # With this entry Python does not find the package.
    monkeypatch.setitem(sys.modules, "tf_keras", None)
    assert runner.main(["tpu-legacy", str(tmp_path / "script.py")]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err == (
        "python -m bert_estimator.legacy: Old scripts need the tf_keras package, in the release of "
        "TensorFlow's own version: pip install 'bert-estimator[legacy]', or in a checkout "
        "pip install -e '.[legacy]'\n"
    )
    with pytest.raises(ImportError, match="Old scripts need the tf_keras package"):
        bert_estimator.legacy.install()


def test_a_script_sees_tensorflow_1_and_its_own_flags_and_keras(tmp_path):
    """Keras has to be imported while TensorFlow is still TensorFlow 2, as in a new process."""
    (tmp_path / "helper.py").write_text("def path(file):\n    return file + '.json'\n")
    done = start(tmp_path, SCRIPT, "--word=hello", "more", run=subprocess.run)
    assert done.returncode == 7, done.stderr
    assert "deprecated" not in done.stderr
    # As in TensorFlow 1.15.5, by TensorFlow's handler and by absl's.
    assert re.findall(r"^(W).*\bThis is said\.$", done.stderr, re.M) == ["W", "W"]
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
        "number_of_shards": [True, None],
        "saver": True,
        "last_step": 0,
        "early_stopping": ["bert_estimator.tpu.early_stopping"] * 2,
        "eager": False,
        "dimension": "Dimension",
        "variable": "RefVariable",
        "keras": 3,
        "resource": "ResourceVariable",
        "sources": ["tf_slim.layers.layers", "tf_slim.layers.layers"],
        "gfile": True,
        "listed": True,
        "has": [True, False, False],
    }
    for error, words in zip(
        errors,
        [
            ("tf.contrib.cudnn_rnn was recurrent layers", "tf.nn.dynamic_rnn"),
            ("contrib.estimator.forward_features was an addition", "a model_fn for tf.estimator"),
            ("tensorflow.no_such_name", "neither"),
            ("contrib.no_such_name", "docs/legacy.md"),
        ],
        strict=True,
    ):
        assert all(word in error for word in words), error


def test_a_failing_script_fails(tmp_path):
    done = start(tmp_path, "from tensorflow.contrib.seq2seq import TrainingHelper\n")
    assert done.returncode == 1
    assert "ModuleNotFoundError: tensorflow.contrib.seq2seq.TrainingHelper is not" in done.stderr
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
for _, instead in bert_estimator.legacy.paths.REMOVED.values():
    for word in instead.split():
        path = word.split("(")[0].rstrip(":,")
        if path.startswith("tf.") and not exists(path):
            print("missing:", path)
"""


def test_an_import_of_a_removed_name_says_what_to_use(tmp_path):
    """The error is the same for every form of import, and the advised names of tf exist."""
    wanted = {
        "from tensorflow.contrib.cudnn_rnn import CudnnLSTM": (
            "contrib.cudnn_rnn",
            "tf.nn.dynamic_rnn",
        ),
        "import tensorflow.contrib.seq2seq.python.ops.helper.no_such_module": (
            "contrib.seq2seq",
            "copies of TensorFlow 1.15",
        ),
        "from tensorflow.contrib.seq2seq.python.ops.helper import TrainingHelper": (
            "contrib.seq2seq",
            "copies of TensorFlow 1.15",
        ),
        "from tensorflow.contrib.layers import embed_sequence": (
            "contrib.layers.embed_sequence",
            "tf.nn.embedding_lookup",
        ),
        "from tensorflow.contrib.learn import Experiment": (
            "contrib.learn.Experiment",
            "tf.estimator",
        ),
        "import tensorflow.pywrap_tensorflow": ("pywrap_tensorflow", "tf.train.NewCheckpointReade"),
        "from tensorflow import pywrap_tensorflow": ("pywrap_tensorflow", "tf.train.NewCheckpoint"),
        "from tensorflow.compat.v1.estimator import BoostedTreesRegressor": (
            "estimator.BoostedTreesRegressor",
            "the tensorflow-decision-forests package",
        ),
        "from tensorflow.python.tpu.error_handling import ErrorRendezvous": (
            "python.tpu.error_handling",
            "tf.contrib.tpu.TPUEstimator",
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
import tensorflow.compat.v2 as tf2
import tensorflow.contrib.distribute
import tensorflow.contrib.slim.python.slim.nets.inception_v3
import tensorflow.gfile as gfile
from tensorflow.python.feature_column.feature_column_v2 import FeatureColumn
from tensorflow.contrib import cloud, keras, quantize, seq2seq, tensorrt
from tensorflow.contrib.quantize.python import graph_matcher
from tensorflow.contrib.seq2seq.python.ops import helper as seq2seq_helper
from tensorflow.contrib.slim.python.slim.nets import resnet_utils, resnet_v1
from tensorflow.contrib.tpu.proto import compilation_result_pb2
from tensorflow.contrib.tpu.python.tpu import error_handling, tensor_tracer, tpu_feed, util
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.tpu import session_support, tpu_optimizer
from tensorflow.python.tpu.ops import tpu_ops
import tensorflow.estimator.inputs
from tensorflow.contrib.framework.python.ops import arg_scope
from tensorflow.python import pywrap_tensorflow
from tensorflow.python.training import distribution_strategy_context

@tf.contrib.framework.add_arg_scope
def f(x=1):
    return x

with arg_scope([f], x=2), tf.contrib.framework.arg_scope([f], x=3):
    assert f() == 3
hooks = [tf.train.StopAtStepHook(1)]
assert tf.contrib.learn.monitors.replace_monitors_with_hooks(hooks, None) == hooks
assert issubclass(tf.contrib.learn.RunConfig, tf.estimator.RunConfig)
assert tf.contrib.learn.ModeKeys.INFER == tf.estimator.ModeKeys.PREDICT
tf.contrib.lookup.index_table_from_tensor(mapping=tf.constant(["a"]))
tf.estimator.inputs.numpy_input_fn({"x": __import__("numpy").zeros([2])}, shuffle=False)()
assert pywrap_tensorflow.NewCheckpointReader
assert compilation_result_pb2.CompilationResultProto and resource_variable_ops._to_proto_fn
assert isinstance(tf.feature_column.numeric_column("x"), FeatureColumn)
assert distribution_strategy_context.get_strategy is tf.distribute.get_strategy
assert tpu_optimizer.CrossShardOptimizer is tf.tpu.CrossShardOptimizer
assert tpu_ops.cross_replica_sum is tf.tpu.cross_replica_sum
assert gfile.Exists is tf.gfile.Exists and keras.layers.Dense is tf.keras.layers.Dense
resolver = tf2.distribute.cluster_resolver.TPUClusterResolver
assert resolver is tf.contrib.cluster_resolver.TPUClusterResolver
assert resolver.__module__ == "bert_estimator.tpu.config"
assert tf2.estimator.Estimator is tf.estimator.Estimator
assert tf2.estimator.Estimator.__module__ == "bert_estimator.tpu.base_estimator"
assert tf2.estimator.DNNClassifier.__name__ == "DNNClassifierV2"
assert "FileWriter" in dir(tf.summary) and tf.logging.INFO == tf.compat.v1.logging.INFO
missing, newer = " is not supported: ", "is a name of TensorFlow 2, and this is TensorFlow 1: it is"
for statement, says in {
    "tf.keras.estimator": missing,
    "tf.contrib.learn.Experiment": missing,
    "tf.contrib.distribute.MirroredStrategy": missing,
    "tensorrt.create_inference_graph": missing,
    "error_handling.ErrorRendezvous": missing,
    "util.check_positive_integer": missing,
    "tf.random.no_such_name": missing,
    "tf.profiler.no_such_name": missing,
    "tf.tpu.experimental.AdamParameters": missing,
    "tf.estimator.tpu.experimental.EmbeddingConfigSpec": missing,
    "tf.random.set_seed": newer,
    "tf.summary.create_file_writer": newer,
    "from tensorflow.random import set_seed": newer,
}.items():
    try:
        exec(statement)
    except (ImportError, AttributeError) as error:
        assert says in str(error), error
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


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(capsys, flag):
    assert runner.main(["runner", flag]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("usage: ") and "--tf2" in printed.out and not printed.err


def test_a_module_of_a_package(tmp_path, monkeypatch, capsys):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("import sys\nassert sys.installed")
    (package / "part.py").write_text("WORD = 'part'")
    (package / "module.py").write_text(
        "import sys\nfrom package import part\nprint(__name__, part.WORD, sys.argv[1:])"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "installed", False, raising=False)

    def install(tf2):
        sys.installed = True

    monkeypatch.setattr(bert_estimator.legacy, "install", install)
    assert runner.main(["runner", "-m", "package.module", "--flag"]) == 0
    assert capsys.readouterr().out == "__main__ part ['--flag']\n"
    for absent in ("package.absent", "absent.module", ""):
        assert runner.main(["runner", "-m", absent]) == 2
        assert f"no module named {absent!r}" in capsys.readouterr().err
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking" / "__init__.py").write_text("import something_absent")
    with pytest.raises(ModuleNotFoundError, match="something_absent"):
        runner.main(["runner", "-m", "lacking.module"])
    (tmp_path / "refusing").mkdir()
    (tmp_path / "refusing" / "__init__.py").write_text("raise ValueError('its own')")
    with pytest.raises(ValueError, match="its own"):
        runner.main(["runner", "-m", "refusing.module"])


def in_zip(folder):
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as file:
        for part in folder.iterdir():
            file.write(part, part.name)
    return path


@pytest.mark.parametrize("packed", [lambda folder: folder, in_zip])
def test_a_directory_or_zip_file_with_a_main_module(tmp_path, monkeypatch, capsys, packed):
    """As `python DIRECTORY` runs it."""
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "part.py").write_text("WORD = 'part'")
    (folder / "__main__.py").write_text(
        "import sys, part\n"
        "print(__name__, repr(__package__), __spec__.name, part.WORD, sys.argv, sys.path[0])\n"
        "print(__file__, sys.modules['__main__'].__dict__ is globals())"
    )
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(bert_estimator.legacy, "install", lambda tf2: None)
    path = str(packed(folder))
    assert runner.main(["runner", path, "--flag"]) == 0
    argv = [path, "--flag"]
    assert capsys.readouterr().out.splitlines() == [
        f"__main__ '' __main__ part {argv} {path}",
        f"{os.path.join(path, '__main__.py')} True",
    ]
    sys.modules.pop("part")
    os.remove(folder / "__main__.py")
    if os.path.isdir(path):
        assert runner.main(["runner", path]) == 2
        assert f"{path}: can't open it: it does not hold a file __m" in capsys.readouterr().err


def test_a_script_whose_model_dir_is_in_use(tmp_path, monkeypatch, capsys):
    script = tmp_path / "script.py"
    script.write_text(
        "from bert_estimator.system import lock\nwith lock.held('run'):\n    raise AssertionError"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(bert_estimator.legacy, "install", lambda tf2: None)
    os.mkdir("run")
    with locked.by_another("run/.lock"):
        assert runner.main(["runner", "--tf1", "script.py"]) == 2
    assert capsys.readouterr().err.startswith(f"script.py: run {locked.WHO}")
