"""Names that old scripts (and tf_slim) import from TensorFlow's inner modules, and that moved.

TensorFlow moved them, or this package replaces them.
"""

from bert_estimator.legacy.names import V1

# An inner module -> a list of (new module, names), as in the table of `names.py`.
MOVED = {
    "tensorflow.python.feature_column.feature_column_v2": [
        ("tensorflow.python.feature_column.feature_column_v2_types", "FeatureColumn"),
    ],
    "tensorflow.python.tpu.ops.tpu_ops": [("bert_estimator.tpu", "cross_replica_sum")],
    "tensorflow.python.tpu.tpu_optimizer": [("bert_estimator.tpu", "CrossShardOptimizer")],
    "tensorflow.python.framework.graph_util": [
        (
            V1 + ".graph_util",
            "convert_variables_to_constants extract_sub_graph remove_training_nodes",
        ),
    ],
    "tensorflow.python.framework.graph_util_impl": [
        (V1 + ".graph_util", "convert_variables_to_constants"),
    ],
    "tensorflow.python.framework.ops": [
        (V1, "IndexedSlices Tensor register_tensor_conversion_function"),
    ],
    "tensorflow.python.saved_model.utils_impl": [
        (
            "tensorflow.python.saved_model.path_helpers",
            "get_assets_dir get_variables_dir get_variables_path",
        ),
    ],
    "tensorflow.python.ops.variable_scope": [(V1, "variable=Variable")],
    "tensorflow.python.util.tf_export": [
        ("bert_estimator.legacy.wheel", "estimator_export"),
    ],
    "tensorflow.python.ops.array_ops": [(V1, "parallel_stack stack unstack")],
    "tensorflow.python.ops.control_flow_ops": [(V1, "Assert case cond while_loop")],
    "tensorflow.python.ops.nn": [
        (
            V1 + ".nn",
            "bidirectional_dynamic_rnn dynamic_rnn raw_rnn static_bidirectional_rnn static_rnn "
            "static_state_saving_rnn",
        ),
    ],
    "tensorflow.python.ops.variables": [
        ("tensorflow.python.ops.ref_variable", "RefVariable"),
        (V1, "VariableV1=Variable"),
    ],
    **{
        f"tensorflow.python.{package}.nest": [
            (f"tensorflow.python.{package}.nest", "is_sequence=is_nested"),
        ]
        for package in ("util", "data.util")
    },
    "tensorflow.python.ops.resource_variable_ops": [
        ("tensorflow.python.ops.ref_variable", "_from_proto_fn _to_proto_fn"),
    ],
    "tensorflow.python.pywrap_tensorflow": [(V1 + ".train", "NewCheckpointReader")],
}
