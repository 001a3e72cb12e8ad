"""Tests the functions that read StableHLO text."""

import math

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.tpu.program import devices, stablehlo
from bert_estimator.tpu.step.xla.step_graph import StepGraph

pytestmark = pytest.mark.usefixtures("xla_runtime")


@pytest.fixture
def jax():
    return devices.import_jax()


def text(function, *shapes, dtype="float32"):
    jax = devices.import_jax()
    return jax.jit(function).lower(*(jax.ShapeDtypeStruct(s, dtype) for s in shapes)).as_text()


def test_the_products_of_a_batch_of_matrices():
    def function(x, y):
        return (x @ y + 1).sum()

    assert stablehlo.matmul_flops(text(function, (5, 2, 7), (5, 7, 3))) == 2 * 5 * 2 * 7 * 3


@pytest.mark.parametrize("transposed", [False, True])
def test_the_products_of_two_matrices_as_tensorflow_writes_them(transposed):
    """A plain product and a product with a transposition are different operations in StableHLO."""
    with tf.Graph().as_default():
        step = StepGraph(1)
        x = step.placeholder(tf.float32, [7, 2] if transposed else [2, 7])
        y = step.placeholder(tf.float32, [7, 3])
        with step.building():
            product = tf.matmul(x, y, transpose_a=transposed)
        lowered = step.lower([product], None)
    assert ("stablehlo.dot " in lowered.text) != transposed
    assert stablehlo.matmul_flops(lowered.text) == 2 * 2 * 7 * 3


def test_products_that_nothing_depends_on_do_not_count():
    with tf.Graph().as_default():
        step = StepGraph(1)
        x = step.placeholder(tf.float32, [4, 4])
        with step.building(), tf.control_dependencies([tf.exp(tf.matmul(x, x))]):  # dead
            product = tf.matmul(x, x, transpose_a=True)
        lowered = step.lower([product], None)
    assert lowered.text.count("stablehlo.dot") == 2
    assert stablehlo.matmul_flops(lowered.text) == 2 * 4**3


def test_a_loop_counts_as_often_as_it_runs(jax):
    def function(x):
        return jax.lax.fori_loop(
            0, 6, lambda _, y: jax.lax.fori_loop(0, 5, lambda _, z: z @ z, y), x
        )

    assert stablehlo.matmul_flops(text(function, (4, 4))) == 30 * 2 * 4**3


def test_functions_count_where_they_are_called(jax):
    inner = jax.jit(lambda x: x @ x)

    assert stablehlo.matmul_flops(text(lambda x: inner(x) + inner(x + 1), (4, 4))) == 2 * 2 * 4**3


def test_a_loop_whose_length_the_data_tell(jax):
    def loop(body):
        return lambda x: jax.lax.while_loop(lambda y: y[0, 0] > 0, body, x)

    with pytest.raises(ValueError, match="length depends on its data"):
        stablehlo.matmul_flops(text(loop(lambda y: y @ y), (4, 4)))
    assert stablehlo.matmul_flops(text(loop(lambda y: y - 1), (4, 4))) == 0


def test_parameters():
    found = stablehlo.parameters(text(lambda x, y: (x, y), (4, 4), (), dtype="bfloat16"))
    assert found == [((4, 4), stablehlo.dtype("bfloat16")), ((), stablehlo.dtype("bfloat16"))]
    assert stablehlo.dtype("int32") == np.int32


def test_text_is_called_by_jax(jax):
    exported = stablehlo.exported(text(lambda x: x * 2, (2,)))
    assert np.asarray(jax.jit(exported.call)(np.array([1, 2], np.float32))[0]).tolist() == [2, 4]


def test_what_stablehlo_lacks_is_written_as_xla_reads_it():
    module = """func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
      %y = "mhlo.erf"(%x) : (tensor<3xf32>) -> tensor<3xf32>
      return %y : tensor<3xf32>
    }"""
    x = np.array([-2.0, 0.0, 0.5], np.float32)
    (y,) = stablehlo.exported(module).call(x)
    np.testing.assert_allclose(y, [math.erf(value) for value in x], rtol=1e-6)
