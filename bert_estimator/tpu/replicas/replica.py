"""Functions that a `model_fn` may call across the cores that run it.

A runtime with several replicas enters a `Replica` while it builds the model. Otherwise the program
is the only replica: then the number of replicas is 1, and a sum over replicas is the tensor itself.

`CrossShardOptimizer` sums gradients over the cores before an optimizer applies them.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.framework import smart_cond
from tensorflow.python.tpu import tpu_function

# Groups of replicas: lists of their numbers, or a constant tensor.
Groups = list[list[int]] | tf.Tensor

_current = threading.local()
_CORE = "TPU_REPLICATED_CORE"  # the type of the devices that `tf.tpu.core` names


class Replica:
    """Tells a replica about the others while a model is built."""

    def __init__(
        self,
        num_replicas: int,
        replica_id: int | tf.Tensor,  # int32 []
        # A function of a tensor, and perhaps of groups, over each of which it sums.
        cross_replica_sum: Callable[..., tf.Tensor],
        # It gets what an `outside_compilation` builds; None: this runs where the others do.
        run_on_host: Callable[[list[tf.Operation]], None] | None = None,
        # An `update_shards.UpdateShards`; None if each replica updates all of the weights.
        update_shards: Any = None,
        # An `update_shards.Collectives`; None if there is one replica.
        collectives: Any = None,
    ):
        self.num_replicas = num_replicas
        self.replica_id = replica_id
        self.cross_replica_sum = cross_replica_sum
        self.run_on_host = run_on_host
        self.update_shards = update_shards
        self.collectives = collectives
        self.builds_for_host = False  # while an `outside_compilation` is built

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        previous, _current.value = getattr(_current, "value", None), self
        # Models of TF1 ask TensorFlow itself for the number of replicas.
        context = tpu_function.get_tpu_context()
        previous_number = context.number_of_shards
        context.set_number_of_shards(self.num_replicas)
        try:
            yield
        finally:
            _current.value = previous
            context.set_number_of_shards(previous_number)


_ONLY = Replica(1, 0, lambda tensor: tensor)


def num_replicas() -> int:
    """Returns how many replicas run the model that is being built."""
    return _replica().num_replicas


def replica_id() -> int | tf.Tensor:
    """Returns the number of the replica that runs this code: 0, or an int32 scalar tensor."""
    return _replica().replica_id


def model_graph() -> tf.Graph:
    """Returns the graph that the model is built in: the default graph, or the step's."""
    # They differ where a model_fn builds what the session runs; see `meshes.outside_rewrites`.
    number = replica_id()
    return number.graph if isinstance(number, tf.Tensor) else tf.get_default_graph()


def builds_for_host() -> bool:
    """Returns whether what is being built runs on the host, apart from the replica's core."""
    return _replica().builds_for_host


def update_shards() -> Any:
    """Returns the `UpdateShards` of this replica; None if it updates all weights by itself."""
    return _replica().update_shards


def cross_replica_sum(
    x: tf.Tensor, group_assignment: Groups | None = None, name: str | None = None
) -> tf.Tensor:
    """Sums a tensor over all replicas, or over each group of them; every replica gets its sum.

    The gradient is the sum of the replicas' gradients, as in upstream's function.

    Args:
      x: a tensor of any shape and numeric dtype; the sum has both.
      group_assignment: groups of replicas, as lists or a constant tensor [groups, size of a group];
        every replica is in one of them. None is one group of all.
      name: the name of the operation whose output is the sum.

    Raises:
      ValueError: group_assignment is something else.
    """
    groups = groups_of(group_assignment, "cross_replica_sum")
    if len(groups) == 1:
        total = _replica().cross_replica_sum(x)
    # Each replica is alone in its group.
    elif len(groups) == num_replicas():
        total = tf.identity(x)
    else:
        total = _replica().cross_replica_sum(x, groups)
    return total if name is None else tf.identity(total, name)


