"""The tree `tensorflow.python.keras`, which was the code of `tf.keras` in TensorFlow 1.

TensorFlow still has a tree of this name, for itself: neither its classes nor its learning phase are
the ones of `tf.keras`. Scripts get the tf_keras package's modules.
"""

import importlib.util
import pathlib

_TREE = "tensorflow.python.keras"
_SOURCE = "tf_keras.src"
_API = "tf_keras.api._v1.keras"

# Modules whose public names `tf.keras` has, under its own module of the same name.
_OF_API = (
    "applications backend callbacks constraints datasets initializers layers losses metrics "
    "models optimizers preprocessing regularizers utils"
)


# Packages of the tree -> their names in tf_keras.
_RENAMED = {
    "mixed_precision.experimental": "mixed_precision",
    "optimizer_v2": "optimizers.legacy",
    "premade": "premade_models",
    "saving": "saving.legacy",
}


def _found():
    """Yields (a module of the tree, the module of tf_keras.src that has its names); tf_keras is not
    imported."""
    spec = importlib.util.find_spec("tf_keras")
    if spec is None:
        return  # The runner says what to install.
    source = pathlib.Path(*spec.submodule_search_locations, "src")
    for file in source.rglob("*.py"):
        path = ".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__")
        # Most are in the same place. Below `optimizers`, the tree has classes of these names.
        if not path.startswith(("__init__", "estimator", "optimizers.")):
            yield path, path
        for package, renamed in _RENAMED.items():
            if f"{path}.".startswith(f"{renamed}."):
                yield package + path.removeprefix(renamed), path


_FOUND = sorted(_found())

# Modules of layers -> where tf_keras has the classes and functions that `tf.keras.layers` lacks.
_LAYERS = {
    "advanced_activations": [],
    "convolutional": ["convolutional.base_conv", "convolutional.base_separable_conv"],
    "convolutional_recurrent": [],
    "core": [],
    "cudnn_recurrent": ["rnn.base_cudnn_rnn"],
    "dense_attention": ["attention.base_dense_attention"],
    "embeddings": [],
    "kernelized": [],
    "local": ["locally_connected.locally_connected_utils"],
    "merge": ["merging.base_merge"],
    "noise": [],
    "normalization": ["normalization.batch_normalization"],
    "pooling": [
        *(f"pooling.base_{kind}pooling{d}d" for kind in ("", "global_") for d in (1, 2, 3)),
    ],
    "preprocessing": [],
    "recurrent": ["rnn.dropout_rnn_cell_mixin", "rnn.rnn_utils", "rnn.gru_lstm_utils"],
    "rnn_cell_wrapper_v2": ["rnn.cell_wrappers"],
    "serialization": [],
    "wrappers": ["rnn.base_wrapper"],
}

_OF_SAVING = ["hdf5_format", "model_config", "saving_utils"]

