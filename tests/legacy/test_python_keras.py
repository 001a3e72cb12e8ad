"""Tests that `tensorflow.python.keras` is the code of tf.keras, as in TensorFlow 1."""

import json

import legacy_script
import printed
import pytest
import test_scripts_of_2

from bert_estimator.legacy import paths

TREE = "tensorflow.python.keras."
# Modules that tf_keras does not have.
ABSENT = {
    "distribute.multi_worker_training_state",
    "engine.base_preprocessing_layer_v1",
    "engine.training_v2",
    "engine.training_v2_utils",
    "layers.preprocessing.normalization_v1",
    "ops",
    "saving.saved_model_experimental",
}
# Names that tf_keras does not have; most were private in all but name.
LACKING = {
    "applications": "keras_modules_injection",
    "backend": "EagerExecutionFunction cast_variables_to_tensor freezable_variable",
    "distribute.distributed_training_utils": "is_tpu_strategy",
    "engine.base_layer_utils": "autocast_context_manager",
    "engine.base_preprocessing_layer": "Combiner CombinerPreprocessingLayer",
    "engine.training_distributed": "train_with_multi_worker",
    "engine.training_utils": (
        "assert_not_batched assert_not_shuffled convert_eager_tensors_to_numpy"
    ),
    "layers": "PeepholeLSTMCell",
    "layers.convolutional_recurrent": "ConvLSTM2DCell ConvRNN2D",
    "layers.normalization": "replace_in_base_docstring",
    "layers.recurrent": "PeepholeLSTMCell",
    "layers.recurrent_v2": "cudnn_gru cudnn_lstm",
    "mixed_precision.experimental.autocast_variable": "AutoCastDistributedVariable",
    "mixed_precision.experimental": "set_policy",
    "mixed_precision.experimental.policy": "policy_defaults_to_floatx set_policy with_input_dtype",
    "saving": "export_saved_model load_from_saved_model",
    "saving.saved_model.load": "RevivedModel RevivedSequential",
    "saving.saved_model.save": "serialize_all_attributes",
    "saving.saved_model.utils": (
        "get_training_arg get_training_arg_index remove_training_arg set_training_arg"
    ),
    "saving.saving_utils": "model_input_signature",
    "utils": "convert_all_kernels_in_model",
    "utils.conv_utils": "convert_kernel",
    "utils.data_utils": "terminate_keras_multiprocessing_pools",
    "utils.generic_utils": "object_list_uid",
    "utils.layer_utils": (
        "convert_all_kernels_in_model gather_non_trainable_weights gather_trainable_weights"
    ),
}

NAMES = """
import importlib, json, sys

seen = {}
for module, names in json.load(open(sys.argv[1]))["names"].items():
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        seen[module] = str(error)
        continue
    seen[module] = {}
    for name in names:
        try:
            seen[module][name] = getattr(imported, name).__module__
        except AttributeError as error:
            seen[module][name] = str(error)
print(json.dumps({"seen": seen}))
"""

SCRIPT = """
import sys
import numpy as np
import tensorflow as tf
from tensorflow.python.keras import backend as K
from tensorflow.python.keras.layers import BatchNormalization, Dense, Dropout

def model_fn(features, labels, mode, params):
    K.set_learning_phase(1)
    dropped = Dropout(0.5)(Dense(200, kernel_initializer="ones")(features))
    normal = BatchNormalization()(features)
    zeros = tf.to_float(tf.equal(dropped, 0.0))
    optimizer = tf.train.GradientDescentOptimizer(0.0)
    if params["use_tpu"]:
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    predictions = {"zeros": tf.reduce_mean(zeros, 1), "normal": normal}
    return tf.estimator.tpu.TPUEstimatorSpec(mode, predictions=predictions,
        loss=tf.reduce_mean(dropped),
        train_op=optimizer.minimize(tf.reduce_mean(dropped), tf.train.get_global_step()))

def input_fn(params):
    data = np.arange(8, dtype=np.float32)[:, None] + 1
    return tf.data.Dataset.from_tensors(data).repeat(2)

config = tf.estimator.tpu.RunConfig(model_dir=sys.argv[1], master=sys.argv[3])
estimator = tf.estimator.tpu.TPUEstimator(
    model_fn, config=config, use_tpu=sys.argv[2] == "True",
    train_batch_size=8, eval_batch_size=8, predict_batch_size=8, params={})
estimator.train(input_fn, steps=1)
results = list(estimator.predict(input_fn))
print(np.mean([r["zeros"] for r in results]), np.mean([r["normal"] for r in results]))
"""


