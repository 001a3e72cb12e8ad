"""Further import paths of TensorFlow 1, for modules of the table in `names.py`."""

# An import path -> the module of the table that it imports.
PATHS = {
    "tensorflow_estimator.estimator": "tensorflow.estimator",
    "tensorflow_estimator.estimator.experimental": "tensorflow.estimator.experimental",
    "tensorflow_estimator.estimator.export": "tensorflow.estimator.export",
    "tensorflow_estimator.estimator.tpu": "tensorflow.estimator.tpu",
    "tensorflow.contrib.framework.python.framework": "tensorflow.contrib.framework",
    "tensorflow.contrib.framework.python.ops": "tensorflow.contrib.framework",
    "tensorflow.contrib.framework.python.ops.variables": "tensorflow.contrib.framework",
    "tensorflow.contrib.layers.python.layers": "tensorflow.contrib.layers",
    "tensorflow.contrib.layers.python.layers.layers": "tensorflow.contrib.layers",
    "tensorflow.contrib.layers.python.layers.optimizers": "tensorflow.contrib.layers",
    "tensorflow.contrib.summary.summary": "tensorflow.contrib.summary",
    "tensorflow.contrib.summary.summary_ops": "tensorflow.contrib.summary",
    "tensorflow.contrib.lookup.lookup_ops": "tensorflow.contrib.lookup",
    "tensorflow.contrib.metrics.python.ops.metric_ops": "tensorflow.contrib.metrics",
    **{
        f"tensorflow.contrib.rnn.python.ops.{module}": "tensorflow.contrib.rnn"
        for module in ("core_rnn", "core_rnn_cell", "rnn", "rnn_cell")
    },
    "tensorflow.contrib.keras": "tensorflow.keras",
    "tensorflow.contrib.keras.api.keras": "tensorflow.keras",
    "tensorflow.python.keras.api.keras": "tensorflow.keras",
    "tensorflow.python.keras.api._v1.keras": "tensorflow.keras",
    "tensorflow.contrib.slim.python.slim": "tensorflow.contrib.slim",
    "tensorflow.contrib.slim.python.slim.nets": "tensorflow.contrib.slim.nets",
    "tensorflow.contrib.image.python.ops.image_ops": "tensorflow.contrib.image",
    "tensorflow.contrib.learn.python.learn.datasets.base": "tensorflow.contrib.learn.datasets.base",
    "tensorflow.contrib.opt.python.training.lars_optimizer": "tensorflow.contrib.opt",
    "tensorflow.contrib.opt.python.training.weight_decay_optimizers": "tensorflow.contrib.opt",
    "tensorflow.contrib.training.python.training.evaluation": "tensorflow.contrib.training",
    "tensorflow.contrib.training.python.training.hparam": "tensorflow.contrib.training",
    "tensorflow.contrib.training.python.training.training": "tensorflow.contrib.training",
    "tensorflow.contrib.data.python.ops.batching": "tensorflow.contrib.data",
    "tensorflow.contrib.data.python.ops.grouping": "tensorflow.contrib.data",
    "tensorflow.contrib.data.python.ops.interleave_ops": "tensorflow.contrib.data",
    "tensorflow.contrib.data.python.ops.shuffle_ops": "tensorflow.contrib.data",
    **{
        f"{package}.{module}": "tensorflow.estimator"
        for package in ("tensorflow.python.estimator", "tensorflow_estimator.python.estimator")
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
        f"tensorflow_estimator.python.estimator.inputs.{module}": "tensorflow.estimator.inputs"
        for module in ("inputs", "numpy_io", "pandas_io")
    },
    "tensorflow.contrib.estimator.python.estimator.early_stopping": "tensorflow.contrib.estimator",
    "tensorflow_estimator.python.estimator.early_stopping": "tensorflow.estimator.experimental",
    **{
        f"{package}.hooks.hooks": "tensorflow.estimator.experimental"
        for package in ("tensorflow.python.estimator", "tensorflow_estimator.python.estimator")
    },
    **{
        f"{package}.export.{module}": "tensorflow.estimator.export"
        for package in ("tensorflow.python.estimator", "tensorflow_estimator.python.estimator")
        for module in ("export", "export_lib", "export_output")
    },
    **{
        f"{package}.{module}": "tensorflow.contrib.tpu"
        for package in (
            "tensorflow.contrib.tpu.python.tpu",
            "tensorflow.python.tpu",
            "tensorflow_estimator.python.estimator.tpu",
        )
        for module in ("tpu_config", "tpu_context", "tpu_estimator")
    },
    "tensorflow.python.tpu.async_checkpoint": "tensorflow.contrib.tpu",
    **{
        f"tensorflow.contrib.tpu.python.tpu.{module}": "tensorflow.contrib.tpu"
        for module in (
            "async_checkpoint",
            "bfloat16",
            "tpu",
            "tpu_optimizer",
            "tpu_sharding",
            "training_loop",
        )
    },
    **{
        f"tensorflow.contrib.cluster_resolver.python.training.{module}": (
            "tensorflow.contrib.cluster_resolver"
        )
        for module in ("cluster_resolver", "tpu_cluster_resolver")
    },
}

# The same for scripts of TensorFlow 2.
PATHS_OF_2 = {
    path: target.replace("tensorflow.", "tensorflow.compat.v2.", 1)
    if path.startswith("tensorflow_estimator.estimator")
    else target
    for path, target in PATHS.items()
}
