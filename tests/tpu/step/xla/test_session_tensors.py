"""What a step on cores takes from the session's graph."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from compiled_steps import compiled

from bert_estimator.tpu.program import devices
from bert_estimator.tpu.program.core_mesh import CoreMesh
from bert_estimator.tpu.step.xla.step_graph import StepGraph

pytestmark = pytest.mark.usefixtures("xla_runtime")


def waiting_for_a_handle(step):
    with tf.control_dependencies([step.handle.op]):
        return tf.constant(2.0)


def lowered(function):
    """Returns what a tensor, a function of the global step, is in three steps on two cores."""
    with tf.Graph().as_default(), tf.Session() as session:
        step = StepGraph(2)
        with tf.variable_scope(tf.get_variable_scope(), use_resource=True):
            count = tf.train.create_global_step()
        outside = function(count)
        with step.building():
            output = tf.cast(outside, tf.float32)
            with tf.control_dependencies(list(output.op.inputs)):  # It waits for it as well.
                output = tf.reshape(output, [1])
            update = count.assign_add(1)
        program = step.lower([output], update)
        session.run(tf.global_variables_initializer())
        state = session.run(step.variables)
    run, results = compiled(program, CoreMesh(devices.find("rehearse:2"))), []
    for _ in range(3):
        (result,), state = run(state, [])
        results.append(np.asarray(result).tolist())
    return results


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (lambda step: tf.constant(3.0) * 2, [6, 6, 6]),
        (lambda step: tf.cast(step.read_value(), tf.float32) / 2, [0, 0.5, 1]),
        (lambda step: tf.train.polynomial_decay(1.0, step, 4, 0.0), [1, 0.75, 0.5]),
        (lambda step: tf.cond(tf.equal(step, 1), lambda: step * 7, lambda: step), [0, 7, 2]),
        (lambda step: tf.train.piecewise_constant(step, [0, 1], [5.0, 6.0, 7.0]), [5, 6, 7]),
        (waiting_for_a_handle, [2, 2, 2]),
    ],
    ids=["constant", "read", "schedule", "condition", "pieces", "handle"],
)
def test_a_step_computes_what_depends_on_constants_and_variables_alone(function, want):
    """As a learning rate that mesh-tensorflow makes in the session's graph."""

    assert lowered(function) == [[value, value] for value in want]


@pytest.mark.parametrize(
    "function",
    [
        lambda step: tf.random.uniform([], name="outside"),
        lambda step: tf.placeholder(tf.float32, [], name="outside"),
        lambda step: tf.identity(tf.py_func(lambda: np.float32(1), [], tf.float32), name="outside"),
        lambda step: tf.py_func(
            lambda: np.float32(1), [], tf.float32, stateful=False, name="outside"
        ),
        lambda step: tf.strings.length(tf.read_file("name"), name="outside"),
    ],
    ids=["random", "placeholder", "python", "stateless python", "file"],
)
def test_other_tensors_from_outside_are_refused(function):
    with pytest.raises(
        RuntimeError, match=r"model_fn uses outside\S* in .*, a tensor from outside"
    ):
        lowered(function)
