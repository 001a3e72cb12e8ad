"""The layout of the cores: replicas share a batch, and the cores of a replica share a model."""

import re
from collections.abc import Callable, Sequence

import numpy as np

from bert_estimator.tpu.program import devices

# The axes of the mesh that number the replicas: the groups of replicas that share an update, and
# the replicas of a group.
REPLICA = ("group", "shard")

_Axes = list[int | None]


class CoreMesh:
    """Lays out cores, and says which part of an array each core holds.

    Args:
      cores: list of devices; the cores of a replica follow each other.
      sharding: list of (pattern, axis): a variable in whose name the regular expression is found is
        split along the axis over the cores of a replica. The first one counts whose axis can be
        split evenly. If the axis is None, or none is found, every core holds the whole variable.
      num_shards: how many replicas, one after the other, share the update of the weights. If it is
        not 1, cores_per_replica is.
    """

    def __init__(
        self,
        cores: list,
        cores_per_replica: int = 1,
        sharding: Sequence[tuple[str, int]] = (),
        num_shards: int = 1,
    ):
        jax = devices.import_jax()
        grid = np.array(cores).reshape(-1, cores_per_replica)
        # With one core per replica there is no axis that could be split.
        of_replica = {"core": cores_per_replica} if cores_per_replica > 1 else {}
        self.num_replicas = len(grid)
        self.num_hosts = len({core.process_index for core in cores})  # with cores here
        self._cores_per_replica = cores_per_replica
        self._rules = sharding
        self.mesh = jax.sharding.Mesh(
            grid.reshape(-1, num_shards, *of_replica.values()), (*REPLICA, *of_replica)
        )
        self._options = devices.compiler_options(cores)
        # Meshes with the same key lay out the same cores in the same way.
        self.key = (tuple(cores), cores_per_replica, tuple(map(tuple, sharding)), num_shards)
        # The `jax.sharding.Sharding` of arrays that every core holds in full, and of arrays whose
        # rows (the first axis) are divided among the replicas.
        self.whole = self._sharding()
        self.rows = self._sharding(REPLICA)

    def put(self, value, sharding):
        """Copies a structure of arrays to the cores; of several hosts, each gives its own rows if
        the sharding (one, or a structure of them) is `rows`, else the same whole arrays."""
        jax = devices.import_jax()
        # Without it, jax makes the global step, an int64, an int32.
        with jax.enable_x64(True):
            if self.num_hosts == 1:
                return jax.device_put(value, sharding)
            if isinstance(sharding, jax.sharding.Sharding):
                return jax.tree.map(lambda array: self._put_of_host(array, sharding), value)
            return jax.tree.map(self._put_of_host, value, sharding)

    def _put_of_host(self, array, sharding):
        jax = devices.import_jax()
        array = np.asarray(array)
        shape = array.shape
        if sharding == self.rows:
            shape = (shape[0] * self.num_hosts, *shape[1:])
        return jax.make_array_from_process_local_data(sharding, array, shape)

    def replica_ids(self):
        """Returns the number of each replica, int32 [num_replicas], on the cores."""
        a_host = self.num_replicas // self.num_hosts
        first = a_host * devices.import_jax().process_index() if self.num_hosts > 1 else 0
        return self.put(np.arange(first, first + a_host, dtype=np.int32), self.rows)

    def of_state(self, state: list) -> list:
        """Returns the sharding of each `StateVariable`, or raises ValueError for a variable that
        cannot be split evenly."""
        return [self._sharding(*self._split(variable)) for variable in state]

    def jit(self, function: Callable, state: list, inputs: _Axes, outputs: _Axes) -> Callable:
        """Jits a function (state, *inputs) -> (state, *outputs) of one replica for all replicas.

        Args:
          state: list of `StateVariable`; the jitted function consumes (donates) their arrays.
          inputs, outputs: for each input and output, the axis along which the replicas' rows are
            concatenated, or None if every replica has the same array.
        """
        of_state = self.of_state(state)
        return devices.import_jax().jit(
            self.mapped(function, state, inputs, outputs),
            donate_argnums=0,
            in_shardings=(of_state, *(self._sharding(*_rows_along(axis)) for axis in inputs)),
            out_shardings=(of_state, *(self._sharding(*_rows_along(axis)) for axis in outputs)),
            compiler_options=self._options,
        )

    def mapped(self, function: Callable, state: list, inputs: _Axes, outputs: _Axes) -> Callable:
        """Returns a function as for `jit` for all replicas, without jitting it."""
        jax = devices.import_jax()
        spec = jax.sharding.PartitionSpec
        of_state = [spec(*_shares(variable)) for variable in state]
        # Only the replicas' axes are mapped, so the function is written as if a replica were one
        # core. The compiler divides the work among the replica's cores by where the state is, and
        # adds the sums between cores that this needs. The results stay the same.
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(of_state, *(spec(*_rows_along(axis)) for axis in inputs)),
            out_specs=(of_state, *(spec(*_rows_along(axis)) for axis in outputs)),
            check_vma=False,
            axis_names=set(REPLICA),
        )

    def _sharding(self, *axes):
        jax = devices.import_jax()
        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(*axes))

    def _split(self, variable):
        # Replicas split these variables. The rules split others over the cores of a replica.
        if variable.split_axis is not None or variable.one_per_core:
            return _shares(variable)
        cores, uneven = self._cores_per_replica, None
        for pattern, axis in self._rules if cores > 1 else ():
            if not re.search(pattern, variable.name):
                continue
            if axis is None:
                return []
            if len(variable.shape) > axis:
                if variable.shape[axis] % cores == 0:
                    return [None] * axis + ["core"]
                uneven = uneven or (pattern, axis)
        # A rule was found, but none splits evenly: a full copy would silently take the memory of
        # each core.
        if uneven is not None:
            raise ValueError(
                f"num_cores_per_replica={cores}: {variable.name} of shape {variable.shape} cannot "
                f"be split evenly along axis {uneven[1]}, which the rule {uneven[0]!r} asks for"
            )
        return []


def _rows_along(axis):
    """Returns the axes of the mesh for the dimensions of an array whose rows replicas split along
    an axis, or do not split."""
    return [None] * axis + [REPLICA] if axis is not None else []


def _shares(variable):
    """Returns the axes of the mesh for the dimensions of a variable that replicas may split."""
    if variable.one_per_core:
        return [REPLICA]
    return [] if variable.split_axis is None else [None] * variable.split_axis + [REPLICA[1]]


def whole_value(array) -> np.ndarray:
    """Copies an array from the cores, whose cores on this host together have all of it."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    value = np.empty(array.shape, array.dtype)
    for shard in array.addressable_shards:
        value[shard.index] = np.asarray(shard.data)
    return value
