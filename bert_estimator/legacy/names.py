"""A table of the names of TensorFlow 1 that moved, and of their new modules.

All other names come from `tensorflow.compat.v1`.
"""

from bert_estimator.legacy import python_keras

# The modules behind tensorflow.compat.v1 and tensorflow.compat.v2, whose own names are mapped too.
V1 = "tensorflow._api.v2.compat.v1"
V2 = "tensorflow._api.v2.compat.v2"

_TPU_ESTIMATOR = (
    "bert_estimator.tpu",
    "InputPipelineConfig RunConfig TPUConfig TPUEstimator TPUEstimatorSpec",
)
_REPLICATED = (
    "bert_estimator.tpu.replicas.replicated",
    "batch_parallel initialize_system replicate rewrite shard shutdown_system",
)
_ACROSS_CORES = ("bert_estimator.tpu", "CrossShardOptimizer cross_replica_sum outside_compilation")
_IN_MEMORY = ("bert_estimator.tpu", "InMemoryEvaluatorHook")
_EARLY_STOPPING = (
    "bert_estimator.tpu.early_stopping",
    "make_early_stopping_hook make_stop_at_checkpoint_step_hook stop_if_higher_hook "
    "stop_if_lower_hook stop_if_no_decrease_hook stop_if_no_increase_hook",
)

# tf.layers, the RNN cells and tf.keras are one hierarchy of classes, as in TF1.
_KERAS_LEGACY = "tf_keras.api._v1.keras.__internal__.legacy"
_RNN_CELLS = (
    _KERAS_LEGACY + ".rnn_cell",
    "BasicLSTMCell BasicRNNCell DeviceWrapper DropoutWrapper GRUCell LSTMCell LSTMStateTuple "
    "MultiRNNCell RNNCell ResidualWrapper",
)
# tf.contrib.rnn has this base class of the cells with weights, too.
_BASE_CELL = ("tf_keras.src.layers.rnn.legacy_cells", "LayerRNNCell")
_WHEEL = "tensorflow_estimator.python.estimator"
_FEATURE_LAYERS = "tf_keras.src.feature_column"


def _canned(suffix=""):
    """Returns where the canned estimators are; TensorFlow 2's have the suffix V2 there."""
    kinds = ["Classifier", "Estimator", "Regressor"]
    modules = {
        "baseline": "Baseline",
        "dnn": "DNN",
        "dnn_linear_combined": "DNNLinearCombined",
        "linear": "Linear",
    }
    return [
        (
            f"{_WHEEL}.canned.{module}",
            " ".join(f"{name}{kind}={name}{kind}{suffix}" for kind in kinds),
        )
        for module, name in modules.items()
    ]


def _parse_specs(suffix=""):
    kinds = ("classifier_parse_example_spec", "regressor_parse_example_spec")
    return f"{_WHEEL}.canned.parsing_utils", " ".join(f"{kind}={kind}{suffix}" for kind in kinds)


_HEADS = [
    (f"{_WHEEL}.head.base_head", "Head"),
    (f"{_WHEEL}.head.binary_class_head", "BinaryClassHead"),
    (f"{_WHEEL}.head.multi_class_head", "MultiClassHead"),
    (f"{_WHEEL}.head.multi_head", "MultiHead"),
    (f"{_WHEEL}.head.multi_label_head", "MultiLabelHead"),
    (
        f"{_WHEEL}.head.regression_head",
        "LogisticRegressionHead PoissonRegressionHead RegressionHead",
    ),
]
_SUPERVISED_INPUT = ("bert_estimator.tpu.serving", "build_raw_supervised_input_receiver_fn")

