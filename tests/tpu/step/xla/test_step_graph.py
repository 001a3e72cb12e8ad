"""A step's way from TF1 graph code to a program that several cores run."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy
from compiled_steps import compiled

from bert_estimator import tpu
from bert_estimator.tpu.program import devices
from bert_estimator.tpu.program.core_mesh import CoreMesh
from bert_estimator.tpu.step.xla import step_graph
from bert_estimator.tpu.step.xla.step_graph import StepGraph

pytestmark = pytest.mark.usefixtures("xla_runtime")

CORES = 2


def test_a_step_on_two_cores():
    """Each core gets two of the rows 1, 2, 3, 4; the state goes from step to step."""
    with tf.Graph().as_default() as graph, tf.Session() as session:
        program = StepGraph(CORES)
        rows = program.placeholder(tf.float32, [2])
        with program.building(), tf.variable_scope("scope"):
            tf.get_variable("unused", [3])
            weight = tf.get_variable("w", [2], initializer=tf.ones_initializer())
            count = tf.Variable(5, name="count", dtype=tf.int64, trainable=False)
            total = tpu.cross_replica_sum(rows)
            outputs = [total, tf.reshape(tpu.replica_id(), [1]), rows + weight]
            updates = tf.group(weight.assign_add(total), count.assign_add(2))
            assert tpu.num_replicas() == CORES
        lowered = program.lower(outputs, updates)
        # The variables are the session's with their names, and the program holds what it uses.
        names = [v.op.name for v in tf.global_variables()]
        assert names == ["scope/unused", "scope/w", "scope/count"]
        assert all(variable.graph is graph for variable in program.variables)
        assert {(v.name, v.shape, v.dtype, v.trainable) for v in lowered.state} == {
            ("scope/count", (), "int64", False),
            ("scope/w", (2,), "float32", True),
        }
        session.run(tf.global_variables_initializer())
        run = compiled(lowered, CoreMesh(devices.find(f"rehearse:{CORES}")))
        state = session.run(program.variables)
        for sums in ([2, 3, 4, 5], [6, 9, 8, 11]):
            values, state = run(state, [np.array([1, 2, 3, 4], np.float32)])
            assert [np.asarray(v).tolist() for v in values] == [[4, 6, 4, 6], [0, 1], sums]
    left = {v.op.name: np.asarray(s) for v, s in zip(program.variables, state, strict=True)}
    assert sorted(left) == ["scope/count", "scope/w"]
    assert left["scope/w"].tolist() == [9, 13]
    assert (left["scope/count"].dtype, left["scope/count"].tolist()) == (np.int64, 9)


def lower(function, cores=1):
    with tf.Graph().as_default():
        outside = tf.placeholder(tf.float32, [2], name="outside")
        program = StepGraph(cores)
        rows = program.placeholder(tf.float32, [2])
        with program.building():
            output = function(rows, outside)
        return program.lower([output], None)


def test_a_step_without_variables():
    lowered = lower(lambda rows, outside: rows * 2)
    (values, state) = compiled(lowered, CoreMesh(devices.find("rehearse:1")))(
        [], [np.array([1, 2], np.float32)]
    )
    assert np.asarray(values[0]).tolist() == [2, 4]
    assert state == []


def test_a_tensor_from_outside_that_the_step_does_not_need():
    def function(rows, outside):
        tf.identity(outside)
        return rows

    assert lower(function).state == []


@pytest.mark.parametrize("version", ["2.16.2", "2.18.1"])
def test_a_tensorflow_without_stablehlo(tmp_path, monkeypatch, version):
    called = []

    def input_fn(params):
        called.append(params)

    monkeypatch.setattr(tf, "__version__", version)
    message = rf"The XLA runtime needs TensorFlow 2\.19 or newer; this is {version}"
    with pytest.raises(RuntimeError, match=message):
        toy.make_estimator(tmp_path, master="rehearse:2").train(input_fn, steps=1)
    with pytest.raises(RuntimeError, match=message):
        toy.make_estimator(tmp_path).lower(toy.input_fn, 2)
    assert not called


def test_tensorflows_that_are_new_enough(monkeypatch):
    for version in ("2.19.0", "2.21.0-rc1", "3.0.0"):
        monkeypatch.setattr(tf, "__version__", version)
        step_graph.check_tensorflow()


def test_a_placeholder_of_the_session_s_graph_has_its_default_in_the_step():
    """Keras's learning phase is such a placeholder; here it is also read inside of a condition."""
    with tf.Graph().as_default(), tf.Session() as session:
        program = StepGraph(CORES)
        rows = program.placeholder(tf.float32, [2])
        phase = tf.placeholder_with_default(True, [], "phase")
        with program.building():
            two = tf.Variable(2.0)
            same = tf.cond(tf.constant(True), lambda: tf.logical_not(phase), lambda: phase)
            outputs = [tf.where(phase, rows, -rows) * two, tf.reshape(same, [1])]
        lowered = program.lower(outputs, None)
        session.run(tf.global_variables_initializer())
        run = compiled(lowered, CoreMesh(devices.find(f"rehearse:{CORES}")))
        state = session.run(program.variables)
        (doubled, negated), _ = run(state, [np.array([1, 2, 3, 4], np.float32)])
    np.testing.assert_array_equal(doubled, [2, 4, 6, 8])
    np.testing.assert_array_equal(negated, [False, False])


def test_a_default_that_is_not_constant_is_from_outside_of_the_step():
    with tf.Graph().as_default():
        program = StepGraph(CORES)
        given = tf.placeholder_with_default(tf.random.uniform([]), [], "given")
        with program.building():
            output = 2 * given
        with pytest.raises(RuntimeError, match=r"given:0 .* a tensor from outside of the step"):
            program.lower([output], None)


def test_a_variable_whose_shape_is_not_static_is_named():
    with tf.Graph().as_default():
        program = StepGraph(CORES)
        with program.building():
            value = tf.py_func(lambda: np.float32(1), [], tf.float32)
            output = tf.reshape(tf.Variable(value, name="odd"), [1])
        message = "The variable odd of model_fn has the shape <unknown>.* tf.ensure_shape"
        with pytest.raises(ValueError, match=message):
            program.lower([output], None)
