"""Names that moved or were left out since TensorFlow 1.15.5 and NumPy 1.18 give what they gave."""

import legacy_script
import pytest
from fixtures import needs_tensorflow_1

from bert_estimator.legacy import wheel

# Expression -> what TensorFlow 1.15.5 writes for it.
GIVEN = {
    # The structures of `tensorflow.python.util.nest`, which Sonnet 1 and graph_nets use.
    "at('util.nest').is_sequence([1]), at('util.nest').is_sequence('a')": "(True, False)",
    "at('data.util.nest').is_sequence([1])": "False",
    "at('data.util.nest').is_sequence((1,))": "True",
    "tf.contrib.framework.nest.is_sequence({})": "True",
    "tf.contrib.framework.nest.flatten_up_to([0, [1]], [[2, 3], [[4, 5]]])": "[[2, 3], [4, 5]]",
    "at('util.nest').map_structure_up_to([0], lambda x, y: x + y, [2], [4])": "[6]",
    "at('util.nest').flatten_with_tuple_paths_up_to([0], [[2, 3]])": "[((0,), [2, 3])]",
    "at('util.nest').map_structure_with_tuple_paths_up_to([0], lambda p, x: p, [2])": "[(0,)]",
    "at('data.util.nest').flatten_up_to((0, (1,)), ((2, 3), (4,)))": "[(2, 3), 4]",
    "at('util.nest').assert_shallow_structure([0], [[1]])": "None",
    # Within a package of TensorFlow, or to a module of the same name.
    "at('ops.nn').dynamic_rnn is tf.nn.dynamic_rnn": "True",
    "at('ops.nn').bidirectional_dynamic_rnn is tf.nn.bidirectional_dynamic_rnn": "True",
    "at('ops.nn').rnn_cell.LSTMStateTuple is tf.nn.rnn_cell.LSTMStateTuple": "True",
    "at('ops.variables').VariableV1 is tf.Variable": "True",
    "at('ops.variables').is_variable_initialized is tf.is_variable_initialized": "True",
    "at('ops.variables').RefVariable.__name__": "RefVariable",
    "at('ops.array_ops').stack is tf.stack": "True",
    "[getattr(at('ops.control_flow_ops'), n) is getattr(tf, n) for n in"
    " ('Assert', 'case', 'cond', 'while_loop')]": "[True, True, True, True]",
    "at('ops.random_ops').random_crop is tf.image.random_crop": "True",
    "at('ops.variable_scope').enable_resource_variables is tf.enable_resource_variables": "True",
    "at('framework.ops').Tensor is tf.Tensor": "True",
    "at('framework.ops').IndexedSlices is tf.IndexedSlices": "True",
    "at('framework.ops').NotDifferentiable('NoSuchOperation')": "None",
    "at('framework.ops').convert_to_tensor_or_indexed_slices(1).dtype.name": "int32",
    "[at(m).convert_variables_to_constants is tf.graph_util.convert_variables_to_constants for m in"
    " ('framework.graph_util', 'framework.graph_util_impl')]": "[True, True]",
    "at('framework.graph_util').extract_sub_graph is tf.graph_util.extract_sub_graph": "True",
    "at('saved_model.utils_impl').get_variables_path('d')": "d/variables/variables",
    "at('training.checkpoint_management').CheckpointManager is tf.train.CheckpointManager": "True",
    "at('training.checkpoint_management').latest_checkpoint('.')": "None",
    "at('eager.tape').stop_recording.__name__": "stop_recording",
    "at('distribute.distribution_strategy_context').in_cross_replica_context()": "False",
    "at('training.distribution_strategy_context').has_strategy()": "False",
    "at('util.tf_export').estimator_export('estimator.Mine')(linear) is linear": "True",
    "hasattr(at('ops.nn'), 'dynamic_rnns'), hasattr(at('data.ops.dataset_ops'), 'Iterators')": (
        "(False, False)"
    ),
    # Shapes.
    "at('framework.tensor_shape').scalar()": "()",
    "at('framework.tensor_shape').vector(3)": "(3,)",
    "at('framework.tensor_shape').matrix(2, None)": "(2, ?)",
    "at('framework.common_shapes').unchanged_shape(TWO_BY_THREE)[0]": "(2, 3)",
    "at('framework.common_shapes').unchanged_shape_with_rank(2)(TWO_BY_THREE)[0]": "(2, 3)",
    "at('framework.common_shapes').unchanged_shape_with_rank_at_least(3)(TWO_BY_THREE)": (
        "ValueError"
    ),
    "at('framework.common_shapes').unchanged_shape_with_rank_at_most(1)(TWO_BY_THREE)": (
        "ValueError"
    ),
    "at('framework.common_shapes').unknown_shape(TWO_BY_THREE)[0]": "<unknown>",
    "at('framework.common_shapes').scalar_shape(TWO_BY_THREE)[0]": "()",
    "at('framework.common_shapes').no_outputs(TWO_BY_THREE)": "[]",
    "at('framework.common_shapes').rank(tf.zeros([2, 3])), at('framework.common_shapes').rank(3)": (
        "(2, None)"
    ),
    "at('framework.common_shapes').has_fully_defined_shape(tf.zeros([2, 3]))": "True",
    "tf.contrib.framework.with_shape([2], ONES).name": "ones:0",
    "tf.contrib.framework.with_shape([3], ONES)": "ValueError",
    "tf.contrib.framework.with_shape([], tf.ones([1])).shape": "()",
    "tf.contrib.framework.with_shape(tf.constant([2.0]), ONES)": "ValueError",
    "run(tf.contrib.framework.with_shape([2], tf.placeholder_with_default([1, 2], [None])))": (
        "[1 2]"
    ),
    "run(tf.contrib.framework.with_shape([3], tf.placeholder_with_default([1, 2], [None])))": (
        "InvalidArgumentError"
    ),
    "run(tf.contrib.framework.with_shape(tf.constant([-1]), ONES))": "[1. 1.]",
    "run(tf.contrib.framework.with_same_shape(tf.placeholder_with_default([1], [None]), ONES))": (
        "InvalidArgumentError"
    ),
    "tf.contrib.framework.with_same_shape(tf.zeros([2]), ONES).name": "ones:0",
    # Feature columns.
    "at('feature_column.feature_column_lib').DenseFeatures([NUMBER])({'x': [[3.0]]}).shape": (
        "(1, 1)"
    ),
    "at('feature_column.dense_features').DenseFeatures is"
    " at('feature_column.feature_column_lib').DenseFeatures": "True",
    "at('feature_column.feature_column_lib').SequenceFeatures.__name__": "SequenceFeatures",
    "at('feature_column.feature_column_lib').LinearModel([NUMBER])({'x': [[3.0]]}).shape": "(1, 1)",
    "[t.shape.as_list() for t in sequences()]": "[[2, 2, 4], [None]]",
    "[run(t).tolist() for t in sequences()]": (
        "[[[[7.0, 1.0, 1.0, 1.0], [8.0, 1.0, 1.0, 1.0]], [[9.0, 1.0, 1.0, 1.0],"
        " [0.0, 0.0, 0.0, 0.0]]], [2, 1]]"
    ),
    "sequences() and [v.name for v in tf.get_default_graph().get_collection('variables')][-1]": (
        "sequence_input_layer_2/b_embedding/embedding_weights:0"
    ),
    # The rest of tf.contrib and tf.estimator.
    "tf.contrib.checkpoint.CheckpointManager is tf.train.CheckpointManager": "True",
    "list(tf.contrib.checkpoint.List([CHECKPOINT])) == [CHECKPOINT]": "True",
    "[hasattr(tf.contrib.checkpoint, n) for n in ('Checkpointable', 'NoDependency',"
    " 'CheckpointableBase', 'CheckpointableObjectGraph', 'PythonStateWrapper', 'list_objects')]": (
        "[True, True, True, True, True, True]"
    ),
    "[hasattr(tf.contrib.autograph, n) for n in ('convert', 'to_graph', 'ConversionOptions',"
    " 'stack', 'set_element_type', 'do_not_convert')]": "[True, True, True, True, True, True]",
    "linear([ONES[None], 2 * ONES[None]], 2, True).tolist()": "[[6.0, 6.0]]",
    "linear(tf.ones([1, 4]), 2, False).tolist()": "[[4.0, 4.0]]",
    "linear(ONES, 1, False)": "ValueError",
    "[v.name for v in tf.get_default_graph().get_collection('variables') if 'own' in v.name]": (
        "['own/kernel:0', 'own/bias:0']"
    ),
    "of_estimator('estimator').maybe_overwrite_model_dir_and_session_config(None, 'd').model_dir": (
        "d"
    ),
    "of_estimator('estimator').maybe_overwrite_model_dir_and_session_config("
    "tf.estimator.RunConfig(model_dir='a'), 'b')": "ValueError",
    # The dictionaries of modules.
    "tf.logging.__dict__['INFO'], vars(tf.losses)['Reduction'].SUM": "(20, 'weighted_sum')",
    "tf.nn.__dict__['relu'] is tf.nn.relu and tf.__dict__['float32'] is tf.float32": "True",
    "tf.contrib.rnn.__dict__['LSTMCell'] is tf.nn.rnn_cell.LSTMCell": "True",
    "'Exists' in tf.gfile.__dict__ and 'MkDirs' not in tf.gfile.__dict__": "True",
    # NumPy.
    "np.quantile([1.0, 2, 4], 0.4, interpolation='lower'), np.quantile([1.0, 2, 4], 0.4)": (
        "(1.0, 1.8)"
    ),
    "np.percentile([1.0, 2, 4], 40, interpolation='nearest')": "2.0",
    "np.nanquantile([1.0, 2, np.nan], 0.4, interpolation='higher')": "2.0",
    "np.nanpercentile([1.0, 2, np.nan], 40, interpolation='midpoint')": "1.5",
    "np.array([1, 2], copy=False).tolist(), np.array(A, copy=False) is A, np.array(A) is A": (
        "([1, 2], True, False)"
    ),
    "np.array(A, copy=False, dtype=np.float32).dtype": "float32",
    "np.histogram([1, 2, 2, 5], 2, normed=True)[0].tolist()": "[0.375, 0.125]",
    "np.histogram([1, 2, 3], [1, 2, 4], normed=True)[0].tolist()": "[0.2, 0.4]",
    "np.histogram([1, 2, 3], [1, 2, 4], density=True)[0].round(9).tolist()": (
        "[0.333333333, 0.333333333]"
    ),
    "np.histogram([1, 2], 2, normed=False, weights=[3, 4])[0].tolist()": "[3, 4]",
    "np.histogram2d([1, 2], [1, 3], 2, normed=True)[0].tolist()": "[[1.0, 0.0], [0.0, 1.0]]",
    "np.histogramdd(np.ones([3, 1]), 1, normed=True)[0].tolist()": "[1.0]",
    "np.mat([1]).shape, np.msort([[2], [1]]).tolist()": "((1, 1), [[1], [2]])",
}

