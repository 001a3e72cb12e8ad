"""Tests chunks of steps on the devices: how many steps run, their outputs, and their end."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.tpu.program import devices, lowered_step
from bert_estimator.tpu.program.core_mesh import CoreMesh
from bert_estimator.tpu.program.lowered_step import DeviceLoop
from bert_estimator.tpu.step.xla.step_graph import StepGraph

pytestmark = pytest.mark.usefixtures("xla_runtime")

CORES, ROWS = 2, 2


@pytest.fixture(scope="module")
def lowered():
    """Lowers a step that adds up rows and counts; it gives loss, rows and the core's number."""
    with tf.Graph().as_default():
        program = StepGraph(CORES)
        rows = program.placeholder(tf.float32, [ROWS])
        with program.building():
            total = tf.get_variable("total", initializer=0.0)
            count = tf.get_variable("count", dtype=tf.int64, initializer=np.int64(0))
            loss = tf.reshape(tf.reduce_mean(rows), [1])
            sent = rows * tf.cast(count, tf.float32)
            with tf.control_dependencies([sent]):
                added = total.assign_add(tpu.cross_replica_sum(tf.reduce_sum(rows)))
                update = tf.group(added, count.assign_add(1))
            number = tf.reshape(tpu.replica_id(), [1])
        return program.lower([loss, sent, number], update)


def start(lowered, loop_length, ends_at_nan=True, **keywords):
    """Returns a loop, its state, and a function that makes a batch of given rows."""
    cores = devices.find(f"rehearse:{CORES}")
    loop = DeviceLoop(lowered, CoreMesh(cores), loop_length, ends_at_nan, **keywords)
    zeros = [np.zeros(variable.shape, variable.dtype) for variable in lowered.state]
    state = list(loop.put_state(dict(enumerate(zeros))).values())
    return loop, state, lambda *rows: loop.put_batch([np.float32(rows)])


def values(lowered, state):
    return {v.name: np.asarray(s).item() for v, s in zip(lowered.state, state, strict=True)}


@pytest.mark.parametrize("lengths", [[5], [1, 4], [3, 2], [1] * 5])
def test_chunks_of_any_length_equal_single_steps(lowered, lengths):
    loop, state, batch = start(lowered, 5)
    assert loop.most_steps == 5
    outputs, step = [], 0
    for length in lengths:
        batches = [batch(1, 2, 3, step + i) for i in range(length)]
        state, chunk = loop.run(state, batches)
        assert int(chunk.count) == length
        outputs += zip(*(np.asarray(o)[:length].tolist() for o in chunk.outputs), strict=True)
        step += length
    assert outputs == [
        ([1.5, (3 + k) / 2], [1.0 * k, 2.0 * k, 3.0 * k, 1.0 * k * k], [0, 1]) for k in range(5)
    ]
    assert values(lowered, state) == {"total": 5 * 6.0 + 10, "count": 5}


def test_outputs_that_only_the_last_step_gives(lowered):
    loop, state, batch = start(lowered, 4, num_last=2)
    _, chunk = loop.run(state, [batch(1, 2, 3, 4), batch(5, 6, 7, 8), batch(1, 1, 2, 2)])
    assert np.asarray(chunk.outputs[0])[:3].tolist() == [[1.5, 3.5], [5.5, 7.5], [1, 2]]
    assert [value.tolist() for value in map(np.asarray, chunk.last)] == [[2, 2, 4, 4], [0, 1]]
    assert len(chunk.outputs) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_on_one_core_ends_all(lowered, bad):
    loop, state, batch = start(lowered, 4)
    batches = [batch(1, 1, 1, 1), batch(1, 1, 1, bad), batch(1, 1, 1, 1)]
    state, chunk = loop.run(state, batches)
    state, after = loop.run(state, batches[:1])
    assert (int(chunk.count), int(after.count)) == (2, 0)
    np.testing.assert_array_equal(np.asarray(chunk.outputs[0])[:2], [[1, 1], [1, bad]])
    assert values(lowered, state)["count"] == 2


def test_where_nothing_is_trained_it_goes_on(lowered):
    loop, state, batch = start(lowered, 4, ends_at_nan=False)
    state, chunk = loop.run(state, [batch(1, 1, 1, 1), batch(1, 1, 1, np.nan), batch(1, 1, 1, 1)])
    assert int(chunk.count) == 3
    assert values(lowered, state)["count"] == 3


def test_the_same_batch_for_every_core(lowered):
    loop, state, batch = start(lowered, 1, same_batch=True)
    _, chunk = loop.run(state, [batch(1, 2)])
    assert np.asarray(chunk.outputs[0]).tolist() == [[1.5, 1.5]]


def test_a_chunk_is_bounded_in_steps_and_in_bytes(lowered, monkeypatch):
    assert start(lowered, 10**6)[0].most_steps == lowered_step._MOST_STEPS
    assert start(lowered, float("inf"))[0].most_steps == lowered_step._MOST_STEPS
    monkeypatch.setattr(lowered_step, "_MOST_BYTES", 40)  # The rows have 8 bytes, and the number 4.
    assert start(lowered, 10**6)[0].most_steps == 3
    monkeypatch.setattr(lowered_step, "_MOST_BYTES", 1)
    assert start(lowered, 10**6)[0].most_steps == 1
