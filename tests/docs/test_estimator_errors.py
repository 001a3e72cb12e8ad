"""The errors in docs/estimator_removed.md are what TensorFlow says, and the runner mends them."""

import json
import re
import subprocess
import sys

import forked
import legacy_script
import project
import pytest

from tests.docs.test_docs import PAGES

RUNNER = "python -m bert_estimator.legacy old_script.py"
GONE = "module 'tensorflow' has no attribute "
USES = {
    "placeholder": "(tf.float32, [])",
    "Session": "()",
    "ConfigProto": "()",
    "get_variable": "('v', [])",
    "variable_scope": "('s')",
    "flags": ".FLAGS",
    "app": ".run",
    "gfile": ".GFile",
    "logging": ".info('x')",
    "python_io": ".TFRecordWriter",
    "estimator": ".RunConfig()",
    "contrib": ".tpu.TPUConfig()",
    "layers": ".dense(tf.zeros([1, 2]), 3)",
}
# An error of the table -> a script that ends with it, and that the runner runs to its end.
SCRIPTS = {
    **{f"{GONE}'{name}'": f"import tensorflow as tf\ntf.{name}{use}" for name, use in USES.items()},
    **{
        f"module 'tensorflow{path}' has no attribute '{name}'": f"{start}{name}{USES[name]}"
        for path, start in (
            (".compat.v1", "import tensorflow.compat.v1 as tf\ntf."),
            ("._api.v2.compat.v1", "import tensorflow as tf\ntf.compat.v1."),
        )
        for name in ("estimator", "contrib")
    },
    "module 'tensorflow._api.v2.train' has no attribute 'Optimizer'": (
        "import tensorflow as tf\n\n\nclass Own(tf.train.Optimizer):\n    pass"
    ),
    "cannot import name 'estimator' from 'tensorflow.compat.v1'": (
        "from tensorflow.compat.v1 import estimator\nestimator.RunConfig()"
    ),
    "cannot import name 'estimator' from 'tensorflow'": (
        "from tensorflow import estimator\nestimator.RunConfig()"
    ),
    "No module named 'tensorflow.python.estimator'": (
        "from tensorflow.python.estimator import estimator\nestimator.Estimator"
    ),
    "cannot import name 'estimator_training' from 'tensorflow.python.distribute'": (
        "import tensorflow_estimator\ntensorflow_estimator.estimator.RunConfig()"
    ),
    "No module named 'tensorflow.contrib'": (
        "import tensorflow.contrib.slim as slim\nslim.fully_connected"
    ),
    "cannot import name 'contrib' from 'tensorflow'": (
        "from tensorflow import contrib\ncontrib.tpu.TPUConfig()"
    ),
    "tf.placeholder() is not compatible with eager execution.": (
        "import tensorflow.compat.v1 as tf\ntf.placeholder(tf.float32, [])"
    ),
    "The Session graph is empty. Add operations to the graph before calling run().": (
        "import tensorflow as tf\ntf.compat.v1.Session().run(tf.constant(1.0))"
    ),
    "`dense` is not available with Keras 3.": (
        "import tensorflow.compat.v1 as tf\ntf.layers.dense(tf.zeros([1, 2]), 3)"
    ),
    **{
        f"module 'numpy' has no attribute '{name}'": f"import numpy as np\nnp.zeros([1], np.{name})"
        for name in ("bool", "int", "float", "object")
    },
    "module 'collections' has no attribute 'Mapping'": "import collections\ncollections.Mapping",
    "cannot import name 'Mapping' from 'collections'": "from collections import Mapping",
    "module 'inspect' has no attribute 'getargspec'": "import inspect\ninspect.getargspec(id)",
    "No module named 'imp'": "import imp\nimp.reload",
    "Please provide a TPU Name to connect to.": (
        "import tensorflow as tf\ntf.distribute.cluster_resolver.TPUClusterResolver()"
    ),
    "Descriptors cannot be created directly.": (
        "from google.protobuf import descriptor\n"
        "descriptor.EnumValueDescriptor(name='A', index=0, number=0, type=None, options=None)"
    ),
}
# Other versions of Python and NumPy raise these; the first one takes TensorFlow minutes.
OF_OTHERS = {
    "Please provide a TPU Name to connect to.",
    "module 'numpy' has no attribute 'bool'",
    *(["module 'inspect' has no attribute 'getargspec'"] if sys.version_info < (3, 11) else ()),
    *(["No module named 'imp'"] if sys.version_info < (3, 12) else ()),
}
# The runner does not mend it; an environment variable does.
NEEDS_VARIABLE = "Descriptors cannot be created directly."
# Errors that do not come from a script on today's TensorFlow, and where they come from.
ELSEWHERE = {
    "No module named 'tensorflow_estimator'": "the tests have the package",
    "module 'tensorflow_hub.tf_v1' has no attribute 'estimator'": "tensorflow_hub",
    "No matching distribution found for tensorflow==1.15": "pip",
    "No matching distribution found for tensorflow<2": "pip",
    "No matching distribution found for tensorflow-gpu==1.15": "pip",
    'The "tensorflow-gpu" package has been removed!': "pip",
    "tensorflow 2.15.0 requires tensorflow-estimator<2.16,>=2.15.0, but you have "
    "tensorflow-estimator 2.10.0 which is incompatible.": "pip",
    "Descriptors cannot not be created directly.": "protobuf 3.20 and 4",
    "A module that was compiled using NumPy 1.x cannot be run in NumPy 2": "TensorFlow 2.16",
    "numpy.core.umath failed to import": "TensorFlow 2.16",
    "CUBLAS_STATUS_NOT_SUPPORTED": "a GPU",
    "CUBLAS_STATUS_EXECUTION_FAILED": "a GPU",
    "Blas GEMM launch failed": "a GPU",
    "Blas xGEMM launch failed": "a GPU",
    "no kernel image is available for execution on the device": "a GPU",
    "Could not load dynamic library 'libcudart.so.10.0'": "TensorFlow 1",
    "Tensorflow 1 is unsupported in Colab.": "Colab",
    "KeyError: 'COLAB_TPU_ADDR'": "Colab",
    "Cannot find any TPU cores in the system.": "TensorFlow 1",
    "No TPU platform registered": "a TPU",
}
# Runs scripts, and writes which error ended each of them.
DRIVER = """
import json

with open("scripts.json") as reader:
    scripts = json.load(reader)
errors = {}
for error, script in scripts.items():
    try:
        exec(compile(script, "old_script.py", "exec"), {"__name__": "old_script"})
    except Exception as raised:
        errors[error] = str(raised)
with open("errors.json", "w") as writer:
    json.dump(errors, writer)
"""