SCRIPT = """
import importlib, sys, warnings
import numpy as np
import tensorflow as tf

warnings.simplefilter("ignore")
TWO_BY_THREE = tf.identity(tf.zeros([2, 3])).op
ONES = tf.ones([2], name="ones")
A = np.ones([2])
CHECKPOINT = tf.train.Checkpoint()
NUMBER = tf.feature_column.numeric_column("x")

def at(path):
    return importlib.import_module("tensorflow.python." + path)

def of_estimator(path):
    new = importlib.import_module("tensorflow_estimator.python.estimator." + path)
    assert importlib.import_module("tensorflow.python.estimator." + path) or new
    return new

def run(tensor):
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        return session.run(tensor)

def linear(*arguments):
    from tensorflow.contrib.rnn.python.ops import core_rnn_cell
    with tf.variable_scope("own", initializer=tf.ones_initializer(), reuse=tf.AUTO_REUSE):
        return run(core_rnn_cell._linear(*arguments, tf.zeros_initializer()))

def sequences():
    columns = tf.contrib.feature_column
    names = columns.sequence_categorical_column_with_identity("b", 3)
    names = tf.feature_column.embedding_column(names, 3, initializer=tf.ones_initializer())
    pairs = [[0, 0], [0, 1], [1, 0]]
    features = {
        "a": tf.SparseTensor(pairs, [7.0, 8.0, 9.0], [2, 2]),
        "b": tf.SparseTensor(pairs, [0, 1, 2], [2, 2]),
    }
    return columns.sequence_input_layer(
        features, [names, columns.sequence_numeric_column("a")]
    )

for expression in sys.stdin.read().splitlines():
    try:
        print(eval(expression))
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        print(type(error).__name__)
"""


@pytest.mark.skipif(wheel.folder() is None, reason="needs the tensorflow-estimator package")
def test_they_give_what_they_gave(tmp_path):
    done = legacy_script.run(tmp_path, SCRIPT, flags=["--tf1"], input="\n".join(GIVEN))
    assert dict(zip(GIVEN, done.stdout.splitlines(), strict=True)) == GIVEN


@needs_tensorflow_1
def test_the_table_is_of_tensorflow_1(tmp_path):
    done = legacy_script.run_on_tensorflow_1(tmp_path, SCRIPT, input="\n".join(GIVEN))
    assert dict(zip(GIVEN, done.stdout.splitlines(), strict=True)) == GIVEN


def test_a_missing_function_says_so_when_it_is_called(tmp_path):
    """Importing it makes a module of the name, as it does for modules of tf.contrib."""
    script = """
from tensorflow.contrib.layers.python.layers import batch_norm, encode_all
try:
    encode_all(3)
except TypeError as error:
    print(error)
"""
    message = "tensorflow.contrib.layers.python.layers.encode_all is not supported: it was part of"
    assert legacy_script.run(tmp_path, script).stdout.startswith(message)