# tf.estimator of TensorFlow 1 and 2.
_ESTIMATOR = [
    ("bert_estimator.tpu.base_config", "RunConfig"),
    (
        "bert_estimator.legacy.stand_ins.contrib_estimator",
        "_load_global_step_from_checkpoint_dir=load_global_step_from_checkpoint_dir",
    ),
    (
        "bert_estimator.tpu",
        "BestExporter Estimator EstimatorSpec EvalSpec Exporter FinalExporter LatestExporter "
        "ModeKeys NanLossDuringTrainingError TrainSpec WarmStartSettings train_and_evaluate",
    ),
    (
        "bert_estimator.legacy.stand_ins.contrib_estimator",
        "add_metrics call_logit_fn AVERAGE_LOSS_METRIC_KEY LOSS_METRIC_KEY "
        "_canned_estimator_api_gauge=API_GAUGE",
    ),
    (
        "bert_estimator.legacy.stand_ins.training",
        "TaskType _EvalStatus=EvalStatus _TrainingExecutor=TrainingExecutor "
        "_assert_eval_spec=check_eval_spec",
    ),
    (
        "bert_estimator.tpu",
        "_ContinuousEvalListener=ContinuousEvalListener _EvalResult=EvalResult",
    ),
    ("bert_estimator.tpu.train_eval.exporters", "_SavedModelExporter"),
    (
        "bert_estimator.tpu.base_estimator",
        "maybe_overwrite_model_dir_and_session_config=with_model_dir",
    ),
    *_HEADS,
    (
        V1 + ".train",
        "CheckpointSaverHook CheckpointSaverListener FeedFnHook FinalOpsHook GlobalStepWaiterHook "
        "LoggingTensorHook NanTensorHook ProfilerHook SecondOrStepTimer SessionRunArgs "
        "SessionRunContext SessionRunHook SessionRunValues StepCounterHook StopAtStepHook "
        "SummarySaverHook VocabInfo",
    ),
]
_EXPERIMENTAL = [
    _IN_MEMORY,
    _EARLY_STOPPING,
    _SUPERVISED_INPUT,
    (f"{_WHEEL}.canned.linear", "LinearSDCA"),
    (f"{_WHEEL}.canned.rnn", "RNNClassifier RNNEstimator"),
    ("bert_estimator.legacy.stand_ins.contrib_estimator", "call_logit_fn"),
]
_EXPERIMENTAL_OF_1 = [
    (f"{_WHEEL}.canned.dnn", "dnn_logit_fn_builder"),
    (f"{_WHEEL}.canned.kmeans", "KMeans=KMeansClustering"),
    (f"{_WHEEL}.canned.linear", "linear_logit_fn_builder"),
]
_EXPORT = [
    (
        "bert_estimator.tpu.serving",
        "ClassificationOutput EvalOutput ExportOutput PredictOutput RegressionOutput "
        "ServingInputReceiver SupervisedInputReceiver TensorServingInputReceiver "
        "UnsupervisedInputReceiver build_parsing_serving_input_receiver_fn "
        "build_raw_serving_input_receiver_fn build_raw_supervised_input_receiver_fn "
        "build_supervised_input_receiver_fn_from_input_fn",
    ),
]

_TPU_MODULES = "device_assignment tensor_tracer topology tpu_feed tpu_function tpu_system_metadata"