def groups_of(group_assignment: Groups | None, caller: str) -> list[list[int]]:
    """Returns the groups that a group_assignment means: of equal size, each replica in one; errors
    name the caller."""
    if group_assignment is None:
        return [list(range(num_replicas()))]
    groups = _constant(group_assignment, f"{caller}: group_assignment")
    everyone = sorted(replica for group in groups for replica in group)
    if everyone != list(range(num_replicas())) or len({len(group) for group in groups}) > 1:
        raise ValueError(
            f"{caller}: group_assignment={groups!r} must have each of the {num_replicas()} "
            f"replicas, 0 to {num_replicas() - 1}, in one group, and groups of one size"
        )
    return groups


def collective_permute(x: tf.Tensor, source_target_pairs: Any) -> tf.Tensor:
    """Sends tensors of static shape between (sending, receiving) pairs of replicas, as upstream's
    operation of this name; a replica that does not receive any gets zeros."""
    pairs = _constant(source_target_pairs, "collective_permute: source_target_pairs")
    # No pairs are two empty columns.
    columns = list(zip(*pairs, strict=True)) or [(), ()]
    if len(columns) != 2 or any(
        len(set(column)) < len(column) or not set(column) <= set(range(num_replicas()))
        for column in columns
    ):
        raise ValueError(
            f"collective_permute: source_target_pairs={pairs!r} must be pairs of the replicas 0 to "
            f"{num_replicas() - 1}, in which each sends at most once and receives at most once"
        )
    if num_replicas() == 1:
        return tf.identity(x) if pairs else tf.zeros_like(x)
    return _replica().collectives.permute(x, pairs)


def all_to_all(
    x: tf.Tensor,
    concat_dimension: int,
    split_dimension: int,
    split_count: int,
    group_assignment: Groups | None = None,
) -> tf.Tensor:
    """Splits a tensor of static shape along one axis, and exchanges the parts in each group, as
    upstream's operation; the received parts are concatenated along `concat_dimension`."""
    groups, sizes = groups_of(group_assignment, "all_to_all"), x.shape.as_list()
    if split_count != len(groups[0]) or sizes[split_dimension] % split_count:
        raise ValueError(
            f"all_to_all: split_count={split_count} must be the size of a group, {len(groups[0])}, "
            f"and divide the size of axis {split_dimension} of {x.name}, {sizes[split_dimension]}"
        )
    if split_count == 1:
        return tf.identity(x)
    collectives = _replica().collectives
    return collectives.all_to_all(x, split_dimension, concat_dimension, groups)


def of_this_replica(values: Sequence[Any]) -> tf.Tensor:
    """Returns this replica's value, from tensors or constants of one shape and dtype that are given
    for all replicas."""
    this = _replica()
    if len(values) != this.num_replicas:
        raise ValueError(
            f"TPUReplicatedInput: {len(values)} inputs for the {this.num_replicas} replicas that "
            "run this model; give one for each"
        )
    if any(isinstance(value, tf.Tensor) and value.dtype == tf.resource for value in values):
        raise ValueError(
            "TPUReplicatedInput: the inputs are handles of variables. Get the handle by the "
            "get_replicated_var_handle of the control flow context, as mesh-tensorflow does"
        )
    if not isinstance(this.replica_id, tf.Tensor):
        return tf.convert_to_tensor(values[this.replica_id])
    # A program may ask for it within a loop, or among what the session runs, and use it elsewhere.
    with this.replica_id.graph.as_default(), tf.control_dependencies(None):
        return tf.gather(tf.stack(list(values)), this.replica_id)


def outside_compilation(computation: Callable, *args: Any, **kwargs: Any) -> Any:
    """Builds a part of a model that runs on the host: Python functions, prints, summaries.

    With use_tpu=True these run after each step, once for each core, with the core's tensors. Their
    results cannot be used in the step on cores. With use_tpu=False this only calls `computation`.

    Args:
      computation: function of args and kwargs.

    Returns:
      What `computation` returned.
    """
    graph = tf.get_default_graph()
    # What the computation builds is found by name, since it may build anything in the graph.
    before = {operation.name for operation in graph.get_operations()}
    this = _replica()
    outer, this.builds_for_host = this.builds_for_host, this.run_on_host is not None
    try:
        returned = computation(*args, **kwargs)
    finally:
        this.builds_for_host = outer
    if this.run_on_host is not None:
        this.run_on_host([each for each in graph.get_operations() if each.name not in before])
    return returned


