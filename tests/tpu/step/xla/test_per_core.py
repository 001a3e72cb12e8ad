"""Variables that have another value on each core, as a mesh's weights."""

import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import toy
from compiled_steps import compiled
from tensorflow.python.tpu.ops import tpu_ops

from bert_estimator import tpu
from bert_estimator.tpu.program import devices
from bert_estimator.tpu.program.core_mesh import CoreMesh
from bert_estimator.tpu.replicas import replica
from bert_estimator.tpu.step.xla import xla_step
from bert_estimator.tpu.step.xla.step_graph import StepGraph

pytestmark = pytest.mark.usefixtures("xla_runtime")


def replicated_handle(name, slices):
    """Returns the handle, as mesh-tensorflow gets it."""
    context = replica.model_graph()._get_control_flow_context()
    return context.get_replicated_var_handle(name=name, vars_=slices)


def read(handle, dtype=tf.float32):
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)


class Slices(tf.train.SessionRunHook):
    """Sets the slices at the start, as mesh-tensorflow's hooks do, and notes them at the end."""

    def __init__(self, slices, values):
        self._slices, self._values = slices, values

    def begin(self):
        pairs = zip(self._slices, self._values, strict=True)
        self._set = [tf.assign(variable, value) for variable, value in pairs]

    def after_create_session(self, session, coord):
        session.run(self._set)

    def end(self, session):
        self.at_end = session.run(self._slices)


@pytest.mark.parametrize("cores", [2, 4])
@pytest.mark.parametrize("shape", [(), (3, 2)], ids=str)
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.int32], ids=str)
def test_each_core_trains_its_own_slice(tmp_path, cores, shape, dtype):
    first = np.arange(cores * int(np.prod(shape))).reshape(cores, *shape)
    hooks = []

    def model_fn(features, mode, params):
        with tf.init_scope():  # in the session's graph
            zeros = tf.zeros(shape, dtype)
            slices = [
                tf.Variable(zeros, name=f"w_slice_{i}", collections=["TPU_VAR"], use_resource=True)
                for i in range(cores)
            ]
        hooks.append(Slices(slices, first.astype(np.float32)))
        handle = replicated_handle("w", slices)
        assert handle is replicated_handle("w", slices)
        number = tpu_ops.tpu_replicated_input([10 * i for i in range(cores)])
        value = read(handle, dtype)
        with tf.control_dependencies([value]):
            update = tf.raw_ops.AssignVariableOp(
                resource=handle, value=value + tf.cast(number, dtype)
            )
        loss = tf.reduce_sum(tf.cast(value, tf.float32))
        step = tf.train.get_global_step().assign_add(1)
        return tpu.TPUEstimatorSpec(
            mode, loss=loss, train_op=tf.group(update, step), training_hooks=hooks[-1:]
        )

    estimator = toy.make_estimator(
        tmp_path,
        model_fn,
        master=f"rehearse:{cores}",
        iterations_per_loop=2,
        per_host_input_for_training=tpu.InputPipelineConfig.BROADCAST,
    )
    estimator.train(toy.input_fn, steps=3)
    tens = 3 * 10 * np.arange(cores).reshape(cores, *[1] * len(shape))
    np.testing.assert_array_equal(np.stack(hooks[0].at_end).astype(np.float32), first + tens)
    names = [name for name, _ in tf.train.list_variables(str(tmp_path))]
    assert names == ["global_step"]  # The program copies its slices to the variables that it saves.


def test_a_slice_is_read_in_conditions_and_loops():
    with tf.Graph().as_default(), tf.Session() as session:
        slices = [tf.Variable(float(i + 1), use_resource=True) for i in range(2)]
        step = StepGraph(2)
        with step.building():
            handle = replicated_handle("w", slices)
            condition = tf.cond(read(handle) > 1, lambda: read(handle), lambda: -read(handle))
            loop = tf.while_loop(
                lambda i, _: i < 3, lambda i, y: (i + 1, y * read(handle)), (0, 1.0)
            )
            outputs = [tf.reshape(condition, [1]), tf.reshape(loop[1], [1])]
        lowered = step.lower(outputs, None)
        session.run([variable.initializer for variable in slices])
        state = session.run(step.variables)
    results, _ = compiled(lowered, CoreMesh(devices.find("rehearse:2")))(state, [])
    np.testing.assert_array_equal(results, [[-1, 2], [1, 8]])


def test_a_slice_of_an_exported_program():
    with tf.Graph().as_default():
        step = StepGraph(1)
        with step.building():
            handle = replicated_handle("w", [tf.Variable(3.0, use_resource=True)])
            value = read(handle)
            with tf.control_dependencies([value]):
                update = tf.raw_ops.AssignVariableOp(resource=handle, value=value + 1)
        lowered = step.lower([tf.reshape(value, [1])], update)
    exported = lowered.exported(CoreMesh(devices.find("rehearse:1")), [])
    (name,) = (variable.name for variable in lowered.state)
    state, (output,) = exported.call({name: np.array([3.0], np.float32)}, {})
    assert (state[name].tolist(), output.tolist()) == ([4], [3])


def test_a_mesh_of_several_hosts_is_refused():
    """Each host would have to bring the slices of the others."""
    job = types.SimpleNamespace(hosts=types.SimpleNamespace(number=2), mode="eval", num_replicas=4)
    model = object.__new__(xla_step.CoreModel)
    model._job, model.graph = job, types.SimpleNamespace(is_mesh=True, has_sums=False)
    with pytest.raises(ValueError, match=r"over the cores of 2 hosts.*Only the cores of one host"):
        model._check_exchanges()
    job.hosts.number, job.mode = 1, "train"
    model._check_exchanges()


@pytest.mark.parametrize(("number", "cores_per_replica"), [(3, 1), (2, 2)])
def test_a_mesh_of_another_size(number, cores_per_replica):
    with tf.Graph().as_default():
        slices = [tf.Variable(0.0, use_resource=True) for _ in range(number)]
        message = rf"w has {number} slices, but the model runs on 2 replicas of {cores_per_replica}"
        step = StepGraph(2, cores_per_replica)
        with pytest.raises(ValueError, match=message), step.building():
            replicated_handle("w", slices)
