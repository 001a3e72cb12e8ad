"""Recomputed layers have the gradients of kept layers, and the replay stays in the graph."""

import functools
import gc
import weakref

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import precision
from bert_estimator.layers.dropout import Dropout
from bert_estimator.layers.recompute import recompute

ROWS, WIDTH = 6, 16


def layer(x, dropout):
    """Builds a dense layer with dropout, and variables in the scope and in a scope below it."""
    kernel = tf.get_variable("kernel", [WIDTH, WIDTH])
    x = tf.tanh(tf.matmul(x, tf.cast(kernel, x.dtype)))
    if dropout:
        x = dropout(dropout(x, 0.25), 0.25)
    with tf.variable_scope("inner"):
        bias = tf.get_variable("bias", [WIDTH], initializer=tf.ones_initializer())
        return tf.cast(x * bias, x.dtype)


def network(recomputed, dropout=True, rows=slice(None), layers=2):
    """Returns the loss of some layers on a fixed batch, and its gradients by input and weights."""
    values = np.linspace(-1, 1, ROWS * WIDTH).reshape(ROWS, WIDTH)
    x = tf.constant(values[rows], precision.compute_dtype())
    hidden, drop = x, Dropout(3, step=5, first_row=rows.start or 0) if dropout else None
    apply = functools.partial(recompute, layer) if recomputed else layer
    for index in range(layers):
        with tf.variable_scope(f"layer_{index}", use_resource=True):
            hidden = apply(hidden, drop)
    loss = tf.reduce_sum(tf.square(tf.cast(hidden, tf.float32)))
    return loss, tf.gradients(loss, [x, *tf.trainable_variables()])


def run(fetches, options=None, metadata=None):
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches, options=options, run_metadata=metadata)


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("kind", precision.PRECISIONS)
def test_gradients_equal_those_of_kept_layers(kind, dropout):
    results = []
    for recomputed in (False, True):
        with tf.Graph().as_default(), precision.scope(kind):
            tf.set_random_seed(1)
            loss, gradients = network(recomputed, dropout)
            assert [g.dtype for g in gradients[1:]] == [tf.float32] * 4
            results.append(run([loss, *gradients]))
    for kept, again in zip(*results, strict=True):
        assert np.any(kept)
        np.testing.assert_allclose(np.float64(again), np.float64(kept), rtol=1e-6)


def test_the_masks_after_a_recomputed_layer_are_those_after_a_kept_one():
    outputs = []
    for apply in (layer, functools.partial(recompute, layer)):
        with tf.Graph().as_default(), tf.variable_scope("net", use_resource=True):
            dropout = Dropout(3, step=5)
            apply(tf.ones([ROWS, WIDTH]), dropout)
            outputs.append(run(dropout(tf.ones([ROWS, WIDTH]), 0.5)))
    np.testing.assert_array_equal(*outputs)


def test_in_a_loop_over_rows_the_gradients_are_those_of_the_batch():
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        _, expected = network(recomputed=False, dropout=False)
        weights = tf.trainable_variables()

        def body(row, totals):
            with tf.variable_scope(tf.get_variable_scope(), reuse=True):
                x = tf.reshape(tf.linspace(-1.0, 1.0, ROWS * WIDTH), [ROWS, WIDTH])[row : row + 1]
                hidden = x
                for index in range(2):
                    with tf.variable_scope(f"layer_{index}"):
                        hidden = recompute(layer, hidden, None)
                gradients = tf.gradients(tf.reduce_sum(tf.square(hidden)), weights)
            return row + 1, [t + g for t, g in zip(totals, gradients, strict=True)]

        zeros = [tf.zeros(weight.shape) for weight in weights]
        _, totals = tf.while_loop(lambda row, _: row < ROWS, body, [0, zeros])
        totals, expected = run([totals, expected[1:]])
    for total, value in zip(totals, expected, strict=True):
        np.testing.assert_allclose(total, value, rtol=1e-5, atol=1e-6)


def products(recomputed):
    """Counts the matrix products and the random draws that are left after optimization."""
    with tf.Graph().as_default():
        loss, gradients = network(recomputed)
        options = tf.RunOptions(output_partition_graphs=True)
        metadata = tf.RunMetadata()
        run([loss, *gradients], options, metadata)
        nodes = [node for graph in metadata.partition_graphs for node in graph.node]
    # The optimizer may fuse a product with the operation that follows it.
    return sum("MatMul" in node.op for node in nodes), sum(
        node.op.startswith("StatelessRandom") for node in nodes
    )


def test_tensorflow_s_optimizer_leaves_the_replay_in_place():
    """A layer has 3 products, 1 forward and 2 backward, and 2 draws; the replay adds 1 and 2."""
    kept, again = products(recomputed=False), products(recomputed=True)
    initializers = kept[1] - 2 * 2
    assert kept[0] == 3 * 2
    assert again == (kept[0] + 2, initializers + 2 * 2 * 2)


def test_graphs_are_let_go_of():
    def graph_of_a_network():
        with tf.Graph().as_default() as graph:
            network(recomputed=True)
        return weakref.ref(graph)

    graph = graph_of_a_network()
    gc.collect()
    assert graph() is None


def test_without_a_scope_it_is_refused():
    """It would not find the layer's variables, which would get no gradient."""
    with tf.Graph().as_default(), pytest.raises(ValueError, match="a variable scope with a name"):
        recompute(layer, tf.ones([ROWS, WIDTH]), None)
