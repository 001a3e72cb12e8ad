"""Builds the operations by which the replicas of a step on cores exchange tensors."""

from collections.abc import Iterable

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.framework import tensor_util

from bert_estimator.tpu.program import collective_calls


class Collectives:
    """Builds the exchanges between a step's replicas; their cores have consecutive numbers.

    Args:
      num_replicas: number of replicas.
      cores_per_replica: number of cores that share the model of a replica, as in `CoreMesh`.
    """

    def __init__(self, num_replicas: int, cores_per_replica: int):
        self._everyone = [list(range(num_replicas))]
        self._cores = cores_per_replica

    def sum(self, tensor: tf.Tensor, groups: list[list[int]] | None = None) -> tf.Tensor:
        """Returns the sum of the tensors of each group of replicas; None means of all."""
        # The n-th cores of the replicas sum with each other.
        groups = [
            [replica * self._cores + place for replica in group]
            for group in groups or self._everyone
            for place in range(self._cores)
        ]
        return summed(tensor, groups)

    def permute(self, tensor: tf.Tensor, pairs: list[list[int]]) -> tf.Tensor:
        """Returns the tensor of the replica that is paired with this one; zeros if none is.

        Args:
          tensor: of static shape.
          pairs: list of [replica that sends, replica that receives].
        """
        self._check_one_core("collective_permute")
        if not pairs:
            return tf.zeros_like(tensor)
        return called(tensor, collective_calls.PERMUTE, pairs, tensor.shape.as_list())

    def all_to_all(
        self, tensor: tf.Tensor, split: int, concatenated: int, groups: list[list[int]]
    ) -> tf.Tensor:
        """Splits the tensor along an axis, a part for each replica of the group, and concatenates
        the parts that this replica gets along another axis."""
        self._check_one_core("all_to_all")
        shape = tensor.shape.as_list()
        shape[split] //= len(groups[0])
        shape[concatenated] *= len(groups[0])
        rows = [[split, concatenated], *groups]
        return called(tensor, collective_calls.ALL_TO_ALL, rows, shape)

    def _check_one_core(self, name):
        if self._cores > 1:
            raise ValueError(
                f"{name} with num_cores_per_replica={self._cores} is not supported: exchange "
                "tensors by bert_estimator.tpu.cross_replica_sum, or take one core per replica"
            )


def summed(tensor: tf.Tensor, groups: list[list[int]]) -> tf.Tensor:
    """Returns the sum of the tensors of each group of cores."""
    # The mode should be CrossReplicaAndPartition, since the groups span partitions, too. But with
    # it TensorFlow 2.19 cannot write a program in which one sum depends on another. So `_mend` of
    # `program/stablehlo.py` adds the attributes that make the groups span partitions.
    return gen_xla_ops.xla_all_reduce(
        tensor, tf.constant(groups, tf.int32), reduce_op="Add", mode="CrossReplica"
    )


def called(
    tensor: tf.Tensor, name: str, rows: Iterable[Iterable[int]], shape: list[int]
) -> tf.Tensor:
    """Returns the result, of a shape, of a call that `program/collective_calls.py` replaces."""
    (result,) = gen_xla_ops.xla_custom_call_v2(
        [tensor],
        call_target_name=name,
        backend_config=collective_calls.config_of(rows),
        has_side_effect=False,
        result_dtypes=[tensor.dtype],
        result_shapes=[tf.TensorShape(shape)],
    )
    return result


@tf.RegisterGradient("XlaAllReduce")
def _gradient_of_sum(op, gradient):
    if op.get_attr("reduce_op") != b"Add":
        raise LookupError(f"{op.name}: only the sum over replicas has a gradient")
    # A constant of the gradient's own graph: in a loop, the compiler would not know it otherwise.
    groups = tensor_util.constant_value(op.inputs[1])
    return summed(gradient, np.asarray(groups).tolist()), None


@tf.RegisterGradient("XlaCustomCallV2")
def _gradient_of_call(op, gradient):
    name = op.get_attr("call_target_name").decode()
    rows = collective_calls.rows_of(op.get_attr("backend_config").decode())
    if name == collective_calls.PERMUTE:
        back = [[receives, sends] for sends, receives in rows]
    elif name == collective_calls.ALL_TO_ALL:
        (split, concatenated), *groups = rows
        back = [[concatenated, split], *groups]
    else:
        raise LookupError(f"{op.name}: the call {name} has no gradient")
    return called(gradient, name, back, op.inputs[0].shape.as_list())
