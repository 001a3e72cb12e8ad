"""Dropout masks against a Philox in numpy, and what they depend on."""

import zlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import control_flow_ops

from bert_estimator.layers import kernels, primitives
from bert_estimator.layers.dropout import Dropout
from bert_estimator.layers.kernels import session as session_kernels

SHAPE = (6, 5, 7)  # 35 elements per row, which is not a multiple of the 8 of a block


@pytest.fixture(params=["operation", "compiled"], autouse=True)
def masks(request, monkeypatch):
    """Runs each test with all masks compiled, and with none."""
    least = 0 if request.param == "compiled" else 1 << 62
    monkeypatch.setattr(session_kernels, "_LEAST_OF_MASKS", least)
    return request.param


def philox(key, counter):
    """Returns the words of Philox4x32-10 (Salmon et al., 2011): 64 bits of key, 128 of counter."""
    mask = (1 << 32) - 1
    c = [counter >> shift & mask for shift in (0, 32, 64, 96)]
    k = [key & mask, key >> 32]
    for _ in range(10):
        first, second = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [second >> 32 ^ c[1] ^ k[0], second & mask, first >> 32 ^ c[3] ^ k[1], first & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


def numpy_mask(seed, step, first_row, site, shape, threshold):
    elements = int(np.prod(shape[1:]))
    blocks = -(-elements // 8)
    key = zlib.crc32(site) << 32 | seed
    rows = []
    for row in range(first_row, first_row + shape[0]):
        words = np.array([philox(key, step << 64 | (row * blocks + b)) for b in range(blocks)])
        # First the low halves of the blocks' first words, of their second words, and so on; then
        # the high halves.
        bits = np.concatenate([half.T.ravel() for half in (words & 0xFFFF, words >> 16)])
        rows.append(bits[:elements].reshape(shape[1:]) >= threshold)
    return np.array(rows)


def draws_of(graph):
    """Returns for each draw of random words in a graph whether it is "compiled" or an operation."""
    found = []
    for op in graph.get_operations():
        if op.type == "PartitionedCall" and "_packed_" in op.get_attr("f").name:
            found.append("compiled")
        elif op.type == "StatelessRandomUniformFullIntV2":
            found.append("operation")
    return found


def run(rate=0.25, seed=3, step=7, first_row=0, shape=SHAPE, scope="net", dtype=tf.float32):
    """Returns the dropout of ones, as float64."""
    with tf.Graph().as_default(), tf.variable_scope(scope):
        y = Dropout(seed, step, first_row)(tf.ones(shape, dtype), rate)
        assert y.dtype == dtype
        with tf.Session() as session:
            return np.asarray(session.run(y), np.float64)


# The last three are whole numbers of blocks, by their first dimension, by two, and by three.
@pytest.mark.parametrize("shape", [SHAPE, (2, 16, 3), (2, 6, 4, 5), (2, 3, 5, 8)])
def test_bits_are_those_of_philox(shape):
    expected = numpy_mask(3, 7, 11, b"net:0", shape, threshold=16384) / 0.75
    np.testing.assert_allclose(run(first_row=11, shape=shape), expected, rtol=1e-7)


def test_rows_alone_equal_rows_in_the_whole_batch():
    whole = run()
    for first in (0, 2, 4):
        rows = run(first_row=first, shape=(2, 5, 7))
        np.testing.assert_array_equal(rows, whole[first : first + 2])


def test_any_rows_equal_rows_in_the_whole_batch():
    order = [4, 0, 3, 3]
    with tf.Graph().as_default(), tf.variable_scope("net"), tf.Session() as session:
        dropout = Dropout(3, 7, 2).at_rows(tf.constant(order))
        rows = session.run(dropout(tf.ones((4, 5, 7)), 0.25))
    np.testing.assert_array_equal(rows, run()[order].astype(np.float32))


def test_micro_batches_in_a_loop_equal_the_whole_batch():
    with tf.Graph().as_default(), tf.variable_scope("net"):
        step = tf.placeholder(tf.int64, [])

        def body(first_row, outputs):
            y = Dropout(3, step, first_row)(tf.ones((2, 5, 7)), 0.25)
            return first_row + 2, outputs.write(first_row // 2, y)

        outputs = tf.TensorArray(tf.float32, size=3)
        loop = tf.while_loop(lambda row, _: row < 6, body, [tf.constant(0), outputs])
        with tf.Session() as session:
            y = session.run(loop[1].concat(), {step: 7})
    np.testing.assert_array_equal(y, run().astype(np.float32))


def test_unknown_batch_size():
    with tf.Graph().as_default(), tf.variable_scope("net"):
        x = tf.placeholder(tf.float32, [None, 5, 7])
        y = Dropout(3, 7)(x, 0.25)
        assert y.shape.as_list() == [None, 5, 7]
        with tf.Session() as session:
            np.testing.assert_array_equal(session.run(y, {x: np.ones(SHAPE)}), run())


@pytest.mark.parametrize("rows", [None, 6])
@pytest.mark.parametrize("lengths", [(5, None), (None, 7), (None, None), (None, 8)])
def test_a_shorter_batch_has_the_first_part_of_the_mask(lengths, rows, masks):
    """Sequence lengths that are not static are cut from the mask of the longest sequence."""
    longest, short = 12, 4
    whole = [6, *(longest if size is None else size for size in lengths)]
    cut = [6, *(short if size is None else size for size in lengths)]
    with tf.Graph().as_default() as graph, tf.variable_scope("net"):
        x = tf.placeholder(tf.float32, [rows, *lengths])
        dropout = Dropout(3, 7, longest=longest)
        fork = dropout.fork(dropout.state)
        y = dropout(x, 0.25)
        again, gradient = fork(x, 0.25), tf.gradients(y, x)[0]
        assert draws_of(graph) == [masks] * 2
        with tf.Session() as session:
            found = session.run([y, again, gradient], {x: np.ones(cut)})
    expected = run(shape=whole)[:, : cut[1], : cut[2]]
    for values in found:
        np.testing.assert_allclose(values, expected, rtol=1e-7)


def test_cpu_kernel_and_xla_draw_the_same_bits():
    with tf.Graph().as_default(), tf.variable_scope("net"):
        step = tf.placeholder(tf.int64, [])

        def draw(x, step):
            return Dropout(3, step, first_row=5)(x, 0.1)

        x = tf.ones([4, 1001])
        pair = draw(x, step), tf.function(draw, jit_compile=True, autograph=False)(x, step)
        with tf.Session() as session:
            for number in (0, 7, 2**40 + 1):
                kernel, xla = session.run(pair, {step: number})
                np.testing.assert_array_equal(kernel, xla)
                assert 0 < np.sum(kernel == 0) < kernel.size


def test_depends_on_seed_step_and_site():
    base = run()
    np.testing.assert_array_equal(run(), base)
    for change in ({"seed": 4}, {"step": 8}, {"scope": "net2"}, {"first_row": 1}):
        assert np.any(run(**change) != base), change


def test_sites_are_known_by_scope_and_call_not_by_order():
    def build(order):
        with tf.Graph().as_default():
            dropout = Dropout(1, 2)
            outputs = {}
            for scope in order:
                with tf.variable_scope(scope):
                    outputs[scope] = [dropout(tf.ones([2, 64]), 0.5) for _ in range(2)]
            with tf.Session() as session:
                return session.run(outputs)

    forwards, backwards = build(["a", "b"]), build(["b", "a"])
    for scope in "ab":
        np.testing.assert_array_equal(forwards[scope], backwards[scope])
        assert np.any(forwards[scope][0] != forwards[scope][1])
    assert np.any(forwards["a"][0] != forwards["b"][0])


@pytest.mark.parametrize(
    ("dtype", "rate", "scale", "threshold"),
    [
        (tf.float32, 0.1, 65536 / 58982, 6554),
        (tf.bfloat16, 0.1, 1.109375, 6461),
        (tf.float32, 0.5, 2.0, 32768),
        (tf.bfloat16, 0.5, 2.0, 32768),
    ],
)
def test_quantised_rate_and_scale_leave_the_expectation(dtype, rate, scale, threshold):
    y = run(rate=rate, shape=(64, 1024), dtype=dtype)
    keep = numpy_mask(3, 7, 0, b"net:0", (2, 1024), threshold)
    np.testing.assert_array_equal(y[:2] != 0, keep)
    np.testing.assert_allclose(np.unique(y), [0.0, scale], rtol=1e-7)
    assert abs(scale * (1 - threshold / 65536) - 1) <= 2.0**-16
    assert abs(np.mean(y) - 1) < 4 * np.sqrt(rate / (1 - rate) / y.size)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_gradient_reuses_the_mask(dtype):
    with tf.Graph().as_default() as graph:
        x = tf.ones([4, 32], dtype)
        y = Dropout(1, 2)(x, 0.5)
        (gradient,) = tf.gradients(y, x, grad_ys=3 * x)
        assert len(draws_of(graph)) == 1
        with tf.Session() as session:
            y, gradient = session.run([y, gradient])
    assert gradient.dtype == dtype.as_numpy_dtype
    np.testing.assert_array_equal(gradient.astype(np.float32), 3 * y.astype(np.float32))


@pytest.mark.parametrize("to", [tf.float32, tf.bfloat16])
def test_a_mask_alone_equals_a_calls_mask(to):
    values = np.random.RandomState(0).normal(size=[4, 32]).astype(np.float32)
    with tf.Graph().as_default():
        x = tf.constant(values)
        mask = Dropout(1, 2).mask(x, 0.1)
        mine = kernels.of_graph().mask_and_scale(mask, x, to)
        assert mine.dtype == to
        with tf.Session() as session:
            mine, expected = session.run([mine, tf.cast(Dropout(1, 2)(x, 0.1), to)])
    np.testing.assert_array_equal(mine, expected)


def test_step_of_a_variable():
    with tf.Graph().as_default(), tf.variable_scope("net", use_resource=True):
        global_step = tf.train.get_or_create_global_step()
        x = tf.ones(SHAPE)
        y = Dropout(3, global_step)(x, 0.25)
        assert tf.gradients(y, x)[0] is not None
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            session.run(tf.assign_add(global_step, 7))
            np.testing.assert_array_equal(session.run(y), run())


def test_rate_zero_is_the_tensor_itself():
    with tf.Graph().as_default():
        x = tf.ones([2, 8])
        assert Dropout(1, 2)(x, 0.0) is x
        assert Dropout(1, 2).mask(x, 0.0) is None


@pytest.mark.parametrize("rate", [1.0, -0.1])
def test_bad_rate(rate):
    with tf.Graph().as_default(), pytest.raises(ValueError, match="rate"):
        Dropout(1, 2)(tf.ones([2, 8]), rate)


@pytest.mark.parametrize(("dtype", "rate"), [(tf.float32, 0.999999), (tf.float16, 0.99999)])
def test_a_rate_too_near_1(dtype, rate):
    """In float16 the scale would be infinite."""
    message = rf"Dropout of x:0: rate {rate} is too near 1 for masks of 16 bits in {dtype.name}"
    with tf.Graph().as_default():
        x = tf.placeholder(dtype, [2, 8], name="x")
        with pytest.raises(ValueError, match=message):
            Dropout(1, 2)(x, rate)


@pytest.mark.parametrize("seed", [-1, 1 << 32])
def test_bad_seed(seed):
    with pytest.raises(ValueError, match=rf"seed={seed} is out of range; .* from 0 to 4294967295"):
        Dropout(seed, 0)


@pytest.mark.parametrize("shape", [[8], [2, None], None])
def test_bad_shape(shape):
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, shape, name="x")
        with pytest.raises(ValueError, match=r"Dropout of x:0: shape .* must be \[batch, \.\.\.\]"):
            Dropout(1, 2)(x, 0.5)


@pytest.mark.parametrize("masks", ["compiled"], indirect=True)
@pytest.mark.parametrize(("rows", "way"), [(8, "compiled"), (7, "operation")])
def test_large_masks_are_compiled_and_small_ones_are_not(masks, monkeypatch, rows, way):
    monkeypatch.undo()
    with tf.Graph().as_default() as graph:
        Dropout(1, 2)(tf.ones([rows, 1 << 17]), 0.1)
        assert draws_of(graph) == [way]


@pytest.mark.parametrize("masks", ["compiled"], indirect=True)
def test_a_program_for_xla_and_a_portable_graph_have_the_operation(masks):
    with tf.Graph().as_default() as graph:
        with primitives.portable():
            Dropout(1, 2)(tf.ones(SHAPE), 0.1)
        context = control_flow_ops.XLAControlFlowContext()
        context.Enter()
        Dropout(1, 2)(tf.ones(SHAPE), 0.1)
        context.Exit()
        assert draws_of(graph) == ["operation"] * 2
