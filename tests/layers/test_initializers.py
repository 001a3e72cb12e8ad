"""The distribution of initial weights; tests/test_modeling.py tests what they depend on."""

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.layers import embeddings


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
