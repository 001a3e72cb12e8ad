"""Compiles a training step for a TPU that need not be there, and reports what the step needs.

The TPU's own compiler tells the memory, the arithmetic and a lower bound of the time. It is part of
libtpu, and runs on any x86 machine. For a topology such as "v3:32x32" it takes 1024 chips of two
cores each, a whole TPU v3 pod.
"""

import contextlib
import ctypes
import dataclasses
import importlib.util
import itertools
import math
import os
import re
from collections.abc import Iterator, Sequence
from importlib import metadata

from bert_estimator.tpu.program import devices, stablehlo
from bert_estimator.tpu.program.core_mesh import CoreMesh
from bert_estimator.tpu.program.lowered_step import LoweredStep

GIB = 2**30
EXAMPLES = "v2:2x2, v3:2x2, v3:32x32, v4:2x2x1, v5e:4x4, v5p:2x2x1, v6e:2x2"


@dataclasses.dataclass(frozen=True)
class Generation:
    """Holds facts of a TPU generation; the compiler takes one core for one device."""

    name: str  # the name that Google Cloud uses
    hbm: float  # bytes of memory per core
    usable_hbm: float  # bytes that the compiler lets a program take; the system takes the rest
    peak: float  # FLOP/s of matrix products in bfloat16, per core
    cores_a_chip: int  # the cores that share a chip's links
    link: float  # bytes per second that one link of a chip carries in one direction
    axes: int  # of the torus of chips; a chip has two links along each axis

    def all_reduce_secs(self, num_bytes: int, num_chips: int) -> float:
        """Returns the least time to sum arrays of `num_bytes` over all chips, without latency and
        without sums between the cores of a chip."""
        if num_chips == 1:
            return 0.0
        # A ring over n chips sends 2 (n - 1) / n of the bytes through every chip (Patarasuk and
        # Yuan, 2009). All links of the chip work at once, in both directions and along every axis.
        sent = 2 * num_bytes * (num_chips - 1) / num_chips
        return sent / (2 * self.axes * self.link)


# The keys are PJRT's names of devices. The sources:
# - Memory and peak: Google Cloud's pages on TPU versions. In a v2, v3 or v4 chip, half belongs to
#   each of its two cores. For a v5p's memory the sources say 95 GB or 96 GB; it is 96 GiB here,
#   since the compiler lets a program take 95.73 GiB.
# - Usable memory: the limit in the error of the compiler (libtpu 0.0.51) if a program takes more.
# - Links: for v2 (496 Gbit/s) and v3 (656 Gbit/s) Jouppi et al., "A domain-specific supercomputer
#   for training deep neural networks" (2020); for the others "How to scale your model" (Google
#   DeepMind, 2025), from memory.
GENERATIONS = {
    "TPU v2": Generation("v2", 8 * GIB, 7.48 * GIB, 22.5e12, 2, 62e9, 2),
    "TPU v3": Generation("v3", 16 * GIB, 15.48 * GIB, 61.5e12, 2, 82e9, 2),
    "TPU v4": Generation("v4", 16 * GIB, 15.25 * GIB, 137.5e12, 2, 45e9, 3),
    "TPU v5 lite": Generation("v5e", 16 * GIB, 15.75 * GIB, 197e12, 1, 45e9, 2),
    "TPU v5": Generation("v5p", 96 * GIB, 95.73 * GIB, 459e12, 1, 90e9, 3),
    "TPU v6 lite": Generation("v6e", 32 * GIB, 31.24 * GIB, 918e12, 1, 90e9, 2),
}

# libtpu looks for a TPU in this machine; without these variables it logs a lot if it finds none.
_WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    # Several processes may compile at a time, although only one may use a TPU.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def find(name: str) -> list:
    """Returns the devices of a topology such as "v3:32x32", one for each core; a RuntimeError says
    what to install, a ValueError which topologies there are."""
    jax = devices.import_jax()
    if importlib.util.find_spec("libtpu") is None:
        raise RuntimeError(
            "The TPU's compiler is part of libtpu, which is not installed: "
            "pip install 'bert-estimator[tpu]', on Linux x86-64"
        )
    devices.check_libtpu()
    from jax.experimental import topologies

    try:
        with _without_tpu():
            cores = topologies.get_topology_desc(platform="tpu", topology_name=name).devices
    except jax.errors.JaxRuntimeError as error:
        # The message begins with a code, such as "INVALID_ARGUMENT: ".
        reason = re.sub(r"^[A-Z_]+: ", "", str(error).splitlines()[0])
        raise ValueError(f"{reason}. Examples of topologies: {EXAMPLES}") from None
    if cores[0].device_kind not in GENERATIONS:
        raise ValueError(
            f"{cores[0].device_kind} is not in `GENERATIONS`, which has " + ", ".join(GENERATIONS)
        )
    return list(cores)


