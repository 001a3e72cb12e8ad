"""Tests the functions that read StableHLO text, and that constants reach a core bit for bit."""

import math

import ml_dtypes
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from fuzzing import fuzzed
from hypothesis import strategies as st

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


@pytest.mark.parametrize(("shape", "is_vector"), [("4x1000", True), ("32x2x128x128x4", False)])
def test_bits_are_drawn_as_vectors_but_for_masks(shape, is_vector):
    draw = "%s, %b = stablehlo.rng_bit_generator %k, algorithm = PHILOX : (tensor<3xui64>)"
    line = f"{draw} -> (tensor<3xui64>, tensor<{shape}xui32>)"
    assert (stablehlo.with_bits_as_vectors(line) != line) == is_vector


def test_what_stablehlo_lacks_is_written_as_xla_reads_it():
    module = """func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
      %y = "mhlo.erf"(%x) : (tensor<3xf32>) -> tensor<3xf32>
      return %y : tensor<3xf32>
    }"""
    x = np.array([-2.0, 0.0, 0.5], np.float32)
    (y,) = stablehlo.exported(module).call(x)
    np.testing.assert_allclose(y, [math.erf(value) for value in x], rtol=1e-6)


# MLIR writes up to 100 elements one by one, more as hexadecimal digits, and equal elements once.
SHAPES = [(), (1,), (0,), (3, 0), (9,), (10, 10), (101,), (7, 15), (3, 1, 43), (64, 64)]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64", "float8_e5m2", "float8_e4m3fn"]


def values_of(name, shape):
    """Returns an array [shape] of any bits that the dtype may have, and one of equal elements."""
    dtype, size = stablehlo.dtype(name), int(np.prod(shape))
    random = np.random.RandomState(len(name) + size)
    if name == "bool":
        values = random.randint(0, 2, size).astype(bool)
    elif name in ("int4", "uint4"):
        info = ml_dtypes.iinfo(dtype)
        values = random.randint(info.min, info.max + 1, size).astype(dtype)
    elif name.startswith("complex"):
        parts = [np.inf, -np.inf, np.nan, -0.0, 0.0, *random.normal(size=9)]
        values = np.empty(size, dtype)
        values.real, values.imag = random.choice(parts, [2, size])
    else:  # With NaNs of any payload, infinities and zeros of either sign.
        values = np.frombuffer(random.bytes(size * dtype.itemsize), dtype)
    return [values.reshape(shape), np.repeat(values[-1:], size).reshape(shape)]


def bits(array):
    # A byte has four bits that do not belong to a number of four bits.
    return (array.astype(np.int8) if array.dtype.name.endswith("int4") else array).tobytes()


def in_session(values):
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run([tf.constant(value) for value in values])


def on_core(values):
    with tf.Graph().as_default():
        step = StepGraph(1)
        with step.building():
            constants = [tf.constant(value) for value in values]
        lowered = step.lower(constants, None)
    jax = devices.import_jax()
    with jax.enable_x64(True):
        _, outputs = jax.jit(lowered.one_core())([], [np.zeros([1], np.int32)])
    return [np.asarray(output) for output in outputs]


DTYPES = ["bool", "int4", "uint4", *INTEGERS, *FLOATS, "complex64", "complex128"]


@pytest.mark.parametrize("name", DTYPES)
def test_every_bit_of_a_constant(name):
    try:
        tf.as_dtype(name)
    except TypeError:
        pytest.skip(f"this TensorFlow does not have {name}")
    check([value for shape in SHAPES for value in values_of(name, shape)])


def check(values):
    for value, core, session in zip(values, on_core(values), in_session(values), strict=True):
        assert core.dtype == session.dtype == value.dtype
        assert core.shape == session.shape == value.shape
        assert bits(core) == bits(session) == bits(value), value.shape


@pytest.mark.slow
@fuzzed(
    st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 13), max_size=4).map(tuple)),
        min_size=1,
        max_size=12,
    ),
    examples=12,
)
def test_constants_of_any_dtypes_and_shapes(data):
    check([value for name, shape in data for value in values_of(name, shape)])


def test_not_a_number_infinity_and_negative_zero():
    special = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, np.finfo(np.float32).max]
    for count in (1, 20):  # 140 values are written as digits
        given = np.array(special * count, np.float32)
        (core,) = on_core([given])
        assert core.tobytes() == given.tobytes()


@pytest.mark.parametrize("digits", ["0101010001010101010101", "F707"], ids=["bytes", "bits"])
def test_either_form_of_booleans_is_read(digits):
    """TensorFlow's MLIR may write the other form than jaxlib's reads."""
    module = f"""func.func @main() -> tensor<11xi1> {{
      %x = stablehlo.constant dense<"0x{digits}"> : tensor<11xi1>
      return %x : tensor<11xi1>
    }}"""
    (values,) = stablehlo.exported(module).call()
    assert np.flatnonzero(~np.asarray(values)).tolist() == [3]
