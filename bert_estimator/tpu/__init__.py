"""TPUEstimator on today's TensorFlow. This package does not know BERT.

It has the names in `tf.compat.v1.estimator.tpu`, and the names in `tf.compat.v1.estimator` that
programs with TPUEstimator use (the module `serving` has `tf.compat.v1.estimator.export`). Further
names are for a `model_fn` or a host call: `CrossShardOptimizer`, `cross_replica_sum`, and the event
writer `summary`.
"""

import importlib

# A name's module is loaded when the name is first used, because modules of this package also run
# exported programs without TensorFlow.
_MODULE_OF = {
    "BestExporter": "train_eval.exporters",
    "CrossShardOptimizer": "replicas.replica",
    "Estimator": "base_estimator",
    "EstimatorSpec": "spec",
    "EvalSpec": "train_eval.train_and_evaluate",
    "ExportSavedModelApiVersion": "serving",
    "Exporter": "train_eval.exporters",
    "FinalExporter": "train_eval.exporters",
    "InMemoryEvaluatorHook": "train_eval.train_and_evaluate",
    "InputPipelineConfig": "config",
    "LatestExporter": "train_eval.exporters",
    "LogListener": "verbs.progress",
    "ModeKeys": "spec",
    "DataEndedError": "errors",
    "NanLossDuringTrainingError": "errors",
    "NonFiniteWeightsError": "errors",
    "RunConfig": "config",
    "TPUClusterResolver": "config",
    "TPUConfig": "config",
    "TPUContext": "call",
    "TPUEstimator": "estimator",
    "TPUEstimatorSpec": "spec",
    "TrainSpec": "train_eval.train_and_evaluate",
    "WarmStartSettings": "warm_start",
    "cross_replica_sum": "replicas.replica",
    "num_replicas": "replicas.replica",
    "outside_compilation": "replicas.replica",
    "replica_id": "replicas.replica",
    "update_shards": "replicas.replica",
    "train_and_evaluate": "train_eval.train_and_evaluate",
}
_MODULES = ("early_stopping", "serving", "summary")
# What other packages of this project use besides.
_OF_THIS_PROJECT = {
    "ContinuousEvalListener": "train_eval.train_and_evaluate",
    "EvalResult": "train_eval.train_and_evaluate",
    "Interrupts": "verbs.interrupts",
    "check_tensorflow": "step.xla.step_graph",
    "train_with_listener": "train_eval.train_and_evaluate",
}
_MODULES_OF_THIS_PROJECT = {
    "checkpoints": "verbs.checkpoints",
    "compile_report": "program.compile_report",
    "devices": "program.devices",
}

# Names of upstream that are not given, and what to use.
_ABSENT = {
    "BatchConfig": "export_saved_model's own graph, which takes batches of any size",
    "EmbeddingConfigSpec": "tf.nn.embedding_lookup: tables on the TPU's own embedding hardware are "
    "operations of TensorFlow's own TPU runtime",
    "add_metrics": "eval_metrics of the model_fn",
    "export_estimator_savedmodel": "TPUEstimator.export_saved_model",
    "inference_on_tpu": "TPUEstimator.predict",
    "model_fn_inference_on_tpu": "TPUEstimator.predict",
    "model_to_estimator": "a model_fn",
}

__all__ = sorted([*_MODULE_OF, *_MODULES])


def __getattr__(name):
    if name in _MODULES or name in _MODULES_OF_THIS_PROJECT:
        module = _MODULES_OF_THIS_PROJECT.get(name, name)
        return importlib.import_module(f"bert_estimator.tpu.{module}")
    if name in _ABSENT:
        raise AttributeError(f"bert_estimator.tpu has no {name}. Use {_ABSENT[name]}")
    home = _MODULE_OF.get(name) or _OF_THIS_PROJECT.get(name)
    if home is None:
        raise AttributeError(f"module 'bert_estimator.tpu' has no attribute {name!r}")
    module = importlib.import_module(f"bert_estimator.tpu.{home}")
    return getattr(module, name)


def __dir__():
    return __all__
