"""Keeps TensorFlow from drawing elements of a dataset before a program asks for them.

Since 2.10 TensorFlow ends every dataset with a prefetch that nobody asked for, and runs functions
of `map` and `filter` ahead. Then an element is drawn, and perhaps lost, before its step: a training
of 20 steps draws 22 elements of a generator. A generator that waits for requests is asked for the
second one before the first one is answered. TensorFlow 1 read ahead only if the program said so
(`prefetch`, or functions with `num_parallel_calls`), and so do datasets here.
"""

import functools

import tensorflow.compat.v1 as tf
from tensorflow.python.data.ops import dataset_ops, iterator_ops


def install() -> None:
    """Has each iterator that is made in a graph from now on, however it is, draw only what is asked
    for; a second call does nothing.

    Options by which a dataset itself asks for rewriting (`autotune`, `inject_prefetch`,
    `map_parallelization`, `filter_parallelization`, `map_and_batch_fusion`) have no effect there.
    Eager loops over a dataset stay as TensorFlow has them.
    """
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