@contextlib.contextmanager
def _without_tpu():
    """Sets the variables that the user has not set; they are only read when libtpu is loaded."""
    before = _names_in_c()
    os.environ.update(_WITHOUT_TPU | os.environ)
    try:
        yield
    finally:
        # libtpu sets variables, too, which only the processes that this one starts would see.
        for name in _names_in_c() - before:
            os.environ.pop(name, None)
            os.unsetenv(name)


def _names_in_c():
    """Returns the names of the environment that C code sees, as text."""
    values = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    items = itertools.takewhile(bool, values)  # The last is a null pointer.
    return {os.fsdecode(item.partition(b"=")[0]) for item in items}


# "E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO temporaries
# (21.07G) exceeds available HBM (15.48G)"; older compilers: "Used 21.07G of 15.48G hbm".
_TOO_BIG = (
    re.compile(r"total memory required[^(]*\(([\d.]+)([KMGT]?)\) exceeds available HBM"),
    re.compile(r"Used ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm"),
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class CompileReport:
    """Holds what the compiler said of a training step; bytes, operations and seconds are for one
    core."""

    # What the step was compiled for, and by which libtpu.
    topology: str
    tpu: str
    cores: int
    compiler: str
    train_batch_size: int  # examples per step of all cores
    batch_per_core: int  # examples per step of one replica
    fits: bool  # into the memory that a program may take
    # Kind -> bytes. The kinds are `weights`, `optimizer_state` (all other state), `input`,
    # `padding` (which the TPU's layouts add to the first three), `temporaries` (activations and
    # gradients), `outputs` (only outputs that are not stored in the place of an input), `program`,
    # and their sum `total`. If the compiler ran out of memory there are only the first three and
    # `total`, the least memory that the step needs.
    memory: dict[str, int]
    usable_hbm: float  # bytes that a program may take
    hbm: float  # bytes of the core's memory
    # Of matrix products, see `stablehlo.matmul_flops`. If cores share a model, this is a core's
    # even share of them, which is a lower bound.
    flops: int
    peak: float  # FLOP/s
    cores_per_replica: int = 1  # the cores that share a model and its examples
    chips: int = 1
    hosts: int = 1
    # The compiler's lower bound of a step's time without communication; None if it does not give a
    # bound, or jaxlib cannot read the compiled program.
    compiler_secs: float | None = None
    # Bytes of the arrays that the cores sum between them; None if the cores of a replica share the
    # model, since the compiler adds sums of its own.
    summed_bytes: int | None = None
    # A lower bound of the time of these sums.
    summing_secs: float | None = None

    @property
    def least_step_secs(self) -> float:
        """Returns a lower bound of a step's time: arithmetic and memory, and then the sums."""
        return max(self.compiler_secs or 0, self.flops / self.peak) + (self.summing_secs or 0)

    def lines(self) -> Iterator[str]:
        """Yields the report as lines of text."""
        names = {
            "weights": "weights",
            "optimizer_state": "optimizer state",
            "input": "input",
            "padding": "padding of these",
            "temporaries": "activations and temporaries",
            "outputs": "outputs",
            "program": "program",
            "total": "total" if self.fits else "total, at least",
        }
        cores = self.cores_per_replica
        share = "each" if cores == 1 else f"for each {cores}"
        yield (
            f"{self.topology}: {self.cores} cores of TPU {self.tpu}, {self.batch_per_core} of "
            f"{self.train_batch_size} examples {share} ({self.compiler})"
        )
        yield f"{'memory of a core':<33} GiB"
        for kind, name in names.items():
            if kind in self.memory:
                yield f"  {name:<28} {self.memory[kind] / GIB:7.3f}"
        yield (
            f"  {'a program may take':<28} {self.usable_hbm / GIB:7.3f}"
            f"  of {self.hbm / GIB:.0f}: {'it fits' if self.fits else 'IT DOES NOT FIT'}"
        )
        yield (
            f"matrix products: {self.flops:.3g} FLOP per core and step; the core's peak is "
            f"{self.peak / 1e12:.4g} TFLOP/s"
        )
        # A step that does not fit does not run, so its time does not matter.
        if not self.fits:
            return
        if self.compiler_secs is None:
            yield "compiler's lower bound of a step: not given"
        else:
            yield (
                f"compiler's lower bound of a step: {self.compiler_secs:.4g} s without "
                f"communication, {self.flops / self.peak / self.compiler_secs:.0%} of peak"
            )
        if self.summed_bytes is None:
            yield "summed between cores: not given"
        else:
            yield (
                f"summed between cores: {self.summed_bytes / GIB:.3g} GiB per step, at least "
                f"{self.summing_secs:.3g} s at the links' rate"
            )


def report(
    lowered: LoweredStep,
    topology_name: str,
    train_batch_size: int,
    cores_per_replica: int = 1,
    sharding: Sequence[tuple[str, int]] = (),
) -> CompileReport:
    """Compiles a step, lowered for as many replicas as the topology has, for every core of the
    topology; a step that does not fit gives a report too."""
    jax = devices.import_jax()
    cores = find(topology_name)
    tpu = GENERATIONS[cores[0].device_kind]
    mesh = CoreMesh(cores, cores_per_replica, sharding, lowered.num_shards)
    memory = _state_and_input(lowered, mesh)
    facts = dict(
        topology=topology_name,
        tpu=tpu.name,
        cores=len(cores),
        compiler=f"libtpu {metadata.version('libtpu')}",
        train_batch_size=train_batch_size,
        batch_per_core=train_batch_size // mesh.num_replicas,
        cores_per_replica=cores_per_replica,
        usable_hbm=tpu.usable_hbm,
        hbm=tpu.hbm,
        flops=stablehlo.matmul_flops(lowered.text) // cores_per_replica,
        peak=tpu.peak,
        chips=len(cores) // tpu.cores_a_chip,
        hosts=len({core.process_index for core in cores}),
    )
    # The state and the input are counted before compiling, so that the report of a step that does
    # not fit has them.
    try:
        compiled = lowered.compile_only(mesh)
    except jax.errors.JaxRuntimeError as error:
        needed = bytes_needed(str(error))
        if needed is None:
            raise
        return CompileReport(fits=False, memory={**memory, "total": needed}, **facts)
    analysis = compiled.memory_analysis()
    memory["padding"] = analysis.argument_size_in_bytes - sum(memory.values())
    memory["temporaries"] = analysis.temp_size_in_bytes
    memory["outputs"] = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    memory["program"] = analysis.generated_code_size_in_bytes
    memory["total"] = sum(memory.values())
    hlo = _text(compiled)
    summed = stablehlo.summed_bytes(lowered.text) if cores_per_replica == 1 else None
    return CompileReport(
        fits=memory["total"] <= tpu.usable_hbm,
        memory=memory,
        compiler_secs=_lower_bound(compiled.cost_analysis(), hlo),
        summed_bytes=summed,
        summing_secs=summed and tpu.all_reduce_secs(summed, facts["chips"]),
        **facts,
    )


def _text(compiled):
    """Returns the compiled program's text; None if this jaxlib does not know its operations."""
    jax = devices.import_jax()
    try:
        return compiled.as_text()
    except jax.errors.JaxRuntimeError as error:
        if "RET_CHECK" not in str(error):  # This check fails on unknown operations.
            raise
        return None


def bytes_needed(message: str) -> int | None:
    """Returns the bytes that a program needs, from the compiler's error; None if the error is about
    something else than memory."""
    for pattern in _TOO_BIG:
        match = pattern.search(message)
        if match:
            return int(float(match[1]) * _UNITS[match[2]])
    return None


def _state_and_input(lowered, mesh):
    """Returns the bytes of one core's weights, other state and input, without padding."""

    def num_bytes(shape, dtype):
        return math.prod(shape) * stablehlo.dtype(dtype).itemsize

    sizes = {"weights": 0, "optimizer_state": 0}
    for variable, sharding in zip(lowered.state, mesh.of_state(lowered.state), strict=True):
        kind = "weights" if variable.trainable else "optimizer_state"
        sizes[kind] += num_bytes(sharding.shard_shape(variable.shape), variable.dtype)
    inputs = stablehlo.parameters(lowered.text)[: lowered.num_inputs]
    return {**sizes, "input": sum(num_bytes(shape, dtype) for shape, dtype in inputs)}


def _lower_bound(costs, hlo):
    """Returns the compiler's lower bound of the seconds of a step, or None if it is not known."""
    # The body of a loop counts once, so a step with a loop (over micro-batches) has no bound.
    if hlo is None or " while(" in hlo:
        return None
    # The bound is a sum over operations, with -1 for each operation whose time the compiler does
    # not know. Among these are the custom calls that split and join an int64 (the global step),
    # which take no time.
    secs = costs.get("optimal_seconds", 0) + len(re.findall(r'custom_call_target="X64', hlo))
    return secs if secs > 0 else None
