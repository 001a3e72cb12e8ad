"""TPUEstimator on today's TensorFlow. This package does not know BERT.

It has the names in `tf.compat.v1.estimator.tpu`, and the names in `tf.compat.v1.estimator` that
programs with TPUEstimator use (the module `serving` has `tf.compat.v1.estimator.export`). Further
names are for a `model_fn` or a host call: `CrossShardOptimizer`, `cross_replica_sum`, and the event
writer `summary`.
"""

import ast
import importlib
import os

# What other packages of this project use besides upstream's names.
_OF_THIS_PROJECT = {
    "ContinuousEvalListener",
    "EvalResult",
    "Interrupts",
    "check_tensorflow",
    "checkpoints",
    "compile_report",
    "devices",
    "train_with_listener",
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


# Name -> (module, name there) of what `__init__.pyi` imports, for editors and for `__getattr__`. A
# name's module is loaded when the name is first used, because modules of this package also run
# exported programs without TensorFlow.
with open(os.path.join(os.path.dirname(__file__), "__init__.pyi"), encoding="utf-8") as _stub:
    _IMPORTS = ast.parse(_stub.read()).body
_HOMES = {alias.asname: (node.module, alias.name) for node in _IMPORTS for alias in node.names}
__all__ = sorted(_HOMES.keys() - _OF_THIS_PROJECT)


def __getattr__(name):
    if name in _ABSENT:
        raise AttributeError(f"bert_estimator.tpu has no {name}. Use {_ABSENT[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module 'bert_estimator.tpu' has no attribute {name!r}")
    home, name = _HOMES[name]
    if home == __name__:
        return importlib.import_module(f"{home}.{name}")
    return getattr(__import__(home, fromlist=[name]), name)  # of a module, or of a package


def __dir__():
    return __all__
