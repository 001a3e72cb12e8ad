"""Tests which core holds which part, and that a replica's program runs on all its cores."""

import numpy as np
import pytest

from bert_estimator.tpu.program import devices
from bert_estimator.tpu.program.core_mesh import REPLICA, CoreMesh
from bert_estimator.tpu.program.lowered_step import StateVariable

pytestmark = pytest.mark.usefixtures("xla_runtime")

ROWS, COLUMNS = 4, 6
STATE = [
    StateVariable("layer/first/kernel", (COLUMNS, 8), "float32", True),
    StateVariable("layer/second/kernel", (8, COLUMNS), "float32", True),
    StateVariable("layer/second/kernel/adam_m", (8, COLUMNS), "float32", False),
    StateVariable("step", (), "int32", False),
]
RULES = [("first/kernel", 1), ("second/kernel", 0), ("step", 0)]


def mesh(cores, cores_per_replica, rules=RULES):
    return CoreMesh(devices.find(f"rehearse:{cores}"), cores_per_replica, rules)


@pytest.mark.parametrize(
    ("cores", "cores_per_replica", "shapes"),
    [
        (4, 1, [(6, 8), (8, 6), (8, 6), ()]),
        (4, 2, [(6, 4), (4, 6), (4, 6), ()]),
        (4, 4, [(6, 2), (2, 6), (2, 6), ()]),
    ],
)
def test_each_core_holds_its_part_of_the_state(cores, cores_per_replica, shapes):
    laid_out = mesh(cores, cores_per_replica)
    assert laid_out.num_replicas == cores // cores_per_replica
    found = [
        sharding.shard_shape(variable.shape)
        for sharding, variable in zip(laid_out.of_state(STATE), STATE, strict=True)
    ]
    assert found == shapes


@pytest.mark.parametrize("rules", [[("kernel", 0)], [("first", 0), ("kernel", 0)]])
def test_a_variable_that_cannot_be_split_evenly(rules):
    with pytest.raises(
        ValueError, match=r"num_cores_per_replica=4: layer/first/kernel of shape \(6, 8\) .* axis 0"
    ):
        mesh(4, 4, rules).of_state(STATE)


@pytest.mark.parametrize(
    ("rules", "shape"),
    [
        ([("kernel", 0), ("kernel", 1)], (6, 2)),
        ([("kernel", 0), ("kernel", None)], (6, 8)),
        ([("kernel", None), ("kernel", 1)], (6, 8)),
        ([("kernel", 0), ("first", 1), ("kernel", None)], (6, 2)),
    ],
)
def test_the_next_rule_counts_if_an_axis_cannot_be_split(rules, shape):
    (found,) = mesh(4, 4, rules).of_state(STATE[:1])
    assert found.shard_shape(STATE[0].shape) == shape


@pytest.mark.parametrize("cores_per_replica", [1, 2, 4])
def test_a_program_of_one_replica_on_all_cores(cores_per_replica):
    random = np.random.RandomState(0)
    jax = devices.import_jax()
    first, second = random.randn(COLUMNS, 8).astype("f"), random.randn(8, COLUMNS).astype("f")
    laid_out = mesh(4, cores_per_replica)
    rows = random.randn(laid_out.num_replicas * ROWS, COLUMNS).astype("f")

    def program(state, factor, x):
        first, second, *rest = state
        assert x.shape == (ROWS, COLUMNS)
        y = jax.numpy.tanh(x @ first) @ second * factor
        return [first + 1, jax.lax.psum(y, REPLICA).sum() * second, *rest], y

    run = laid_out.jit(program, STATE, inputs=[None, 0], outputs=[0])
    state = [first, second, np.zeros_like(second), np.int32(7)]
    placed = jax.device_put(state, laid_out.of_state(STATE))
    (found_first, found_second, _, step), y = run(placed, np.float32(2), rows)
    expected = np.tanh(rows.astype("d") @ first) @ second * 2
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found_first, first + 1)
    np.testing.assert_allclose(found_second, expected.sum() * second, rtol=1e-3)
    assert int(step) == 7
    assert placed[0].is_deleted()  # donated
