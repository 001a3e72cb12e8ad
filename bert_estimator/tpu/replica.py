"""What a `model_fn` may ask and do across the cores that run it.

A runtime that runs several replicas enters `Replica` while it builds the model; without one, the
program is the only replica, and each function here is the identity it then has to be.
"""

import contextlib
import threading

import tensorflow.compat.v1 as tf
from tensorflow.python.tpu import tpu_function

_current = threading.local()


class Replica:
    """How one replica of several sees the others.

    Args:
      num_replicas: how many there are.
      replica_id: this one's number, an int32 scalar tensor.
      cross_replica_sum: function of a tensor that sums it over all replicas.
    """

    def __init__(self, num_replicas, replica_id, cross_replica_sum):
        self.num_replicas = num_replicas
        self.replica_id = replica_id
        self.cross_replica_sum = cross_replica_sum

    @contextlib.contextmanager
    def entered(self):
        previous, _current.value = getattr(_current, "value", None), self
        # TensorFlow's own answer to how many there are, which models of TF1 ask for.
        context = tpu_function.get_tpu_context()
        previous_number = context.number_of_shards
        context.set_number_of_shards(self.num_replicas)
        try:
            yield
        finally:
            _current.value = previous
            context.set_number_of_shards(previous_number)


_ONLY = Replica(1, 0, lambda tensor: tensor)


def num_replicas():
    """Number of replicas that run the model being built (int)."""
    return _replica().num_replicas


def replica_id():
    """Number of the replica that runs this code: an int, or an int32 scalar tensor."""
    return _replica().replica_id


def cross_replica_sum(x, group_assignment=None, name=None):
    """Sums a tensor over all replicas; every replica gets the sum.

    Its gradient is the sum of the replicas' gradients, as upstream.

    Args:
      x: a tensor.
      group_assignment: None, or one group of all replicas, which means the same.
      name: of the operation that gives the sum.

    Raises:
      ValueError: other groups, whose sums are not supported.
    """
    if group_assignment is not None:
        groups = [sorted(group) for group in group_assignment]
        if groups != [list(range(num_replicas()))]:
            raise ValueError(
                f"cross_replica_sum: group_assignment={group_assignment!r} is not supported: sums "
                f"are over all {num_replicas()} replicas"
            )
    total = _replica().cross_replica_sum(x)
    return total if name is None else tf.identity(total, name)


@tf.RegisterGradient("XlaAllReduce")
def _gradient_of_sum(op, gradient):
    return cross_replica_sum(gradient), None


def _replica():
    return getattr(_current, "value", None) or _ONLY