# A module of TF1 -> a list of (new module, names); a name comes from the first new module that has
# it. "*" means all public names, "**" those with an underscore, too. "old=new" means that the name
# `old` is now `new`.
MODULES = {
    "tensorflow": [(V1, "* __internal__ __version__ __git_version__ __compiler_version__")],
    "tensorflow.compat": [(V1 + ".compat", "*")],
    "tensorflow.compat.v2": [(V2, "* __internal__ __operators__ __version__")],
    "tensorflow.compat.v2.summary": [
        # These functions write the same events without the tensorboard package.
        ("bert_estimator.tpu.summary", "scalar histogram text"),
        (V2 + ".summary", "*"),
    ],
    "tensorflow.compat.v2.keras": [("tf_keras", "* __internal__ __version__")],
    **{
        f"tensorflow.compat.v2.{module}": [(f"tf_keras.{module}", "*")]
        for module in ("initializers", "losses", "metrics", "optimizers")
    },
    "tensorflow.compat.v2.distribute": [(V2 + ".distribute", "*")],
    "tensorflow.compat.v2.distribute.cluster_resolver": [
        ("bert_estimator.tpu.config", "TPUClusterResolver"),
        (V2 + ".distribute.cluster_resolver", "*"),
    ],
    "tensorflow.nn": [(V1 + ".nn", "*")],
    "tensorflow.nn.rnn_cell": [_RNN_CELLS],
    "tensorflow.layers": [(_KERAS_LEGACY + ".layers", "*")],
    "tensorflow.keras": [
        ("bert_estimator.legacy.stand_ins.keras", "*"),
        ("tf_keras", "__version__"),
    ],
    "tensorflow.estimator": [
        *_ESTIMATOR,
        ("bert_estimator.tpu", "EstimatorV2=Estimator _TPUEstimatorSpec=TPUEstimatorSpec"),
        *_canned(),
        _parse_specs(),
    ],
    "tensorflow.estimator.experimental": [*_EXPERIMENTAL, *_EXPERIMENTAL_OF_1],
    "tensorflow.estimator.export": _EXPORT,
    "tensorflow.compat.v2.estimator": [*_ESTIMATOR, *_canned("V2"), _parse_specs("_v2")],
    "tensorflow.compat.v2.estimator.experimental": _EXPERIMENTAL,
    "tensorflow.compat.v2.estimator.export": _EXPORT,
    "tensorflow.estimator.inputs": [
        ("bert_estimator.legacy.stand_ins.data", "numpy_input_fn pandas_input_fn"),
    ],
    "tensorflow.estimator.tpu": [_TPU_ESTIMATOR],
    "tensorflow.tpu": [_ACROSS_CORES, _REPLICATED, (V1 + ".tpu", "*")],
    "tensorflow.distribute": [(V1 + ".distribute", "*")],
    "tensorflow.distribute.cluster_resolver": [
        ("bert_estimator.tpu.config", "TPUClusterResolver"),
        (V1 + ".distribute.cluster_resolver", "*"),
    ],
    "tensorflow.contrib": [],
    "tensorflow.contrib.tpu": [
        _TPU_ESTIMATOR,
        _ACROSS_CORES,
        _REPLICATED,
        ("bert_estimator.tpu", "ExportSavedModelApiVersion TPUContext"),
        ("bert_estimator.legacy.stand_ins.contrib_estimator", "AsyncCheckpointSaverHook"),
        (V1 + ".tpu", "bfloat16_scope core"),
        ("tensorflow.python.tpu.training_loop", "repeat while_loop"),
        (V1 + ".tpu.experimental", "DeviceAssignment Topology"),
    ],
    "tensorflow.contrib.tpu.python.ops.tpu_ops": [
        ("bert_estimator.tpu", "cross_replica_sum"),
        ("tensorflow.python.tpu.ops.tpu_ops", "all_to_all collective_permute"),
    ],
    **{
        f"tensorflow.contrib.tpu.python.tpu.{module}": [(f"tensorflow.python.tpu.{module}", "*")]
        for module in _TPU_MODULES.split()
    },
    "tensorflow.contrib.autograph": [
        (V1 + ".autograph", "*"),
        ("tensorflow.python.autograph", "operators utils"),
        ("tensorflow.python.autograph.core.converter", "ConversionOptions Feature"),
        ("tensorflow.python.autograph.impl.api", "*"),
        ("tensorflow.python.autograph.lang.directives", "*"),
        ("tensorflow.python.autograph.lang.special_functions", "stack"),
    ],
    "tensorflow.contrib.checkpoint": [
        (V1 + ".train", "CheckpointManager"),
        (
            "tensorflow.core.protobuf.trackable_object_graph_pb2",
            "CheckpointableObjectGraph=TrackableObjectGraph",
        ),
        (
            "tensorflow.python.checkpoint.checkpoint",
            "capture_dependencies list_objects object_metadata",
        ),
        ("tensorflow.python.trackable.autotrackable", "Checkpointable=AutoTrackable"),
        ("tensorflow.python.trackable.base", "CheckpointableBase=Trackable"),
        ("tensorflow.python.trackable.data_structures", "List Mapping NoDependency"),
        ("tensorflow.python.trackable.python_state", "PythonStateWrapper=PythonState"),
    ],
    "tensorflow.contrib.cluster_resolver": [
        ("bert_estimator.tpu.config", "TPUClusterResolver"),
        (
            V1 + ".distribute.cluster_resolver",
            "ClusterResolver GCEClusterResolver KubernetesClusterResolver SimpleClusterResolver "
            "SlurmClusterResolver TFConfigClusterResolver UnionClusterResolver=UnionResolver",
        ),
    ],
    "tensorflow.contrib.compiler.jit": [
        (V1 + ".xla.experimental", "experimental_jit_scope=jit_scope"),
    ],
    "tensorflow.contrib.compiler.xla": [(V1 + ".xla.experimental", "compile")],
    "tensorflow.contrib.crf": [
        (
            "bert_estimator.legacy.stand_ins.crf",
            "CrfDecodeBackwardRnnCell CrfDecodeForwardRnnCell CrfForwardRnnCell crf_binary_score "
            "crf_decode crf_log_likelihood crf_log_norm crf_multitag_sequence_score "
            "crf_sequence_score crf_unary_score viterbi_decode",
        ),
    ],
    "tensorflow.contrib.data": [
        (
            "bert_estimator.legacy.stand_ins.data",
            "batch_and_drop_remainder padded_batch_and_drop_remainder sloppy_interleave",
        ),
        (V1 + ".data.experimental", "*"),
    ],
    "tensorflow.contrib.distributions": [(V1 + ".distributions", "*")],
    "tensorflow.contrib.estimator": [
        _IN_MEMORY,
        _EARLY_STOPPING,
        _SUPERVISED_INPUT,
        (
            "bert_estimator.legacy.stand_ins.contrib_estimator",
            "add_metrics binary_classification_head call_logit_fn clip_gradients_by_norm "
            "logistic_regression_head multi_class_head multi_head multi_label_head "
            "poisson_regression_head regression_head",
        ),
        (f"{_WHEEL}.canned.dnn", "DNNEstimator dnn_logit_fn_builder"),
        (f"{_WHEEL}.canned.dnn_linear_combined", "DNNLinearCombinedEstimator"),
        (f"{_WHEEL}.canned.linear", "LinearEstimator linear_logit_fn_builder"),
    ],
    "tensorflow.contrib.feature_column": [
        ("bert_estimator.legacy.stand_ins.feature_columns", "sequence_input_layer"),
        (
            V1 + ".feature_column",
            "sequence_categorical_column_with_hash_bucket "
            "sequence_categorical_column_with_identity "
            "sequence_categorical_column_with_vocabulary_file "
            "sequence_categorical_column_with_vocabulary_list sequence_numeric_column",
        ),
    ],
    "tensorflow.contrib.framework": [
        ("bert_estimator.legacy.stand_ins.shapes", "with_same_shape with_shape"),
        ("tensorflow.python.util", "nest"),  # with the names that tf.nest lacks
        (V1, "TensorSpec argsort convert_to_tensor_or_sparse_tensor is_tensor sort"),
        (V1 + ".train", "get_global_step get_or_create_global_step"),
        (
            "bert_estimator.legacy.stand_ins.training",
            "init_from_checkpoint list_variables load_checkpoint load_variable py_func",
        ),
        ("tensorflow.python.framework.ops", "get_name_scope"),
        ("tensorflow.python.framework.smart_cond", "smart_cond smart_constant_value"),
        (
            "tensorflow.python.util.deprecation",
            "deprecated deprecated_arg_values deprecated_args",
        ),
        # tf_slim.ops has a module with the name arg_scope.
        ("tf_slim", "arg_scope"),
        ("tf_slim.ops", "*"),
        ("tf_slim", "*"),
    ],
    "tensorflow.contrib.image": [
        (
            "bert_estimator.legacy.stand_ins.image",
            "angles_to_projective_transforms compose_transforms flat_transforms_to_matrices "
            "matrices_to_flat_transforms rotate transform translate "
            "translations_to_projective_transforms",
        ),
    ],
    "tensorflow.contrib.layers": [
        ("tf_slim.layers", "*"),
        ("tf_slim.layers.optimizers", "OPTIMIZER_CLS_NAMES OPTIMIZER_SUMMARIES"),
        (V1 + ".nn", "safe_embedding_lookup_sparse"),
        ("tf_slim", "*"),
    ],
    "tensorflow.contrib.learn": [
        (
            "bert_estimator.legacy.stand_ins.contrib_estimator",
            "ModeKeys RunConfig=LearnRunConfig",
        ),
    ],
    "tensorflow.contrib.learn.monitors": [
        ("bert_estimator.legacy.stand_ins.contrib_estimator", "replace_monitors_with_hooks"),
    ],
    "tensorflow.contrib.learn.datasets.base": [
        (
            "bert_estimator.legacy.stand_ins.data",
            "Dataset Datasets load_csv_with_header load_csv_without_header maybe_download",
        ),
    ],
    "tensorflow.contrib.lookup": [
        (
            "bert_estimator.legacy.stand_ins.data",
            "HashTable MutableDenseHashTable MutableHashTable index_table_from_tensor "
            "index_to_string_table_from_tensor",
        ),
        ("tensorflow.python.ops.lookup_ops", "*"),
    ],
    "tensorflow.contrib.losses": [("tf_slim.losses", "*")],
    "tensorflow.contrib.metrics": [
        (V1, "confusion_matrix"),
        (V1 + ".sets", "*"),
        ("tf_slim.metrics", "*"),
    ],
    "tensorflow.contrib.mixed_precision": [
        (
            "bert_estimator.legacy.stand_ins.optimizers",
            "ExponentialUpdateLossScaleManager FixedLossScaleManager LossScaleManager "
            "LossScaleOptimizer",
        ),
    ],
    "tensorflow.contrib.opt": [
        (
            "bert_estimator.legacy.stand_ins.optimizers",
            "AdamWOptimizer DecoupledWeightDecayExtension LARSOptimizer LazyAdamOptimizer "
            "MomentumWOptimizer MovingAverageOptimizer extend_with_decoupled_weight_decay",
        ),
    ],
    "tensorflow.contrib.rnn": [
        _RNN_CELLS,
        _BASE_CELL,
        (
            "bert_estimator.legacy.stand_ins.rnn",
            "FusedRNNCell FusedRNNCellAdaptor GRUBlockCell GRUBlockCellV2 LSTMBlockCell "
            "LSTMBlockFusedCell LSTMBlockWrapper LayerNormBasicLSTMCell TimeReversedFusedRNN "
            "_linear=linear stack_bidirectional_dynamic_rnn stack_bidirectional_rnn",
        ),
        (V1 + ".nn", "static_bidirectional_rnn static_rnn static_state_saving_rnn"),
        ("tensorflow.python.ops.rnn", "transpose_batch_time=_transpose_batch_time"),
    ],
    "tensorflow.contrib.signal": [(V1 + ".signal", "*")],
    "tensorflow.contrib.slim": [("tf_slim", "*")],
    "tensorflow.contrib.slim.nets": [("tf_slim.nets", "*")],
    "tensorflow.contrib.stateless": [
        (
            V1 + ".random",
            "stateless_multinomial stateless_random_normal=stateless_normal "
            "stateless_random_uniform=stateless_uniform stateless_truncated_normal",
        ),
    ],
    "tensorflow.contrib.summary": [
        (
            "tensorflow.python.ops.summary_ops_v2",
            "* all_summary_ops=all_v2_summary_ops graph=graph_v1",
        ),
    ],
    "tensorflow.contrib.predictor": [
        ("bert_estimator.legacy.stand_ins.saved_predictor", "from_estimator from_saved_model"),
    ],
    "tensorflow.contrib.training": [
        ("bert_estimator.legacy.stand_ins.hparams", "HParams"),
        (V1 + ".train", "checkpoints_iterator"),
        (
            "tf_slim.training.evaluation",
            "StopAfterNEvalsHook SummaryAtEndHook evaluate_once evaluate_repeatedly "
            "get_or_create_eval_step wait_for_new_checkpoint",
        ),
        ("tf_slim.training.training", "*"),
    ],
    "tensorflow.contrib.util": [
        (V1, "make_ndarray make_tensor_proto"),
        ("tensorflow.python.framework.tensor_util", "constant_value"),
    ],
    "tensorflow_estimator": [],
    "tensorflow_estimator.python.estimator.estimator_export": [
        ("bert_estimator.legacy.wheel", "estimator_export"),
    ],
    **{
        f"tensorflow.python.feature_column.{module}": [(f"{_FEATURE_LAYERS}.{module}", "**")]
        for module in ("dense_features", "dense_features_v2")
    },
    "tensorflow.python.distribute.distribution_strategy_context": [
        ("tensorflow.python.distribute.distribute_lib", "*"),
    ],
    "tensorflow.python.distribute.estimator_training": [
        ("bert_estimator.legacy.stand_ins.training", "should_run_distribute_coordinator"),
    ],
    "tensorflow.python.eager.profiler": [
        (
            "tensorflow.python.profiler.profiler_v2",
            "Profiler=Profile start_profiler_server=start_server",
        ),
    ],
    "tensorflow.python.training.training_ops": [("tensorflow.python.ops.gen_training_ops", "*")],
    **python_keras.MODULES,
}

