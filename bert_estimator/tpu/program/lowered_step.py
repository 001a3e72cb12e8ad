"""A step as one core's program in StableHLO, which is compiled, kept and run without TensorFlow.

The device loop runs several steps in one call of the devices, without Python between them. It is
told how many of a chunk's batches to run, so one program serves chunks of every length. It ends at
a loss that is not finite, with the weights after that step, as if steps ran one by one.

Within a process, `KeptPrograms` keeps the programs that were lowered or compiled last. Between
processes, jax's compilation cache keeps compiled programs in a directory.
"""

import collections
import contextlib
import dataclasses
import hashlib
import math
import os
import platform
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

from bert_estimator.cluster import hosts
from bert_estimator.system import paths, ticker
from bert_estimator.tpu.program import devices, stablehlo
from bert_estimator.tpu.program.core_mesh import REPLICA, CoreMesh

# A kept program is rarely more than some 10 MiB. Train, evaluate and predict each have their own.
_MOST_PROGRAMS = 16
_MOST_BYTES_ON_DISK = 2 * 2**30
# What jax's files of a program end with: the program, and the time of its last use.
_PROGRAM, _USED = "-cache", "-atime"


class KeptPrograms:
    """Holds the programs of this process that were used last."""

    def __init__(self):
        self.num_made = 0  # programs that were not kept
        self._programs = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable):
        """Returns the program of a key, which `make()` makes if it is not kept."""
        with self._lock:
            if key in self._programs:
                self._programs.move_to_end(key)
                return self._programs[key]
        # Making a program takes long, so the lock is not held: two threads may make the same one.
        program = make()
        with self._lock:
            self.num_made += 1
            self._programs[key] = program
            while len(self._programs) > _MOST_PROGRAMS:
                self._programs.popitem(last=False)
        return program


def digest(*parts: bytes | str) -> str:
    """Returns a text of fixed length that only equal parts have in common."""
    # Each part is digested on its own, so that text cannot move from one part to the next.
    digests = [hashlib.sha256(p.encode() if isinstance(p, str) else p).digest() for p in parts]
    return hashlib.sha256(b"".join(digests)).hexdigest()


