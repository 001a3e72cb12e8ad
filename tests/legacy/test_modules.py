"""Modules that scripts import by several names, or by names that no module has."""

import json

import legacy_script
import pytest

# Imports that TensorFlow 1.15.5 refuses.
MISSING_PATHS = """
tensorflow.compat.v1.python tensorflow.compat.v1.python.framework.ops
tensorflow.compat.v1.python.keras.losses tensorflow.compat.v1.python.layers.base
tensorflow.compat.v1.python.ops.array_ops tensorflow.compat.v1.python.ops.rnn_cell
tensorflow.compat.v1.python.estimator.estimator tensorflow.compat.v1.python.util.nest
tensorflow.compat.v1.core.framework.graph_pb2 tensorflow.compat.v1.compiler.tf2xla.python.xla
tensorflow.compat.v1.tools tensorflow.compat.v1.include
tensorflow.compat.v1._api tensorflow.compat.v1._api.v2.compat.v1
tensorflow.compat.v2.python tensorflow.compat.v2.python.framework.ops
tensorflow.compat.v2.python.keras.backend tensorflow.compat.v2.core.framework.graph_pb2
tensorflow_core.compat.v1.python.framework.ops tensorflow.python.compat.v1
tensorflow.keras.python tensorflow.nn.python tensorflow.tensorflow tensorflow.python.python
tensorflow.contrib.python.framework.ops tensorflow.contrib.layers.layers.python
"""
MISSING = MISSING_PATHS.split()
# Other names of modules -> TensorFlow's own module, or another name in the runner's table.
SAME = {
    "tensorflow_core.python.framework.ops": "tensorflow.python.framework.ops",
    "tensorflow_core.core.framework.graph_pb2": "tensorflow.core.framework.graph_pb2",
    "tensorflow.contrib.slim.nets.resnet_v1": "tf_slim.nets.resnet_v1",
    "tensorflow.contrib.slim.python.slim.nets.resnet_utils": "tf_slim.nets.resnet_utils",
    "tensorflow.contrib.slim.data.dataset": "tf_slim.data.dataset",
    "tensorflow.keras.preprocessing.image": "tf_keras.api._v1.keras.preprocessing.image",
    "tensorflow.compat.v1.keras.optimizers.schedules": (
        "tf_keras.api._v1.keras.optimizers.schedules"
    ),
    "tensorflow.compat.v1.keras.layers.experimental": "tf_keras.api._v1.keras.layers.experimental",
    "tensorflow.compat.v2.keras.applications.resnet50": "tf_keras.applications.resnet50",
    "tensorflow.compat.v2.keras.optimizers.legacy": "tf_keras.optimizers.legacy",
    "tensorflow.compat.v1.gfile": "tensorflow.gfile",
    "tensorflow.compat.v1.lite.python.lite": "tensorflow.lite.python.lite",
}
SAME_OF_2 = {
    "tensorflow.keras.optimizers.legacy": "tf_keras.optimizers.legacy",
    "tensorflow.keras.applications.resnet50": "tf_keras.applications.resnet50",
    "tensorflow.compat.v1.keras.preprocessing.image": (
        "tf_keras.api._v1.keras.preprocessing.image"
    ),
}

SCRIPT = """
import collections, importlib, json, sys
import tensorflow as tf

def copies():
    objects = collections.defaultdict(dict)
    for name, module in list(sys.modules.items()):
        file = vars(module).get("__file__") or "built in"
        if file.endswith(".py"):  # one file may hold several modules that are written in C
            objects[file].setdefault(id(module), name)
    return {tuple(sorted(names.values())) for names in objects.values() if len(names) > 1}

before = copies()  # TensorFlow has some by itself
missing, same = json.load(sys.stdin)
for path in missing:
    try:
        importlib.import_module(path)
        print(path, "can be imported")
    except ModuleNotFoundError as error:
        if not str(error):
            print(path, "without a reason")
for path, other in same.items():
    if importlib.import_module(path) is not importlib.import_module(other):
        print(path, "is not", other)
for names in copies() - before:
    print("copies:", *names)
"""


@pytest.mark.parametrize("tf2", [False, True], ids=["1", "2"])
def test_no_module_is_loaded_twice(tmp_path, tf2):
    """A second copy of TensorFlow would have a default graph of its own."""
    of_2 = [path for path in MISSING if "_core" not in path and "contrib" not in path]
    table = (of_2, SAME_OF_2) if tf2 else (MISSING, SAME)
    flags = [f"--tf{2 if tf2 else 1}"]
    done = legacy_script.run(tmp_path, SCRIPT, flags=flags, input=json.dumps(table))
    assert done.stdout == ""
