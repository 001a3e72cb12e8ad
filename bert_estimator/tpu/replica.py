"""What a `model_fn` may ask and do across the cores that run it.

A runtime that runs several replicas enters `Replica` while it builds the model; without one, the
program is the only replica, and each function here is the identity it then has to be.
"""

import contextlib
import threading

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
        try:
            yield
        finally:
            _current.value = previous


_ONLY = Replica(1, 0, lambda tensor: tensor)


def num_replicas():
    """Number of replicas that run the model being built (int)."""
    return _replica().num_replicas


def replica_id():
    """Number of the replica that runs this code: an int, or an int32 scalar tensor."""
    return _replica().replica_id


def cross_replica_sum(tensor):
    """Sums a tensor over all replicas; every replica gets the sum."""
    return _replica().cross_replica_sum(tensor)


def _replica():
    return getattr(_current, "value", None) or _ONLY