def default_directory() -> str:
    """Returns the directory of compiled programs that is used if the user does not set one."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    # A program for another kind of processor may not run, so each kind has its own directory.
    processor = [platform.machine(), platform.processor(), str(os.cpu_count())]
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        processor += sorted({line for line in file if line.startswith(("flags", "Features"))})
    return os.path.join(cache, "bert_estimator", "programs", digest(*processor)[:16])


def keep_on_disk() -> None:
    """Makes jax keep programs that took a second or more to compile on disk, in
    JAX_COMPILATION_CACHE_DIR or `default_directory()`, unless JAX_ENABLE_COMPILATION_CACHE is
    false."""
    config = devices.import_jax().config
    directory = config.jax_compilation_cache_dir
    if not config.jax_enable_compilation_cache:
        return
    if directory is not None and paths.is_remote(directory):
        return
    try:
        os.makedirs(directory or default_directory(), mode=0o700, exist_ok=True)
    except OSError as error:
        # Programs are not kept then. Only a directory that the user set is worth a message.
        if directory is not None:
            ticker.log(
                f"JAX_COMPILATION_CACHE_DIR={directory} cannot be used ({error.strerror}): "
                "compiled programs are not kept."
            )
            config.update("jax_enable_compilation_cache", False)
        return
    if directory is None:
        _remove_unfinished(default_directory())
        config.update("jax_compilation_cache_max_size", _MOST_BYTES_ON_DISK)
        config.update("jax_compilation_cache_dir", default_directory())


@contextlib.contextmanager
def not_on_disk() -> Iterator[None]:
    """Keeps jax from writing programs to disk: it cannot read a program for devices that are not
    there, and would warn of it in the next run."""
    config = devices.import_jax().config
    least_secs = config.jax_persistent_cache_min_compile_time_secs
    config.update("jax_persistent_cache_min_compile_time_secs", math.inf)
    try:
        yield
    finally:
        config.update("jax_persistent_cache_min_compile_time_secs", least_secs)


def _remove_unfinished(directory):
    """Removes programs whose time of use, which jax writes last, is missing from a directory."""
    if not os.path.isdir(directory):
        return
    import filelock  # jax needs it for its cache

    # A killed process leaves them. jax would neither replace them nor remove any others. It holds
    # this lock while it writes.
    with filelock.FileLock(os.path.join(directory, ".lockfile")):
        for entry in os.scandir(directory):
            used = f"{entry.path.removesuffix(_PROGRAM)}{_USED}"
            if entry.name.endswith(_PROGRAM) and not os.path.exists(used):
                os.remove(entry.path)


@dataclasses.dataclass(frozen=True)
class StateVariable:
    """Describes a variable of the step."""

    name: str  # in checkpoints
    shape: tuple[int, ...]
    dtype: str  # a name, such as "float32"
    trainable: bool  # a weight, rather than a slot of an optimizer or a counter
    # The axis along which the cores that share an update split the value; None if each core has the
    # whole value.
    split_axis: int | None = None
    # Whether each core has another value. The first axis of the shape is the cores'.
    one_per_core: bool = False


@dataclasses.dataclass(frozen=True)
class LoweredStep:
    """Holds a step as StableHLO text."""

    # The module. Its inputs are the step's inputs, with the replica's number first, and then the
    # variables in `order`. Its outputs are the step's outputs, and then all variables in the order
    # of `state`.
    text: str
    num_inputs: int  # without variables, as num_outputs
    num_outputs: int
    state: list[StateVariable]
    # For each variable among the module's inputs, its index in `state`. If the cores split the
    # variable, the input is the core's part, or the whole value.
    order: list[int]
    num_shards: int = 1  # how many cores, one after the other, share the update of the weights

    def key(self) -> tuple:
        """Returns what equal steps have in common, and only equal steps."""
        text = digest(self.text)
        state, order = tuple(self.state), tuple(self.order)
        return text, self.num_inputs, self.num_outputs, state, order, self.num_shards

    def one_core(self) -> Callable:
        """Returns the step as a function (state, inputs) -> (new state, outputs) of lists of one
        core's arrays, which jax can trace; the first input is the replica's number, int32 [1]."""
        exported = stablehlo.exported(self.text)
        gather = devices.import_jax().lax.all_gather
        shapes = [aval.shape for aval in exported.in_avals[self.num_inputs :]]

        def value(number, shape, state):
            if self.state[number].one_per_core:
                return state[number][0]
            # The module takes a split variable as a part or as the whole value, for which the cores
            # gather their parts. The shape tells which.
            axis = self.state[number].split_axis
            if axis is None or shape != self.state[number].shape:
                return state[number]
            return gather(state[number], REPLICA[1], axis=axis, tiled=True)

        def one_core(state, inputs):
            given = zip(self.order, shapes, strict=True)
            results = exported.call(*inputs, *(value(n, shape, state) for n, shape in given))
            last = self.num_outputs + len(self.state)
            new = zip(self.state, results[self.num_outputs : last], strict=True)
            state = [value[None] if v.one_per_core else value for v, value in new]
            return state, list(results[: self.num_outputs])

        return one_core

    def compile_only(self, mesh: CoreMesh):
        """Compiles the step for devices that need not be there; returns the `jax.stages.Compiled`,
        which knows its memory and cost."""
        jax = devices.import_jax()
        with jax.enable_x64(True), not_on_disk():
            step = mesh.jit(self.one_core(), self.state, inputs=[0], outputs=[0])
            return step.lower(*self._shapes(mesh)).compile()

    def exported(self, mesh: CoreMesh, inputs: list[str]):
        """Returns the step of all cores as a `jax.export.Exported`: a function of (state, batch),
        dicts of arrays by name, that returns the new state and a list of outputs."""
        jax = devices.import_jax()
        from jax import export

        names = [variable.name for variable in self.state]
        step = mesh.mapped(self.one_core(), self.state, inputs=[0], outputs=[0])

        def by_name(state, batch):
            replica_ids = jax.numpy.arange(mesh.num_replicas, dtype=np.int32)
            given = [replica_ids, *(batch[name] for name in inputs)]
            values, outputs = step([state[name] for name in names], given)
            return dict(zip(names, values, strict=True)), outputs

        of_state = dict(zip(names, mesh.of_state(self.state), strict=True))
        shardings = of_state, mesh.rows
        jitted = jax.jit(by_name, in_shardings=shardings, out_shardings=shardings)
        state, (_, *arrays) = self._shapes(mesh)
        shapes = dict(zip(names, state, strict=True)), dict(zip(inputs, arrays, strict=True))
        # StableHLO is the same for all platforms, and so are its custom calls.
        check = export.DisabledSafetyCheck
        disabled = [check.platform(), check.custom_call("ALL")]
        with jax.enable_x64(True):
            return export.export(jitted, platforms=["cpu"], disabled_checks=disabled)(*shapes)

    def _shapes(self, mesh):
        """Returns the shapes of the state's variables, and of the inputs of all replicas."""
        struct = devices.import_jax().ShapeDtypeStruct
        state = [struct(v.shape, stablehlo.dtype(v.dtype)) for v in self.state]
        parameters = stablehlo.parameters(self.text)[: self.num_inputs]
        rows = [(mesh.num_replicas * shape[0], *shape[1:]) for shape, _ in parameters]
        return state, [struct(*each) for each in zip(rows, (d for _, d in parameters), strict=True)]


