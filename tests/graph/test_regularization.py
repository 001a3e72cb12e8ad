"""The losses of regularizers are tensors, made once, on every runtime, through every door."""

import importlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tf_slim as slim
import toy

from bert_estimator import tpu
from bert_estimator.graph import patches

pytestmark = pytest.mark.filterwarnings("ignore:`layer.apply` is deprecated:UserWarning")
ONES = tf.ones_initializer()


def half_of_squares(weights):
    return 0.5 * tf.reduce_sum(weights * weights)


def get(regularizer=half_of_squares):
    return tf.get_variable("w", [2, 3], initializer=ONES, regularizer=regularizer)


def by_get_variable(x):
    get()


def by_scope(x):
    with tf.variable_scope("scope", regularizer=half_of_squares):
        get(None)


def by_scope_without(x):
    with tf.variable_scope("scope", regularizer=half_of_squares):
        get(tf.no_regularizer)


def reused(x):
    for _ in range(2):
        with tf.variable_scope("scope", reuse=tf.AUTO_REUSE):
            get()


def partitioned(x):
    with tf.variable_scope("scope", partitioner=tf.fixed_size_partitioner(2)):
        get()


def after_something(x):
    with tf.control_dependencies([tf.reduce_sum(x)]):
        get()


def by_slim(x):
    slim.fully_connected(
        x, 3, weights_initializer=ONES, weights_regularizer=slim.l2_regularizer(1.0)
    )


# Beside each way are its losses by TensorFlow 1.15.5.
WAYS = {
    by_get_variable: [3.0],
    by_scope: [3.0],
    by_scope_without: [],
    reused: [3.0],
    partitioned: [1.5, 1.5],
    after_something: [3.0],
    by_slim: [3.0],
}


def losses_of(way, x):
    """Builds a way's variables, and checks that its losses are plain; returns the losses."""
    way(x)
    graph = tf.get_default_graph()
    losses = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
    assert all(isinstance(loss, tf.Tensor) for loss in losses)
    before = len(graph.get_operations())
    assert all(tf.convert_to_tensor(loss) is loss for loss in losses)
    assert len(graph.get_operations()) == before
    return losses


@pytest.mark.parametrize("way", WAYS)
def test_in_a_model_fn(tmp_path, rules, way):
    def model_fn(features, mode, params):
        losses = losses_of(way, tf.reshape(features["x"], [-1, 2]))
        loss = tf.add_n([0 * tf.reduce_mean(features["x"]), *losses])
        assert not losses or tf.losses.get_regularization_losses() == losses
        with tf.control_dependencies([tpu.cross_replica_sum(loss)]):
            train_op = tf.assign_add(tf.train.get_global_step(), 1)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    estimator = toy.make_estimator(tmp_path, model_fn, **rules)
    data = toy.input_fn
    estimator.train(data, steps=1)
    np.testing.assert_allclose(estimator.evaluate(data, steps=1)["loss"], sum(WAYS[way]))


@pytest.mark.parametrize("way", WAYS)
def test_in_a_graph_of_a_script(monkeypatch, way):
    """As under the legacy runner, whose scripts need not use an estimator."""
    store = patches.variable_scope._VariableStore
    monkeypatch.setattr(store, "_get_single_variable", store._get_single_variable)
    patches.losses_at_once_everywhere()
    patches.losses_at_once_everywhere()  # does not add the losses twice
    with tf.Graph().as_default(), tf.Session() as session:
        patches.losses_at_once()
        losses = losses_of(way, tf.ones([4, 2]))
        session.run(tf.global_variables_initializer())
        assert session.run(losses) == WAYS[way]


def test_layers_of_keras(monkeypatch):
    layers = importlib.import_module("tf_keras.api._v1.keras.__internal__.legacy.layers")

    def by_layer(x):
        with pytest.warns(UserWarning, match="tf.layers.dense"):
            layers.dense(x, 3, kernel_initializer=ONES, kernel_regularizer=half_of_squares)

    with tf.Graph().as_default(), tf.Session() as session:
        patches.losses_at_once()
        losses = losses_of(by_layer, tf.ones([4, 2]))
        session.run(tf.global_variables_initializer())
        assert session.run(losses) == [3.0]