def run(*arguments, **options):
    return legacy_script.run(*arguments, **options).stdout


def test_it_does_what_it_did_in_tensorflow_1(tmp_path):
    golden = json.loads(printed.KERAS_TREE_GOLDEN.read_text())["keras_tree"]
    got = printed.read(run(tmp_path, printed.KERAS_TREE.read_text()))["keras_tree"]
    assert not list(test_scripts_of_2.differences(golden, got))
    assert [dropped for _, dropped, _ in got["phases"]] == [False, True]


def test_every_name_is_of_tf_keras_or_explains_itself(tmp_path):
    text = run(tmp_path, NAMES, printed.KERAS_TREE_GOLDEN, flags=["--tf1"])
    seen = printed.read(text)["seen"]
    absent = {name.removeprefix(TREE) for name in seen if isinstance(seen[name], str)}
    assert absent == ABSENT
    assert all("is not supported: " in seen[TREE + name] for name in absent)
    lacking, found = {}, 0
    for module, homes in seen.items():
        for name, home in homes.items() if isinstance(homes, dict) else ():
            if home.startswith("tf_keras."):
                found += 1
            elif any(f"{module}.{name}".startswith(path) for path in paths.REMOVED):
                assert "is not supported: tf.python.keras." in home
            elif "is not supported: the modules of the tf_keras package stand for" in home:
                lacking.setdefault(module.removeprefix(TREE), []).append(name)
            else:
                assert home.startswith("tensorflow.python.") and ".keras." not in home, (name, home)
    assert {module: " ".join(names) for module, names in lacking.items()} == LACKING
    assert found > 600


@pytest.mark.parametrize(("use_tpu", "master"), [(False, ""), (True, ""), (True, "rehearse:2")])
@pytest.mark.usefixtures("xla_runtime")
def test_the_learning_phase_reaches_layers_of_a_model_fn(tmp_path, use_tpu, master):
    printed_line = run(tmp_path, SCRIPT, tmp_path / "model", use_tpu, master)
    zeros, mean = map(float, printed_line.splitlines()[-1].split())
    assert 0.4 < zeros < 0.6 and abs(mean) < 1e-5  # without training: no zeros, and a mean of 4.5


PACKAGE = """
import numpy as np
import keras
import keras.backend.tensorflow_backend as KTF
import tensorflow as tf
from keras import backend as K
from keras.engine.topology import InputSpec, Layer
from keras.layers.core import Dense
from keras.optimizers import Adam
from keras.preprocessing.sequence import pad_sequences
from keras.utils.np_utils import to_categorical

assert keras.layers.Dense is tf.keras.layers.Dense is Dense and issubclass(Dense, Layer)
assert KTF.set_session is K.set_session and keras.__version__.startswith("2.")
with tf.Session() as session:
    K.set_session(session)
    model = keras.models.Sequential([Dense(3, kernel_initializer="zeros", input_dim=2)])
    model.compile(Adam(lr=0.1), "mse")
    x, y = np.ones([8, 2]), to_categorical([0] * 8, 3)
    print(model.fit(x, y, epochs=2, batch_size=8, verbose=0).history["loss"])
try:
    keras.absent
except AttributeError as error:
    print(error)
try:
    import keras.legacy.interfaces
except ModuleNotFoundError as error:
    print(error)
"""

PACKAGE_OF_2 = """
import keras
import tensorflow as tf

assert keras.layers.LSTM is tf.keras.layers.LSTM is not tf.compat.v1.keras.layers.LSTM
assert keras.optimizers.Adam is tf.keras.optimizers.Adam and keras.Model is tf.keras.Model
print(keras.__version__[:2])
"""


def test_the_keras_package_of_old_scripts_is_tf_keras(tmp_path):
    loss, *errors = run(tmp_path, PACKAGE, flags=["--tf1"]).splitlines()
    # One step of Adam moves each of the nine weights by its rate, 0.1, toward the labels.
    assert json.loads(loss) == pytest.approx([1 / 3, (0.7**2 + 2 * 0.0**2) / 3], abs=0.1)
    assert errors == [
        f"keras.{name} is not supported: the modules of the tf_keras package stand for keras, "
        "and none of them has it"
        for name in ("absent", "legacy")
    ]


def test_the_keras_package_of_scripts_of_tensorflow_2(tmp_path):
    assert run(tmp_path, PACKAGE_OF_2, flags=["--tf2"]).splitlines()[-1] == "2."