# A chunk saves a Python call per step, and this many steps save most of that time. Up to three
# chunks are on a device at a time, so their batches must not take much of its memory.
_MOST_STEPS = 16
_MOST_BYTES = 2**26

# The loops of this process. They are compiled when they first run.
LOOPS = KeptPrograms()


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Holds the result of a call of the loop; reading an array waits for the devices."""

    count: Any  # the number of steps that ran, int32 []
    # Arrays [steps, cores * rows, ...], one for each output that every step gives. Only the first
    # `count` steps are valid.
    outputs: list
    last: list  # arrays [cores * rows, ...], the outputs that only the last step gives


class DeviceLoop:
    """Runs chunks of steps on some devices.

    Args:
      lowered: a `LoweredStep` whose first output is a core's loss, float32 [1].
      loop_length: the most steps between two visits of the host.
      ends_at_nan: whether a loss that is not finite ends the loop, on all cores.
      same_batch: whether each core gets the whole batch, rather than its share of the rows.
      num_last: how many outputs, counted from the end of the step's outputs, are needed only from
        the last step of a chunk.
    """

    def __init__(
        self,
        lowered: LoweredStep,
        mesh: CoreMesh,
        loop_length: float,
        ends_at_nan: bool,
        same_batch: bool = False,
        num_last: int = 0,
    ):
        self._mesh = mesh
        self._batch = mesh.whole if same_batch else mesh.rows
        self._state = mesh.of_state(lowered.state)
        self._names = [variable.name for variable in lowered.state]
        self._is_compared = False  # with the values of the other hosts
        self._loop, batch_bytes = LOOPS.get(
            (lowered.key(), mesh.key, ends_at_nan, same_batch, num_last),
            lambda: _jitted(lowered, mesh, ends_at_nan, same_batch, num_last),
        )
        # The most batches that a chunk may have.
        self.most_steps = int(max(1, min(loop_length, _MOST_STEPS, _MOST_BYTES // batch_bytes)))
        self._replica_ids = mesh.replica_ids()
        # It stays on the cores from chunk to chunk: after a loss that is not finite, chunks that
        # are already under way run no steps.
        self._going = self._mesh.put(np.array(True), mesh.whole)

    def put_state(self, values: dict[int, np.ndarray]) -> dict:
        """Copies variables, a dict of index in the state -> value, to the cores; in the first call,
        a RuntimeError says that another host has other values."""
        if not self._is_compared:
            hosts.check_variables({self._names[n]: value for n, value in values.items()})
            self._is_compared = True
        return self._mesh.put(values, {number: self._state[number] for number in values})

    def put_batch(self, arrays: list[np.ndarray]) -> list:
        """Copies a batch, a list of arrays, to the cores."""
        return self._mesh.put(arrays, self._batch)

    def run(self, state: list, batches: list[list]) -> tuple[list, Chunk]:
        """Starts a chunk of 1 to `most_steps` batches on the cores, and does not wait for it;
        returns (new state, `Chunk`), and consumes the state."""
        # The loop is compiled for a full chunk: the last batch fills it, and is not run.
        padding = batches[-1:] * (self.most_steps - len(batches))
        # A list for each tensor of a batch, which the loop makes one array of.
        by_tensor = list(zip(*batches, *padding, strict=True))
        with devices.import_jax().enable_x64(True):
            state, self._going, count, outputs, last = self._loop(
                state,
                self._going,
                np.arange(self.most_steps) < len(batches),
                self._replica_ids,
                by_tensor,
            )
        return state, Chunk(count, outputs, last)


def _jitted(lowered, mesh, ends_at_nan, same_batch, num_last):
    """Returns the loop, which the cores compile when they first run it, and a batch's bytes."""
    keep_on_disk()
    parameters = stablehlo.parameters(lowered.text)[: lowered.num_inputs]
    loop = mesh.jit(
        _one_core_loop(lowered.one_core(), ends_at_nan, num_last, gather=mesh.num_hosts > 1),
        lowered.state,
        inputs=[None, None, 0, None if same_batch else 0],
        # A host can only read the arrays of its own cores, but the host functions get the rows
        # of all cores: with several hosts, the loop gathers them.
        outputs=[None, None, 1 if mesh.num_hosts == 1 else None, 0],
    )
    return loop, sum(np.prod(shape) * dtype.itemsize for shape, dtype in parameters)


