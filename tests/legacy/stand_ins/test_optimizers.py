"""Tests the optimizers of tf.contrib.opt against float64 NumPy; their numbers were held against
TensorFlow 1.15.5's too."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.legacy.stand_ins import optimizers

START = {"w": np.linspace(-1, 2, 12).reshape(4, 3), "b": np.ones(3)}
TARGET = 0.3


def trained(optimizer, resource, steps=3, rows=None, **minimize):
    """Returns the variables after steps on the squared distances of w and b from TARGET."""
    with tf.Graph().as_default(), tf.Session() as session:
        variables = {
            name: tf.get_variable(name, initializer=value.astype(np.float32), use_resource=resource)
            for name, value in START.items()
        }
        w = variables["w"] if rows is None else tf.gather(variables["w"], rows)
        loss = tf.reduce_sum((w - TARGET) ** 2) + tf.reduce_sum((variables["b"] - TARGET) ** 2)
        if minimize:
            decayed = minimize["decayed"]
            minimize = {"decay_var_list": decayed and [variables[name] for name in decayed]}
        train = optimizer().minimize(loss, **minimize)
        session.run(tf.global_variables_initializer())
        for _ in range(steps):
            session.run(train)
        return session.run(variables)


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_lars(resource, nesterov):
    got = trained(
        lambda: optimizers.LARSOptimizer(
            0.5, 0.9, 0.01, 0.1, skip_list=["b"], use_nesterov=nesterov
        ),
        resource,
    )
    for name, value in START.items():
        momentum = np.zeros_like(value)
        for _ in range(3):
            gradient, rate = 2 * (value - TARGET), 0.5
            if name == "w":
                norms = np.linalg.norm(value), np.linalg.norm(gradient)
                rate *= 0.1 * norms[0] / (norms[1] + 0.01 * norms[0])
                gradient = gradient + 0.01 * value
            momentum = 0.9 * momentum + rate * gradient
            value = value - (rate * gradient + 0.9 * momentum if nesterov else momentum)
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize("decayed", [["w"], None, []])
def test_momentum_with_decoupled_decay_of_chosen_variables_or_of_all(resource, decayed):
    got = trained(lambda: optimizers.MomentumWOptimizer(0.02, 0.1, 0.9), resource, decayed=decayed)
    for name, value in START.items():
        momentum = np.zeros_like(value)
        for _ in range(3):
            momentum = 0.9 * momentum + 2 * (value - TARGET)
            value = value * (1 - 0.02 * (name in (decayed or START))) - 0.1 * momentum
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)


def test_a_list_of_decayed_variables_is_for_its_call_alone():
    with tf.Graph().as_default(), tf.Session() as session:
        w, b = (tf.get_variable(name, initializer=[1.0], use_resource=True) for name in "wb")
        optimizer = optimizers.MomentumWOptimizer(0.5, 0.1, 0.9)
        pairs = [(tf.zeros([1]), variable) for variable in (w, b)]
        first = optimizer.apply_gradients(pairs, decay_var_list=[w])
        second = optimizer.apply_gradients(pairs)
        session.run(tf.global_variables_initializer())
        session.run(first)
        assert session.run([w, b]) == [0.5, 1.0]
        session.run(second)
        assert session.run([w, b]) == [0.25, 0.5]


@pytest.mark.parametrize("resource", [False, True])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("AdadeltaOptimizer", {}),
        ("AdagradOptimizer", {}),
        ("AdamOptimizer", {}),
        ("GradientDescentOptimizer", {}),
        ("MomentumOptimizer", {"momentum": 0.9}),
        ("RMSPropOptimizer", {}),
        ("RMSPropOptimizer", {"centered": True, "momentum": 0.5}),
    ],
)
def test_decoupled_decay_of_every_optimizer(name, arguments, resource):
    base = getattr(tf.train, name)
    kind = optimizers.extend_with_decoupled_weight_decay(base)
    arguments = {"learning_rate": 0.1, **arguments}
    plain = trained(lambda: base(**arguments), resource, steps=1)
    got = trained(lambda: kind(0.02, **arguments), resource, steps=1)
    for variable, start in START.items():  # these updates do not depend on the weights themselves
        expected = plain[variable] - 0.02 * start
        np.testing.assert_allclose(got[variable], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("resource", [False, True])
def test_sparse_gradients_decay_only_their_rows(resource):
    kind = optimizers.extend_with_decoupled_weight_decay(tf.train.MomentumOptimizer)
    got = trained(
        lambda: kind(0.02, learning_rate=0.1, momentum=0.9), resource, steps=1, rows=[0, 2, 2]
    )["w"]
    expected = START["w"].copy()
    for row, times in ((0, 1), (2, 2)):
        expected[row] -= 0.02 * expected[row] + 0.1 * times * 2 * (START["w"][row] - TARGET)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_adam_with_decay_and_lazy_adam_without_sparse_gradients():
    plain = trained(lambda: tf.train.AdamOptimizer(0.1), True)
    for kind in (optimizers.LazyAdamOptimizer, lambda rate: optimizers.AdamWOptimizer(0.0, rate)):
        got = trained(lambda kind=kind: kind(0.1), True)
        for name in START:
            np.testing.assert_allclose(got[name], plain[name], rtol=1e-6)


@pytest.mark.parametrize("resource", [False, True])
def test_lazy_adam_leaves_other_rows(resource):
    rows = [0, 2]
    got = trained(lambda: optimizers.LazyAdamOptimizer(0.1), resource, rows=rows)["w"]
    dense = trained(lambda: tf.train.AdamOptimizer(0.1), resource)["w"]
    np.testing.assert_allclose(got[rows], dense[rows], rtol=1e-5)
    np.testing.assert_array_equal(got[[1, 3]], START["w"][[1, 3]].astype(np.float32))


def test_negative_momentum():
    with pytest.raises(ValueError, match="momentum should be positive: -1"):
        optimizers.LARSOptimizer(0.1, momentum=-1)