def place_on_cores(cores_per_replica: int) -> Callable[[tf.Operation], str]:
    """Returns the function for `tf.device` that places a model's operations under TPU rules; it
    raises ValueError if an operation is assigned to one of a replica's several cores."""

    def device_of(operation):
        if _CORE not in operation.device:
            return operation.device
        device = tf.DeviceSpec.from_string(operation.device)
        if cores_per_replica > 1:
            raise ValueError(
                f"{operation.name}: tf.device(tf.tpu.core({device.device_index})) cannot assign "
                f"operations to cores with num_cores_per_replica={cores_per_replica}: the compiler "
                "divides the work by where the variables are. Take the device out, and say by "
                "TPUEstimator(sharding=...) how the variables are split over the cores"
            )
        # With one core per replica, `tf.device(tf.tpu.core(i))` has no effect: there is one core.
        return device.replace(device_type=None, device_index=None).to_string()

    return device_of


def _constant(numbers, what):
    """Returns a matrix of integers, given as lists or as a constant tensor, as lists."""
    if isinstance(numbers, tf.Tensor):
        numbers = smart_cond.smart_constant_value(numbers)
        if numbers is None:
            raise ValueError(f"{what} must be a constant: the exchanges of a step are fixed")
    return [[int(number) for number in row] for row in numbers]


def _replica():
    return getattr(_current, "value", None) or _ONLY


class CrossShardOptimizer(tf.train.Optimizer):
    """Wraps an optimizer so that all cores apply the sum of their gradients.

    It behaves like `tf.compat.v1.tpu.CrossShardOptimizer`, but it runs everywhere. On one core it
    does not change anything, so a `model_fn` does not need `if use_tpu:`.

    If `reduction` is MEAN, `compute_gradients` (and so `minimize`) divides the loss by the number
    of cores, or of those in a group. `apply_gradients` always sums. So code that calls
    `tf.gradients` itself, and then `apply_gradients`, applies the sum with either reduction.

    Args:
      opt: the `tf.train.Optimizer` that applies the gradients.
      reduction: `tf.losses.Reduction.MEAN` or `.SUM`.
      name: the optimizer's name.
      group_assignment: groups of replicas that sum with each other, as for `cross_replica_sum`; so
        each group trains its own weights. None is one group of all.

    Raises:
      ValueError: `reduction` is neither MEAN nor SUM. The methods raise it if group_assignment does
        not fit the replicas.
      TypeError: `opt` is not a `tf.train.Optimizer`.
    """

    def __init__(
        self,
        opt: tf.train.Optimizer,
        reduction: str = tf.losses.Reduction.MEAN,
        name: str = "CrossShardOptimizer",
        group_assignment: Groups | None = None,
    ):
        if reduction not in (tf.losses.Reduction.MEAN, tf.losses.Reduction.SUM):
            raise ValueError(
                f"CrossShardOptimizer: reduction must be MEAN or SUM, not {reduction!r}"
            )
        if not isinstance(opt, tf.train.Optimizer):
            raise TypeError(f"CrossShardOptimizer wraps a tf.train.Optimizer, not {type(opt)}")
        super().__init__(False, name)
        self._opt = opt
        self._reduction = reduction
        self._group_assignment = group_assignment

    def compute_gradients(self, loss, var_list=None, **kwargs):
        size = len(groups_of(self._group_assignment, "CrossShardOptimizer")[0])
        if self._reduction == tf.losses.Reduction.MEAN and size > 1:
            loss = loss / size
        return self._opt.compute_gradients(loss, var_list=var_list, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        # A sum over cores is dense. Since some optimizers treat rows without a gradient differently
        # in dense and sparse gradients, the gradient is made dense on one core too.
        summed = [
            (
                None
                if gradient is None
                else cross_replica_sum(tf.convert_to_tensor(gradient), self._group_assignment),
                variable,
            )
            for gradient, variable in grads_and_vars
        ]
        return self._opt.apply_gradients(summed, global_step=global_step, name=name)

    def get_slot(self, *args, **kwargs):
        return self._opt.get_slot(*args, **kwargs)

    def get_slot_names(self, *args, **kwargs):
        return self._opt.get_slot_names(*args, **kwargs)

    def variables(self):
        return self._opt.variables()