def table():
    """Returns the rows of the table: the errors and the commands of each."""
    section = PAGES["docs/estimator_removed.md"].split("## Your error, and the command\n")[1]
    rows = []
    for line in section.split("\n## ")[0].splitlines():
        if not line.startswith("| `"):
            continue
        first, _, last = (cell.strip() for cell in line.strip("|").split(" | "))
        errors, commands = (
            [span for _, span in re.findall(r"(`+) ?(.+?) ?\1(?!`)", cell)]
            for cell in (first, last)
        )
        for place, error in enumerate(errors):
            if re.fullmatch(r"'\w+'", error):  # another name in the error before it
                errors[place] = re.sub(r"'\w+'$", error, errors[place - 1])
        rows.append((errors, commands))
    return rows


def test_each_error_is_tried_or_comes_from_elsewhere():
    errors = [error for own, _ in table() for error in own]
    assert sorted(errors) == sorted([*SCRIPTS, *ELSEWHERE])


def test_each_row_has_a_command():
    extras = project.read()["optional-dependencies"]
    for errors, commands in table():
        started = [c for c in commands if re.match(r"(\w+=\w+ )?python |pip install ", c)]
        assert started, errors
        for command in started:
            for names in re.findall(r"-e '\.\[([\w,]+)\]'", command):
                assert set(names.split(",")) <= set(extras), command
            assert "pip" in command or RUNNER in command, command


def write_scripts(folder, scripts):
    (folder / "scripts.json").write_text(json.dumps(scripts))


def errors_of(folder):
    return json.loads((folder / "errors.json").read_text())


RAISED = {error: script for error, script in SCRIPTS.items() if error not in OF_OTHERS}


@pytest.fixture(scope="module")
def raised(tmp_path_factory):
    """Returns what plain TensorFlow says to each script."""
    folder = tmp_path_factory.mktemp("plain")
    (folder / "driver.py").write_text(DRIVER)
    write_scripts(folder, RAISED)
    forked.run([sys.executable, "driver.py"], cwd=folder, capture_output=True, check=True)
    return errors_of(folder)


@pytest.mark.parametrize("error", RAISED)
def test_tensorflow_raises_it(raised, error):
    # Which of its names a module says depends on what has been imported before.
    said, expected = (t.replace("_api.v2.compat", "compat") for t in (raised[error], error))
    assert expected in said


MENDED = {error: script for error, script in SCRIPTS.items() if error != NEEDS_VARIABLE}


def test_the_runner_mends_them(tmp_path, monkeypatch):
    monkeypatch.setenv("TPU_NAME", "rehearse:2")
    write_scripts(tmp_path, MENDED)
    legacy_script.run(tmp_path, DRIVER, flags=["--tf1"])
    assert errors_of(tmp_path) == {}


@pytest.mark.slow  # a process for each script, as a user runs it
@pytest.mark.parametrize("error", MENDED)
def test_the_runner_runs_the_script_alone(tmp_path, monkeypatch, error):
    if "TPU" in error:
        monkeypatch.setenv("TPU_NAME", "rehearse:2")
    text = f"import tensorflow\n{MENDED[error]}\nprint('runs')"
    assert legacy_script.run(tmp_path, text).stdout.endswith("runs\n")


@pytest.mark.slow  # protobuf reads the variable while it is loaded
def test_protobuf_in_python_takes_old_code(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
    text = f"import tensorflow\n{SCRIPTS[NEEDS_VARIABLE]}\nprint('runs')"
    done = legacy_script.run(tmp_path, text, process=subprocess.run)
    assert done.stdout.endswith("runs\n")
