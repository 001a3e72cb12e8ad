"""Functions that a `model_fn` may call across the cores that run it.

A runtime with several replicas enters a `Replica` while it builds the model. Otherwise the program
is the only replica: then the number of replicas is 1, and a sum over replicas is the tensor itself.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow.compat.v1 as tf
from tensorflow.python.tpu import tpu_function

_current = threading.local()
_CORE = "TPU_REPLICATED_CORE"  # the type of the devices that `tf.tpu.core` names


class Replica:
    """Tells a replica about the others while a model is built.

    Args:
      num_replicas: how many replicas there are.
      replica_id: this replica's number, an int32 scalar tensor.
      cross_replica_sum: function of a tensor that sums it over all replicas.
      run_on_host: function of the operations that an `outside_compilation` builds; None means that
        they run where the others do.
      update_shards: the `step.update_shards.UpdateShards` of replicas that may share the update of
        the weights; None if each updates all of them.
    """

    def __init__(
        self,
        num_replicas: int,
        replica_id: int | tf.Tensor,
        cross_replica_sum: Callable[[tf.Tensor], tf.Tensor],
        run_on_host: Callable[[list[tf.Operation]], None] | None = None,
        update_shards: Any = None,
    ):
        self.num_replicas = num_replicas
        self.replica_id = replica_id
        self.cross_replica_sum = cross_replica_sum
        self.run_on_host = run_on_host
        self.update_shards = update_shards

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


def update_shards() -> Any:
    """Returns the `UpdateShards` of this replica; None if it updates all weights by itself."""
    return _replica().update_shards


def cross_replica_sum(
    x: tf.Tensor, group_assignment: list[list[int]] | None = None, name: str | None = None
) -> tf.Tensor:
    """Sums a tensor over all replicas; every replica gets the sum.

    The gradient is the sum of the replicas' gradients, as in upstream's function.

    Args:
      x: a tensor.
      group_assignment: None, or a list of one group that holds all replicas, which means the same.
      name: the name of the operation whose output is the sum.

    Raises:
      ValueError: group_assignment has other groups.
    """
    if group_assignment is not None:
        groups = [sorted(group) for group in group_assignment]
        if groups != [list(range(num_replicas()))]:
            raise ValueError(
                f"cross_replica_sum: group_assignment={group_assignment!r} is not supported; leave "
                f"it out to sum over all {num_replicas()} replicas"
            )
    total = _replica().cross_replica_sum(x)
    return total if name is None else tf.identity(total, name)


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
    before = {operation.name for operation in graph.get_operations()}
    returned = computation(*args, **kwargs)
    if _replica().run_on_host is not None:
        made = [each for each in graph.get_operations() if each.name not in before]
        _replica().run_on_host(made)
    return returned


def place_on_cores(cores_per_replica: int) -> Callable[[tf.Operation], str]:
    """Returns the function for `tf.device` that places a model's operations under TPU rules.

    With one core per replica, `tf.device(tf.tpu.core(i))` has no effect: there is one core.

    Args:
      cores_per_replica: how many cores share the model of a replica.

    Raises:
      ValueError: the function raises it if an operation is assigned to one of several cores.
    """

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
        return device.replace(device_type=None, device_index=None).to_string()

    return device_of


@tf.RegisterGradient("XlaAllReduce")
def _gradient_of_sum(op, gradient):
    return cross_replica_sum(gradient), None


def _replica():
    return getattr(_current, "value", None) or _ONLY
