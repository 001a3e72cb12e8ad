"""Further import paths of TensorFlow 1: what they lead to, and what to use instead of the others.

The table in `names.py` has the modules.
"""

from bert_estimator.legacy.wheel import PACKAGE

# An import path -> the module of the table that it imports.
PATHS = {
    "tensorflow_estimator.estimator": "tensorflow.estimator",
    "tensorflow_estimator.estimator.experimental": "tensorflow.estimator.experimental",
    "tensorflow_estimator.estimator.export": "tensorflow.estimator.export",
    "tensorflow_estimator.estimator.tpu": "tensorflow.estimator.tpu",
    "tensorflow.contrib.summary.summary": "tensorflow.contrib.summary",
    "tensorflow.contrib.summary.summary_ops": "tensorflow.contrib.summary",
    "tensorflow.contrib.lookup.lookup_ops": "tensorflow.contrib.lookup",
    "tensorflow.contrib.keras": "tensorflow.keras",
    "tensorflow.contrib.keras.api.keras": "tensorflow.keras",
    "tensorflow.python.keras.api.keras": "tensorflow.keras",
    "tensorflow.python.keras.api._v1.keras": "tensorflow.keras",
    "tensorflow.contrib.learn.python.learn.datasets.base": "tensorflow.contrib.learn.datasets.base",
    **{
        f"{PACKAGE}.{module}": "tensorflow.estimator"
        for module in (
            "estimator",
            "estimator_lib",
            "exporter",
            "extenders",
            "hooks.basic_session_run_hooks",
            "hooks.session_run_hook",
            "mode_keys",
            "model_fn",
            "run_config",
            "training",
        )
    },
    **{
        f"{PACKAGE}.inputs.{module}": "tensorflow.estimator.inputs"
        for module in ("inputs", "numpy_io", "pandas_io")
    },
    f"{PACKAGE}.early_stopping": "tensorflow.estimator.experimental",
    f"{PACKAGE}.hooks.hooks": "tensorflow.estimator.experimental",
    **{
        f"{PACKAGE}.export.{module}": "tensorflow.estimator.export"
        for module in ("export", "export_lib", "export_output")
    },
    **{
        f"{package}.{module}": "tensorflow.contrib.tpu"
        for package in ("tensorflow.python.tpu", f"{PACKAGE}.tpu")
        for module in ("tpu_config", "tpu_context", "tpu_estimator")
    },
    "tensorflow.python.tpu.async_checkpoint": "tensorflow.contrib.tpu",
    "tensorflow.python.training.distribution_strategy_context": (
        "tensorflow.python.distribute.distribution_strategy_context"
    ),
}

# The same for scripts of TensorFlow 2.
PATHS_OF_2 = {
    path: target.replace("tensorflow.", "tensorflow.compat.v2.", 1)
    if path.startswith("tensorflow_estimator.estimator")
    else target
    for path, target in PATHS.items()
}


_BOOSTED_TREES = "BoostedTreesClassifier BoostedTreesEstimator BoostedTreesRegressor"

_OLD_COLUMNS = (
    "bucketized_column crossed_column embedding_column input_from_feature_columns one_hot_column "
    "real_valued_column sparse_column_with_hash_bucket sparse_column_with_keys"
)

_NOT_OF_CONTRIB_ESTIMATOR = (
    "RNNClassifier RNNEstimator SavedModelEstimator TowerOptimizer forward_features "
    "replicate_model_fn"
)

_OF_CONTRIB_LEARN = (
    "DNNClassifier DNNLinearCombinedClassifier DNNRegressor Estimator Experiment KMeansClustering "
    "LinearClassifier LinearRegressor SKCompat learn_runner"
)

_IMPORTABLE_OF_CONTRIB = (
    "all_reduce batching bayesflow bigtable boosted_trees cloud "
    "constrained_optimization copy_graph cudnn_rnn decision_trees deprecated distribute eager "
    "factorization ffmpeg fused_conv graph_editor grid_rnn hadoop hooks ignite "
    "input_pipeline integrate kafka kernel_methods kinesis labeled_tensor legacy_seq2seq "
    "libsvm linear_optimizer lite memory_stats meta_graph_transform model_pruning "
    "nearest_neighbor nn optimizer_v2 periodic_resample proto quantization quantize "
    "receptive_field recurrent reduce_slice_ops remote_fused_graph resampler rpc saved_model "
    "seq2seq session_bundle solvers sparsemax specs staging stat_summarizer tensor_forest "
    "tensorboard tensorrt testing text tfprof timeseries"
)

# Modules that can be imported, because many scripts import them and use nothing of them: using a
# name of such a module is the error.
IMPORTABLE = (
    *(f"tensorflow.contrib.{name}" for name in _IMPORTABLE_OF_CONTRIB.split()),
    *(
        f"tensorflow.{package}.{module}"
        for package in ("contrib.tpu.python.tpu", "python.tpu")
        for module in ("error_handling", "session_support", "util")
    ),
    "tensorflow.contrib.tpu.profiler",
    "tensorflow.estimator.tpu.experimental",
    "tensorflow.python.keras.estimator",
    "tensorflow.python.keras.utils.multi_gpu_utils",
    "tensorflow.python.keras.wrappers",
    "tensorflow.python.keras.wrappers.scikit_learn",
)