# Modules that have another place in tf_keras; "old=new" as in the table of `names.py`.
_MOVED = {
    "activations": [("saving.legacy.serialization", "**")],
    "applications": [("applications.imagenet_utils", "decode_predictions preprocess_input")],
    "distribute.distributed_training_utils": [("distribute.distributed_training_utils_v1", "**")],
    "backend.tensorflow_backend": [("backend", "**")],  # of the keras package, as is objectives
    "applications.resnet50": [("applications.resnet", "**")],
    "objectives": [("losses", "**")],
    "engine.topology": [
        ("engine.base_layer", "Layer"),
        ("engine.input_layer", "Input InputLayer"),
        ("engine.input_spec", "InputSpec"),
        ("engine.node", "Node"),
        ("engine.training", "Container=Model Network=Model Model"),
        ("utils.layer_utils", "get_source_inputs"),
    ],
    "engine": [
        ("engine.base_layer", "Layer"),
        ("engine.input_layer", "Input InputLayer"),
        ("engine.input_spec", "InputSpec"),
        ("utils.layer_utils", "get_source_inputs"),
    ],
    "engine.base_layer_utils": [("utils.generic_utils", "default")],
    "engine.base_layer": [("engine.node", "KerasHistory"), ("engine.input_spec", "InputSpec")],
    "engine.network": [("engine.training", "Network=Model"), ("engine.functional", "**")],
    "engine.training": [("engine.training_v1", "**")],
    "engine.training_arrays": [("engine.training_arrays_v1", "**")],
    "engine.training_distributed": [("engine.training_distributed_v1", "**")],
    "engine.training_eager": [("engine.training_eager_v1", "**")],
    "engine.training_generator": [("engine.training_generator_v1", "**")],
    "engine.training_utils": [("engine.training_utils_v1", "**")],
    "initializers": [("saving.legacy.serialization", "**")],
    "layers": [
        ("layers.rnn.lstm", "LSTM_v2=LSTM LSTMCell_v2=LSTMCell"),
        ("layers.rnn.gru", "GRU_v2=GRU GRUCell_v2=GRUCell"),
    ],
    "layers.convolutional": [
        ("layers", "Deconv2D=Conv2DTranspose Deconv3D=Conv3DTranspose"),
        ("layers", "Deconvolution2D=Conv2DTranspose Deconvolution3D=Conv3DTranspose"),
    ],
    "layers.legacy_rnn.rnn_cell_impl": [("layers.rnn.legacy_cells", "**")],
    "layers.legacy_rnn.rnn_cell_wrapper_impl": [("layers.rnn.legacy_cell_wrappers", "**")],
    "layers.normalization_v2": [("layers.normalization.batch_normalization", "**")],
    "layers.recurrent": [
        (
            "layers.rnn.rnn_utils",
            "_generate_zero_filled_state=generate_zero_filled_state "
            "_generate_zero_filled_state_for_cell=generate_zero_filled_state_for_cell "
            "_is_multiple_state=is_multiple_state _standardize_args=standardize_args",
        ),
    ],
    "layers.recurrent_v2": [
        ("layers.rnn.lstm", "**"),
        ("layers.rnn.gru", "**"),
        ("layers.rnn.gru_lstm_utils", "**"),
    ],
    "metrics": [
        ("engine.base_layer", "Layer"),
        ("utils.generic_utils", "to_list"),
        ("utils.tf_utils", "is_tensor_or_variable"),
    ],
    "models": [
        ("engine.base_layer", "AddMetric Layer"),
        ("engine.input_layer", "Input InputLayer"),
        ("engine.training", "Network=Model"),
        ("models.cloning", "**"),
    ],
    "optimizer_v1": [("optimizers.optimizer_v1", "**")],
    "optimizer_v2.learning_rate_schedule": [("optimizers.schedules.learning_rate_schedule", "**")],
    "optimizer_v2.utils": [("optimizers.utils", "**")],
    # In TensorFlow 1, too, these are not the classes of tf.keras.optimizers.
    "optimizers": [
        (
            "optimizers.optimizer_v1",
            "Optimizer TFOptimizer SGD RMSprop Adagrad Adadelta Adam Adamax Nadam sgd rmsprop "
            "adagrad adadelta adam adamax nadam",
        ),
    ],
    "preprocessing.image": [("utils.image_utils", "**")],
    "preprocessing.sequence": [("utils.data_utils", "**")],
    **{
        package: [
            ("saving.legacy.save", "load_model save_model"),
            *((f"saving.legacy.{module}", "**") for module in _OF_SAVING),
        ]
        for package in ("saving", "engine.saving")
    },
    "saving.saved_model.save": [
        ("saving.legacy.saved_model.save_impl", "**"),
        ("saving.legacy.saved_model.utils", "**"),
    ],
    "utils": [
        ("saving.legacy.serialization", "**"),
        ("utils.layer_utils", "print_summary"),
    ],
    "utils.tf_utils": [("utils.control_flow_util", "constant_value smart_cond")],
    "utils.generic_utils": [
        ("saving.legacy.serialization", "**"),
        ("saving.object_registration", "**"),
    ],
}


def _homes(path):
    """Returns where the names of a module of the tree are, as in the table of `names.py`."""
    package, _, module = path.partition(".")
    moved = [(f"{_SOURCE}.{home}", given) for home, given in _MOVED.get(path, ())]
    homes = [(home, given) for home, given in moved if given != "**"]
    homes += [(f"{_SOURCE}.{home}", "**") for found, home in _FOUND if found == path]
    homes += [(home, given) for home, given in moved if given == "**"]
    if package == "layers":
        homes += [(f"{_SOURCE}.layers.{home}", "**") for home in _LAYERS.get(module, ())]
        homes.append((f"{_SOURCE}.layers", "**"))
    if path in _OF_API.split() or (package == "layers" and module in _LAYERS):
        homes.append((f"{_API}.{package}", "*"))
    return homes


# A module of the tree, or one beside it that has classes of Keras -> where its names are, as in the
# table of `names.py`.
MODULES = {
    _TREE: [("bert_estimator.legacy.stand_ins.keras", "*")],
    **{
        f"{_TREE}.{path}": _homes(path)
        for path in {**dict(_FOUND), **_MOVED, **{f"layers.{module}": () for module in _LAYERS}}
    },
    **{
        f"tensorflow.python.layers.{module}": [(f"{_SOURCE}.legacy_tf_layers.{module}", "**")]
        for module in ("convolutional", "core", "normalization", "pooling")
    },
    "tensorflow.python.layers.base": [
        (f"{_SOURCE}.legacy_tf_layers.base", "**"),
        (f"{_SOURCE}.engine.input_spec", "InputSpec"),
    ],
    "tensorflow.python.layers.layers": [
        (f"{_API}.__internal__.legacy.layers", "*"),
        (f"{_SOURCE}.legacy_tf_layers.convolutional", "*"),
        (f"{_SOURCE}.engine.input_spec", "InputSpec"),
    ],
    **{
        f"tensorflow.python.ops.{module}": [
            (f"{_SOURCE}.layers.rnn.legacy_cells", "**"),
            (f"{_SOURCE}.layers.rnn.legacy_cell_wrappers", "**"),
        ]
        for module in ("rnn_cell", "rnn_cell_impl")
    },
}