# An inner module of TensorFlow -> names that old scripts (and tf_slim) import from it, which have
# another name or place today, or which this package replaces; in the form of `MODULES`. A name that
# moved within its package, or to a module of the same name, is found without an entry.
MOVED = {
    "tensorflow.python.feature_column.feature_column_lib": [
        (f"{_FEATURE_LAYERS}.dense_features", "DenseFeatures"),
        (f"{_FEATURE_LAYERS}.sequence_feature_column", "SequenceFeatures"),
        (f"{_WHEEL}.canned.linear", "LinearModel"),
    ],
    "tensorflow.python.feature_column.feature_column_v2": [
        (f"{_WHEEL}.canned.linear", "LinearModel"),
    ],
    "tensorflow.python.feature_column.sequence_feature_column": [
        (f"{_FEATURE_LAYERS}.sequence_feature_column", "SequenceFeatures"),
    ],
    "tensorflow.python.tpu.ops.tpu_ops": [("bert_estimator.tpu", "cross_replica_sum")],
    "tensorflow.python.tpu.tpu_optimizer": [("bert_estimator.tpu", "CrossShardOptimizer")],
    "tensorflow.python.framework.common_shapes": [
        (
            "bert_estimator.legacy.stand_ins.shapes",
            "has_fully_defined_shape no_outputs rank scalar_shape unchanged_shape "
            "unchanged_shape_with_rank unchanged_shape_with_rank_at_least "
            "unchanged_shape_with_rank_at_most unknown_shape",
        ),
    ],
    "tensorflow.python.framework.ops": [(V1, "NoGradient NotDifferentiable")],
    "tensorflow.python.framework.tensor_shape": [
        ("bert_estimator.legacy.stand_ins.shapes", "matrix=shape scalar=shape vector=shape"),
    ],
    "tensorflow.python.ops.nn": [("tensorflow.python.ops", "rnn_cell")],
    "tensorflow.python.ops.variable_scope": [(V1, "variable=Variable")],
    # TensorFlow 1.13 said Checkpointable.
    "tensorflow.python.checkpoint.checkpoint": [
        ("tensorflow.python.checkpoint.checkpoint", "CheckpointableSaver=TrackableSaver"),
    ],
    "tensorflow.python.trackable.autotrackable": [
        (
            "tensorflow.python.trackable.autotrackable",
            "AutoCheckpointable=AutoTrackable Checkpointable=AutoTrackable",
        ),
        ("tensorflow.python.trackable.asset", "TrackableAsset=Asset"),
    ],
    "tensorflow.python.trackable.base": [
        ("tensorflow.python.trackable.base", "Checkpointable=Trackable"),
    ],
    "tensorflow.python.util.tf_export": [("bert_estimator.legacy.wheel", "estimator_export")],
    **{
        f"tensorflow.python.{package}.nest": [
            (f"tensorflow.python.{package}.nest", "is_sequence=is_nested"),
        ]
        for package in ("util", "data.util")
    },
    "tensorflow.python.pywrap_tensorflow": [(V1 + ".train", "NewCheckpointReader")],
}