# The name of an object or a module -> (what it was, what to use).
REMOVED = {
    "tensorflow.contrib.distribute": (
        "distribution strategies",
        "TPUEstimator's own cores, RunConfig(master=...)",
    ),
    **{
        f"tensorflow.contrib.estimator.{name}": (
            "an addition to tf.estimator",
            "a model_fn for tf.estimator",
        )
        for name in _NOT_OF_CONTRIB_ESTIMATOR.split()
    },
    "tensorflow.contrib.eager": ("eager execution before TF 2", "tf.compat.v2"),
    "tensorflow.contrib.layers.embed_sequence": ("an embedding of ids", "tf.nn.embedding_lookup"),
    **{
        f"tensorflow.contrib.learn.{name}": (
            "a part of the estimators before tf.estimator",
            "tf.estimator",
        )
        for name in _OF_CONTRIB_LEARN.split()
    },
    **{
        f"tensorflow.contrib.layers.{name}": ("a feature column", "tf.feature_column")
        for name in _OLD_COLUMNS.split()
    },
    "tensorflow.contrib.cudnn_rnn": ("recurrent layers of cuDNN", "tf.nn.dynamic_rnn"),
    "tensorflow.examples": (
        "code and data of the tutorials",
        "a copy of the file in TensorFlow 1.15's examples/tutorials",
    ),
    "tensorflow.contrib.tensorboard": (
        "TensorBoard's projector",
        "tensorboard.plugins.projector, of the tensorboard package",
    ),
    "tensorflow.contrib.tpu.TPUDistributionStrategy": (
        "a distribution strategy",
        "tf.contrib.tpu.TPUEstimator, whose cores RunConfig(master=...) names",
    ),
    **{
        f"tensorflow.{package}.{module}": (
            "a part of TPUEstimator",
            "tf.contrib.tpu.TPUEstimator, not a copy of its code, which needs TensorFlow's own "
            "TPU runtime",
        )
        for package in ("contrib.tpu.python.tpu", "python.tpu")
        for module in ("error_handling", "session_support", "util")
    },
    **{
        f"tensorflow.tpu.experimental.{name}": (
            "the optimizer of a table on the TPU's own embedding hardware",
            "tf.nn.embedding_lookup of a variable, which the model's own optimizer updates",
        )
        for name in (
            "AdagradParameters",
            "AdamParameters",
            "FtrlParameters",
            "StochasticGradientDescentParameters",
        )
    },
    "tensorflow.contrib.tpu.profiler": ("profiles of a TPU", "tf.train.ProfilerHook"),
    "tensorflow.contrib.lite": ("TensorFlow Lite", "tf.lite"),
    "tensorflow.contrib.quantize": (
        "training for quantization",
        "the tensorflow-model-optimization package on a Keras model, without this runner",
    ),
    "tensorflow.contrib.seq2seq": (
        "decoders and attention",
        "copies of TensorFlow 1.15's contrib/seq2seq/python/ops/*.py with their imports of contrib "
        "changed; only the beam search does not work, because it needs a kernel",
    ),
    "tensorflow.contrib.tensorrt": (
        "TensorRT conversion",
        "tf.compat.v2.experimental.tensorrt, in a TensorFlow built with TensorRT; TensorFlow's own "
        "packages are built without it since 2.18",
    ),
    "tensorflow.contrib.tpu.keras_to_tpu_model": ("Keras on TPUs", "a model_fn"),
    **{
        f"tensorflow.estimator.{name}": (
            "gradient-boosted trees, which the last tensorflow-estimator does not have either",
            "the tensorflow-decision-forests package, without this runner",
        )
        for name in _BOOSTED_TREES.split()
    },
    "tensorflow.estimator.tpu.experimental": (
        "tables on the TPU's own embedding hardware",
        "tf.nn.embedding_lookup of a variable",
    ),
    "tensorflow.keras.estimator": (
        "an Estimator of a Keras model",
        "a model_fn that calls the Keras model",
    ),
    "tensorflow.python.keras.estimator": (
        "an Estimator of a Keras model",
        "a model_fn that calls the Keras model",
    ),
    **dict.fromkeys(
        (
            "tensorflow.python.keras.utils.multi_gpu_model",
            "tensorflow.python.keras.utils.multi_gpu_utils",
        ),
        (
            "a Keras model on several GPUs",
            "a model_fn and TPUEstimator's own cores, RunConfig(master=...)",
        ),
    ),
    **dict.fromkeys(
        (
            "tensorflow.python.keras.utils.HDF5Matrix",
            "tensorflow.python.keras.utils.io_utils.HDF5Matrix",
        ),
        ("a matrix in an HDF5 file", "h5py"),
    ),
    "tensorflow.python.keras.wrappers": (
        "Keras models as scikit-learn's",
        "the scikeras package",
    ),
    "tensorflow.pywrap_tensorflow": (
        "TensorFlow's C++ internals",
        "tf.train.NewCheckpointReader for checkpoints",
    ),
}
