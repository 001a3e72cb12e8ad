"""What TensorFlow 2 does otherwise than models need, changed: the gradient of a bias, the losses of
regularizers, and how far datasets read ahead."""

import contextlib
import functools
from collections.abc import Iterator

import tensorflow.compat.v1 as tf
from tensorflow.python.data.ops import dataset_ops, iterator_ops
from tensorflow.python.ops import variable_scope

from bert_estimator.graph.graph_walk import in_xla_program

_BIAS_ADD = "BertEstimatorBiasAdd"


@contextlib.contextmanager
def biases_summed_in_float32() -> Iterator[None]:
    """Sums the gradients of all `tf.nn.bias_add`s that are called in this context, but not within a
    `tf.function`, in float32, of bfloat16 too."""
    with tf.get_default_graph().gradient_override_map({"BiasAdd": _BIAS_ADD}):
        yield


@tf.RegisterGradient(_BIAS_ADD)
def _bias_add_gradient(op, gradient):
    data_format = op.get_attr("data_format").decode()
    if gradient.dtype != tf.bfloat16 or in_xla_program():
        return gradient, tf.raw_ops.BiasAddGrad(out_backprop=gradient, data_format=data_format)
    # On a CPU TensorFlow's gradient adds rows of bfloat16 in bfloat16, one after the other: soon
    # the sum is so much larger than a row that rounding drops most of the row. For 4096 rows of
    # independent numbers, the error is 7 % of the sum's standard deviation; for rows that are alike
    # it is worse. XLA's sums are float32.
    rank = gradient.shape.rank or tf.rank(gradient)
    if data_format == "NCHW":
        axes = tf.concat([[0], tf.range(2, rank)], axis=0)
    else:
        axes = tf.range(rank - 1)
    # This sum of bfloat16 is computed in float32.
    return gradient, tf.reduce_sum(gradient, axes)


def losses_at_once() -> None:
    """Has the current graph's variables get regularization losses that are plain tensors, as in
    TensorFlow 1."""
    # TensorFlow 2 puts an object into the collection that adds the operations whenever it is used.
    store = variable_scope._get_default_variable_store()
    if type(store) is variable_scope._VariableStore:
        store.__class__ = _Store


def losses_at_once_everywhere() -> None:
    """Has the variables of all graphs of this process get such losses."""
    store = variable_scope._VariableStore
    if not hasattr(store._get_single_variable, "__wrapped__"):
        store._get_single_variable = _with_plain_loss(store._get_single_variable)


def _with_plain_loss(method):
    """Returns the method of a store of variables through which each variable passes."""

    @functools.wraps(method)
    def get(self, name, *args, regularizer=None, **kwargs):
        # A variable that is got again must not be regularized again.
        known = name in self._vars
        variable = method(self, name, *args, **kwargs)
        if regularizer and not known:
            # The loss is the graph's, even if the caller is within a condition or a loop.
            with tf.control_dependencies(None), tf.name_scope(f"{name}/Regularizer/"):
                loss = regularizer(variable)
            if loss is not None:
                tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, loss)
        return variable

    return get


class _Store(variable_scope._VariableStore):
    """Is a graph's store of variables, whose class is changed to this one."""

    __slots__ = ()
    _get_single_variable = _with_plain_loss(variable_scope._VariableStore._get_single_variable)


def read_on_request() -> None:
    """Has each iterator that is made in a graph from now on, however it is, draw only what is asked
    for, as `docs/tpu_estimator.md` says; a second call does nothing."""
    datasets, iterators = dataset_ops.DatasetV2, iterator_ops.Iterator
    # An input_fn, a model_fn or a hook may make iterators of any kind. All of them pass the first
    # method; only `make_initializer` does not, so it is made to.
    if not hasattr(datasets._apply_debug_options, "__wrapped__"):
        datasets._apply_debug_options = _drawing_on_request(datasets._apply_debug_options)
        iterators.make_initializer = _with_options(iterators.make_initializer)


def _drawing_on_request(method):
    """Returns the method that every dataset passes before it gets an iterator, with options."""

    @functools.wraps(method)
    def apply(self):
        dataset = method(self)
        if tf.executing_eagerly():
            return dataset
        options = tf.data.Options()
        # Without autotuning, TensorFlow also injects no prefetch.
        options.autotune.enabled = False
        rewriting = options.experimental_optimization
        rewriting.filter_parallelization = False
        rewriting.map_and_batch_fusion = False
        rewriting.map_parallelization = False
        return dataset.with_options(options)

    return apply


def _with_options(make_initializer):
    """Returns `tf.data.Iterator.make_initializer`, the one way to an iterator past `apply`."""

    @functools.wraps(make_initializer)
    def make(self, dataset, name=None):
        return make_initializer(self, dataset._apply_debug_options(), name)

    return make
