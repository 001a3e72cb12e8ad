"""The distribution of initial weights, and looking up rows of a table."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.layers import embeddings, kernels
from bert_estimator.layers.kernels import program


def test_initial_weights_are_a_truncated_normal():
    with tf.Graph().as_default():
        tf.set_random_seed(5)
        variable = embeddings.weight("w", [400, 500], 0.02)
        with tf.Session() as session:
            session.run(variable.initializer)
            values = session.run(variable) / 0.02
    assert 1.99 < np.max(values) <= 2 and -2 <= np.min(values) < -1.99
    # These are the moments of a standard normal that is truncated at two deviations. The bounds are
    # four deviations of the estimates.
    assert abs(np.mean(values)) < 4 * 0.88 / np.sqrt(values.size)
    assert abs(np.std(values) - 0.8796257) < 4 * 0.55 / np.sqrt(values.size)
    inside = np.mean(np.abs(values) < 1)
    assert abs(inside - 0.6826895 / 0.9544997) < 4 * 0.45 / np.sqrt(values.size)


def test_gradients_inside_a_loop_equal_those_outside():
    x = np.linspace(-2, 2, 12).reshape(4, 3).astype(np.float32)
    with tf.Graph().as_default(), tf.variable_scope("net", use_resource=True):
        table = tf.get_variable("table", [4, 3], initializer=tf.constant_initializer(x))

        def loss(rows):
            rows = embeddings.gather_lookup(table, rows[:, tf.newaxis])
            return tf.reduce_sum(kernels.of_graph().gelu(rows))

        def body(row, total):
            return row + 1, total + tf.gradients(loss(row[tf.newaxis]), table)[0]

        _, total = tf.while_loop(lambda row, _: row < 4, body, [0, tf.zeros([4, 3])])
        pair = [total, *tf.gradients(loss(tf.range(4)), table)]
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            np.testing.assert_allclose(*session.run(pair), rtol=1e-6)


@pytest.mark.parametrize("num_rows", [2, 4])
def test_a_lookup_by_comparisons_equals_a_gather(num_rows):
    rng = np.random.RandomState(0)
    with tf.Graph().as_default(), tf.Session() as session:
        table = tf.constant(rng.normal(size=[num_rows, 5]), tf.float32)
        ids = tf.constant(rng.randint(0, num_rows, [3, 7]), tf.int32)
        gradient = tf.constant(rng.normal(size=[3, 7, 5]), tf.float32)
        results = []
        for lookup in (program.look_up_types, embeddings.gather_lookup):
            rows = lookup(table, ids)
            results.append([rows, *tf.gradients(rows, table, gradient)])
        (rows, slope), (expected, expected_slope) = session.run(results)
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_allclose(slope, expected_slope, rtol=1e-5, atol=1e-6)
