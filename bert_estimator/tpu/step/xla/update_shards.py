"""Exchanges between the cores of a step, and the update of the weights, which cores share.

Each core of a host updates a part of the weights. It holds only its part of a weight and of its
slots, and only a step that uses the whole weight gathers it from the cores, when it starts. The
sums of gradients come in two stages if there are several hosts: within each host, each core gets
its part of the host's sum; then the cores of all hosts that have the same part sum it. So a host
has all parts, and writes checkpoints alone.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.core.framework import function_pb2
from tensorflow.python.framework import tensor_util

from bert_estimator.graph import graph_walk
from bert_estimator.graph.variable_uses import Functions, functions_of
from bert_estimator.tpu.program import stablehlo
from bert_estimator.tpu.step.xla import session_tensors


class Collectives:
    """Builds the exchanges between a step's replicas, whose cores have consecutive numbers."""

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
        """Returns the tensor, of static shape, of the replica that sends to this one by `pairs` of
        [sender, receiver]; zeros if none does."""
        self._check_one_core("collective_permute")
        if not pairs:
            return tf.zeros_like(tensor)
        return called(tensor, stablehlo.PERMUTE, pairs, tensor.shape.as_list())

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
        return called(tensor, stablehlo.ALL_TO_ALL, rows, shape)

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
    """Returns the result, of a shape, of a call that `program/stablehlo.py` replaces."""
    (result,) = gen_xla_ops.xla_custom_call_v2(
        [tensor],
        call_target_name=name,
        backend_config=stablehlo.config_of(rows),
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
    rows = stablehlo.rows_of(op.get_attr("backend_config").decode())
    if name == stablehlo.PERMUTE:
        back = [[receives, sends] for sends, receives in rows]
    elif name == stablehlo.ALL_TO_ALL:
        (split, concatenated), *groups = rows
        back = [[concatenated, split], *groups]
    else:
        raise LookupError(f"{op.name}: the call {name} has no gradient")
    return called(gradient, name, back, op.inputs[0].shape.as_list())


# A smaller variable takes less time to update than the cores take to exchange its parts.
_LEAST_ELEMENTS = 2**12

# A TPU keeps matrices in tiles of 8 x 128; a part that is not made of whole tiles wastes memory.
_TILE = {-2: 8, -1: 128}


class UpdateShards:
    """Builds what an update needs of the `number` replicas, which follow each other, that share it;
    replica_id is this core's, an int32 tensor [1]."""

    def __init__(self, graph: tf.Graph, num_replicas: int, number: int, replica_id: tf.Tensor):
        self._graph = graph
        self._number = number
        self._replica_id = replica_id
        self._functions = Functions(function_pb2.FunctionDefLibrary())
        starts = range(0, num_replicas, number)
        # The groups that share an update, and the groups that have the same part.
        self._sharing = [list(range(start, start + number)) for start in starts]
        self._same_part = [[start + place for start in starts] for place in range(number)]
        self.held = {}  # name of the placeholder of a variable's handle -> the core's `HeldPart`

    def axis_of(self, variable: tf.Variable) -> int | None:
        """Returns the axis along which a variable is divided; None if all cores update it whole."""
        sizes = variable.shape.as_list()
        # It is small, or of the old kind.
        if math.prod(sizes) < _LEAST_ELEMENTS or not hasattr(variable, "handle"):
            return None
        # An update in a branch or a loop may run several times, or never.
        if tf.get_default_graph() is not self._graph:
            return None
        handle = self._graph.capture(variable.handle)
        # It is written to before its update, or this is its second update in a step: between
        # several updates, operations may use the whole variable.
        if handle.op.name in self.held or any(itertools.starmap(self._may_write, _uses(handle))):
            return None
        divisible = [axis for axis, size in enumerate(sizes) if size % self._number == 0]

        def wastes(axis):
            return sizes[axis] // self._number % _TILE.get(axis - len(sizes), 1) != 0

        return min(divisible, key=wastes, default=None)

    def _may_write(self, operation, handle):
        """Returns whether an operation may write to the variable whose handle it takes."""
        node = operation.node_def
        if {each.name for each in functions_of(node)} - self._functions.by_name.keys():
            self._functions = Functions(self._graph.as_graph_def().library)
        positions = [i for i, tensor in enumerate(operation.inputs) if tensor is handle]
        return any(self._functions.writes(node, position) for position in positions)

    def sum_part(self, tensor: tf.Tensor, axis: int) -> tf.Tensor:
        """Sums a tensor over all replicas; returns this core's part of the sum."""
        # Within each host first; then only parts go over the slower connection between hosts.
        part = gen_xla_ops.xla_reduce_scatter(
            tensor, tf.constant(self._sharing), tf.constant(axis), reduce_op="Add"
        )
        return part if len(self._sharing) == 1 else summed(part, self._same_part)

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        """Returns the sum of the tensors of the cores that share the update."""
        return summed(tensor, self._sharing)

    def hold_part(self, variable: tf.Variable, axis: int) -> "HeldPart":
        """Makes this core hold only its part of a variable; returns the part as a variable."""
        name = self._graph.capture(variable.handle).op.name
        if name not in self.held:
            sizes = variable.shape.as_list()
            sizes[axis] //= self._number
            dtype = variable.dtype.base_dtype
            shape = tf.TensorShape(sizes)
            with self._graph.as_default():
                handle = session_tensors.handle(f"{variable.op.name}/part", shape, dtype)
            self.held[name] = HeldPart(handle, dtype, shape, axis)
        return self.held[name]

    def complete(self, present: Iterable[tf.Operation]) -> list[tf.Operation]:
        """Makes uses of a whole variable after the update of its part wait for the whole new value,
        and the part get what they write; returns operations that must run in each step, too."""
        present, added = set(present), []
        for name, part in self.held.items():
            if present.isdisjoint(part.assigned):
                continue  # The step does not run this update, and uses the whole variable alone.
            handle = self._graph.get_operation_by_name(name).outputs[0]
            uses = [use for use in _uses(handle) if use[0] in present]
            after = set(graph_walk.all_after(part.assigned))
            writers = [use[0] for use in uses if self._may_write(*use)]
            late = [use[0] for use in uses if use[0] in after or use[0] in writers]
            if not late:
                continue
            with self._graph.as_default():
                with tf.control_dependencies(part.assigned):
                    whole = self._whole(part)
                with tf.control_dependencies([whole]):
                    written = tf.raw_ops.AssignVariableOp(resource=handle, value=whole)
                # A read that came before the update in the graph has the old value, as it should.
                for each in late:
                    each._add_control_input(written)
                if writers:
                    with tf.control_dependencies(writers):
                        added.append(part.assign(self._part_of(_read(handle, part.dtype), part)))
        return added

    def _whole(self, part):
        """Returns the whole value that the parts of all cores make."""
        value = _read(part.handle, part.dtype)
        shape = part.shape.as_list()
        shape[part.axis] *= self._number
        return called(value, stablehlo.ALL_GATHER, [[part.axis], *self._sharing], shape)

    def _part_of(self, whole, part):
        sizes = part.shape.as_list()
        place = tf.math.floormod(tf.reshape(self._replica_id, []), self._number)
        begin = [place * size if axis == part.axis else 0 for axis, size in enumerate(sizes)]
        return tf.slice(whole, tf.stack(begin), sizes)


@dataclasses.dataclass(frozen=True)
class HeldPart:
    """Holds the part of a variable that a core holds, with what an update needs of a variable."""

    handle: tf.Tensor  # a placeholder of the step's graph
    dtype: tf.DType
    shape: tf.TensorShape
    axis: int  # along which the variable is divided
    assigned: list[tf.Operation] = dataclasses.field(default_factory=list)

    def assign(self, value: tf.Tensor, read_value: bool = False) -> tf.Operation:
        assert not read_value
        self.assigned.append(tf.raw_ops.AssignVariableOp(resource=self.handle, value=value))
        return self.assigned[-1]


def _uses(handle):
    """Yields (operation, input of it) for each operation that takes a variable's handle."""
    waiting = [handle]
    while waiting:
        taken = waiting.pop()
        for operation in taken.consumers():
            if operation.type != "Identity":
                yield operation, taken
            if operation.type in ("Identity", "StatelessWhile", "While"):
                # Their outputs are their inputs.
                places = [i for i, tensor in enumerate(operation.inputs) if tensor is taken]
                waiting += [operation.outputs[i] for i in places]


def _read(handle, dtype):
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
