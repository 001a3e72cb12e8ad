"""Activations and their gradients against float64 numpy."""

import contextlib
import dataclasses
import math

import numpy as np
import numpy_bert
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import bert_config, modeling
from bert_estimator.layers import kernels, primitives


@np.vectorize
def gelu_erf(x):
    """Multiplies x by the normal distribution function, in float64."""
    return 0.5 * x * math.erfc(-x * math.sqrt(0.5))


@pytest.mark.parametrize("name", bert_config.HIDDEN_ACTS)
def test_every_configuration_has_its_activation(name):
    config = dataclasses.replace(bert_config.BertConfig.preset("tiny", 10), hidden_act=name)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant([0.0, 1.0])
        assert session.run(modeling.activate(config, x))[0] == 0.0


TWINS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "relu6": lambda x: np.clip(x, 0, 6),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
}


@pytest.mark.parametrize("name", TWINS)
def test_other_activations(name):
    config = dataclasses.replace(bert_config.BertConfig.preset("tiny", 10), hidden_act=name)
    x = np.linspace(-9, 9, 601)
    with tf.Graph().as_default(), tf.Session() as session:
        y = session.run(modeling.activate(config, tf.constant(x, tf.float32)))
    np.testing.assert_allclose(y, TWINS[name](x), rtol=1e-5, atol=1e-6)


WAYS = {
    "usual": contextlib.nullcontext,
    "portable": primitives.portable,
}


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize(("name", "twin"), [("gelu", numpy_bert.gelu), ("gelu_erf", gelu_erf)])
def test_gelu_and_its_gradient(name, twin, dtype, way):
    x = np.linspace(-12, 12, 4001).astype(dtype.as_numpy_dtype)
    with tf.Graph().as_default(), WAYS[way]():
        x_tensor = tf.constant(x)
        y = getattr(kernels.of_graph(), name)(x_tensor)
        (slope,) = tf.gradients(y, x_tensor)
        assert (y.dtype, slope.dtype) == (dtype, dtype)
        with tf.Session() as session:
            y, slope = session.run([y, slope])
    x = x.astype(np.float64)
    step = 1e-5
    expected = twin(x)
    expected_slope = (twin(x + step) - twin(x - step)) / (2 * step)
    # The result is rounded once, to bfloat16, or a few times in float32.
    tolerance = {tf.float32: 2e-6, tf.bfloat16: 2.0**-8}[dtype]
    np.testing.assert_allclose(np.float64(y), expected, rtol=tolerance, atol=1e-9)
    if way == "portable":
        return
    # Near its root at -0.75 the slope is a difference of two terms of about 0.2.
    np.testing.assert_allclose(np.float64(slope), expected_slope, rtol=tolerance, atol=5e-8)
