"""Tests `tf.tpu` across cores, as models with statistics of the whole batch use it."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from compiled_steps import compiled
from tensorflow.python.tpu import tpu_function

from bert_estimator import tpu
from bert_estimator.legacy import modules
from bert_estimator.tpu.program import devices
from bert_estimator.tpu.program.core_mesh import CoreMesh
from bert_estimator.tpu.replicas.replica import Replica
from bert_estimator.tpu.step.xla.step_graph import StepGraph

cross_replica_sum = modules.look_up("tensorflow.tpu", "cross_replica_sum")


def test_each_way_to_them_is_ours():
    tpu_ops = "tensorflow.contrib.tpu.python.ops.tpu_ops"
    assert modules.look_up(tpu_ops, "cross_replica_sum") is tpu.cross_replica_sum
    assert modules.look_up(tpu_ops, "all_to_all").__module__ == "tensorflow.python.tpu.ops.tpu_ops"
    for module in ("tensorflow.tpu", "tensorflow.contrib.tpu"):
        for name in ("CrossShardOptimizer", "cross_replica_sum", "outside_compilation"):
            assert modules.look_up(module, name) is getattr(tpu, name)


@pytest.mark.usefixtures("xla_runtime")
def test_the_gradient_of_a_sum_is_the_sum_of_gradients():
    """Returns the sum of x * (x - m) over all cores, with mean m, and its gradient 2 * (x - m)."""
    with tf.Graph().as_default():
        program = StepGraph(2)
        x = program.placeholder(tf.float32, [2])
        with program.building():
            shards = tpu_function.get_tpu_context().number_of_shards
            mean = cross_replica_sum(tf.reduce_mean(x), [[0, 1]], name="mean") / shards
            (gradient,) = tf.gradients(tf.reduce_sum(x * (x - mean)), x)
        lowered = program.lower([gradient], None)
    values = np.array([1, 2, 3, 6], np.float32)
    (result,), _ = compiled(lowered, CoreMesh(devices.find("rehearse:2")))([], [values])
    assert (shards, tpu_function.get_tpu_context().number_of_shards) == (2, None)
    np.testing.assert_allclose(result, 2 * (values - values.mean()))


def test_a_sum_has_the_name_it_is_given():
    with tf.Graph().as_default(), Replica(2, 0, lambda tensor: 2 * tensor).entered():
        total = cross_replica_sum(x=tf.constant(1.0), group_assignment=None, name="total")
        assert total.op.name == "total"
        assert cross_replica_sum(tf.constant(1.0), [[1, 0]]).op.name == "mul_1"


@pytest.mark.parametrize("groups", [[[0], [0]], [[0]], [[0, 1], []], [[0, 1, 2]]])
def test_groups_that_do_not_hold_each_replica_once_are_refused(groups):
    says = r"group_assignment=.* must have each of the 2 replicas, 0 to 1, in one group"
    with Replica(2, 0, None).entered(), pytest.raises(ValueError, match=says):
        cross_replica_sum(1.0, groups)