def _one_core_loop(step, ends_at_nan, num_last, gather):
    """Returns the loop over one core's step, as a function that jax can trace."""
    jax = devices.import_jax()
    numpy, lax = jax.numpy, jax.lax

    def loop(state, going, are_real, replica_id, batches):
        inputs = [numpy.stack(tensors) for tensors in batches]
        first = [tensors[0] for tensors in batches]
        num_batches, length = len(are_real), numpy.sum(are_real)
        # The loop carries its outputs, so their arrays are made before the first step.
        _, outputs = jax.eval_shape(step, state, [replica_id, *first])
        stacked = len(outputs) - num_last
        last = [numpy.zeros(o.shape, o.dtype) for o in outputs[stacked:]]
        outputs = [numpy.zeros((num_batches, *o.shape), o.dtype) for o in outputs[:stacked]]

        def one_more(carry):
            count, going, *_ = carry
            return going & (count < length)

        def one_step(carry):
            count, going, state, outputs, _ = carry
            batch = [lax.dynamic_index_in_dim(x, count, keepdims=False) for x in inputs]
            state, results = step(state, [replica_id, *batch])
            outputs = [
                lax.dynamic_update_index_in_dim(all_steps, output, count, 0)
                for all_steps, output in zip(outputs, results[:stacked], strict=True)
            ]
            if ends_at_nan:
                # The cores must agree on whether they go on.
                finite = numpy.isfinite(results[0][0]).astype(numpy.int32)
                going = lax.pmin(finite, REPLICA) == 1
            return count + 1, going, state, outputs, results[stacked:]

        start = (numpy.int32(0), going, state, outputs, last)
        count, going, state, outputs, last = lax.while_loop(one_more, one_step, start)
        if gather:
            outputs = [lax.all_gather(o, REPLICA, axis=1, tiled=True) for o in outputs]
        return state, going, count, outputs, last

    return loop
