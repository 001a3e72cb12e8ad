"""What programs of mesh-tensorflow are told about the cores."""

import sys
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.tpu.replicas import meshes


@pytest.mark.parametrize(
    ("replicas", "hosts", "shape"),
    [
        (1, 1, [1, 1, 1, 1]),
        (2, 1, [1, 1, 1, 2]),
        (3, 1, [3, 1, 1, 1]),
        (6, 1, [3, 1, 1, 2]),
        (8, 1, [2, 2, 1, 2]),
        (32, 4, [4, 4, 1, 2]),
    ],
)
def test_the_layout_of_the_cores(replicas, hosts, shape):
    assignment = meshes.CoreAssignment(replicas, hosts)
    assert assignment.num_replicas == replicas
    assert assignment.num_cores_per_replica == 1
    assert assignment.topology.mesh_shape.tolist() == shape
    assert assignment.topology.num_tasks == hosts
    coordinates = [tuple(assignment.coordinates(replica, 0)) for replica in range(replicas)]
    assert coordinates == list(np.ndindex(*shape))
    a_host = replicas // hosts
    assert [assignment.tpu_ordinal(replica) for replica in range(a_host)] == list(range(a_host))
    assert {assignment.tpu_device(replica) for replica in range(replicas)} == {""}
    assert {assignment.host_device(replica) for replica in range(replicas)} == {"/device:CPU:0"}


# As mesh-tensorflow has it.
UTILS = """
import contextlib
from tensorflow.python.framework import ops

@contextlib.contextmanager
def outside_all_rewrites():
    with ops.control_dependencies(None):
        yield
"""


def test_the_block_outside_of_rewrites_builds_in_the_session_s_graph(monkeypatch):
    utils = types.ModuleType("mesh_tensorflow.utils")
    exec(UTILS, vars(utils))
    monkeypatch.setitem(sys.modules, "mesh_tensorflow.utils", utils)
    outside = utils.outside_all_rewrites
    session_graph, step = tf.Graph(), tf.Graph()
    with session_graph.as_default(), step.as_default(), tf.variable_scope("model"):
        with meshes.outside_rewrites(session_graph), outside():
            variable = tf.get_variable("w", [2])
            inner = tf.constant(1)
        with pytest.raises(ZeroDivisionError), meshes.outside_rewrites(session_graph):
            assert tf.constant(2).graph is step
            raise ZeroDivisionError
        with outside():
            assert tf.constant(3).graph is step  # as without a runtime of cores
    assert variable.graph is inner.graph is session_graph
    assert variable.op.name == "model/w"
    assert hasattr(variable, "handle")


def test_without_mesh_tensorflow_there_is_nothing_to_replace(monkeypatch):
    monkeypatch.delitem(sys.modules, "mesh_tensorflow.utils", raising=False)
    step = tf.Graph()
    with step.as_default(), meshes.outside_rewrites(tf.Graph()), tf.control_dependencies(None):
        assert tf.constant(1).graph is step
