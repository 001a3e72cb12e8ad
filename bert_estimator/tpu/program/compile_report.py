"""What a training step needs on a TPU, by the TPU's own compiler: memory, arithmetic, time."""

import dataclasses
import math
import re
from importlib import metadata

from bert_estimator.tpu.program import devices, stablehlo, topology
from bert_estimator.tpu.program.core_mesh import CoreMesh
from bert_estimator.tpu.program.topology import GIB

# "E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO temporaries
# (21.07G) exceeds available HBM (15.48G)"; older compilers: "Used 21.07G of 15.48G hbm".
_TOO_BIG = (
    re.compile(r"total memory required[^(]*\(([\d.]+)([KMGT]?)\) exceeds available HBM"),
    re.compile(r"Used ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm"),
)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class CompileReport:
    """What the compiler said of a training step. Bytes, operations and seconds are of one core.

    Attributes:
      topology, tpu, cores, compiler: what it was compiled for, and by which libtpu.
      train_batch_size, batch_per_core: examples of all cores, and of one.
      cores_per_replica: cores that share these examples, and the model.
      fits: whether the step fits the memory that a program may take.
      memory: dict of kind -> bytes: `weights`, `optimizer_state` (all other state), `input`,
        `temporaries` (activations, gradients), `outputs` (those that take no input's place),
        `program`, and `padding`, which the TPU's layouts add to the first three; `total`. Where
        the compiler gave up for want of memory: `total`, the least that is needed, with what it
        names of the other kinds, and the first three.
      usable_hbm, hbm: bytes that a program may take, and that there are.
      flops: of matrix products, see `stablehlo.matmul_flops`; where cores share a model, a core's
        even share of them, which is the least.
      peak: FLOP/s.
      compiler_secs: the compiler's lower bound of a step's time, communication not counted; None
        where it gives none, or jaxlib cannot read what the compiler made.
      summed_bytes: bytes of the arrays that the cores sum between them; None where the cores of a
        replica share the model, and jaxlib cannot read what the compiler made.
      summing_secs: the least time that takes, see `topology.Generation.all_reduce_secs`. Sums
        within a replica, whose cores may be those of one chip, are not counted.
    """

    topology: str
    tpu: str
    cores: int
    compiler: str
    train_batch_size: int
    batch_per_core: int
    fits: bool
    memory: dict
    usable_hbm: float
    hbm: float
    flops: int
    peak: float
    cores_per_replica: int = 1
    compiler_secs: float | None = None
    summed_bytes: int | None = None
    summing_secs: float | None = None

    @property
    def least_step_secs(self):
        """Least time of a step: the compiler's bound, or that of the peak, and the sums."""
        return max(self.compiler_secs or 0, self.flops / self.peak) + (self.summing_secs or 0)

    def as_dict(self):
        return dataclasses.asdict(self)

    def lines(self):
        """Returns the report as lines of text."""
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
        each = "each" if self.cores_per_replica == 1 else f"for each {self.cores_per_replica}"
        yield (
            f"{self.topology}: {self.cores} cores of TPU {self.tpu}, {self.batch_per_core} of "
            f"{self.train_batch_size} examples {each} ({self.compiler})"
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
            f"matrix products: {self.flops:.3g} FLOP a core and step; the core's peak is "
            f"{self.peak / 1e12:.4g} TFLOP/s"
        )
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
                f"summed between cores: {self.summed_bytes / GIB:.3g} GiB a step, at least "
                f"{self.summing_secs:.3g} s at the links' rate"
            )


def report(lowered, topology_name, train_batch_size, cores_per_replica=1, sharding=()):
    """Compiles a lowered training step for every core of a topology.

    Args:
      lowered: a `LoweredStep` for as many replicas as the topology has.
      topology_name: such as "v3:32x32".
      train_batch_size: examples that the cores share.
      cores_per_replica, sharding: how the model is split, see `CoreMesh`.

    Returns:
      A `CompileReport`, also where the step does not fit.

    Raises:
      RuntimeError, ValueError: see `topology.find`.
    """
    jax = devices.import_jax()
    cores = topology.find(topology_name)
    generation = topology.generation(cores)
    mesh = CoreMesh(cores, cores_per_replica, sharding)
    memory = _state_and_input(lowered, mesh)
    facts = dict(
        topology=topology_name,
        tpu=generation.name,
        cores=len(cores),
        compiler=f"libtpu {metadata.version('libtpu')}",
        train_batch_size=train_batch_size,
        batch_per_core=train_batch_size // mesh.num_replicas,
        cores_per_replica=cores_per_replica,
        usable_hbm=generation.usable_hbm,
        hbm=generation.hbm,
        flops=stablehlo.matmul_flops(lowered.text) // cores_per_replica,
        peak=generation.peak,
    )
    try:
        compiled = lowered.compile_only(mesh)
    except jax.errors.JaxRuntimeError as error:
        needed = bytes_needed(str(error))
        if needed is None:
            raise
        return CompileReport(fits=False, memory={**memory, "total": needed}, **facts)
    found = compiled.memory_analysis()
    memory["padding"] = found.argument_size_in_bytes - sum(memory.values())
    memory["temporaries"] = found.temp_size_in_bytes
    memory["outputs"] = found.output_size_in_bytes - found.alias_size_in_bytes
    memory["program"] = found.generated_code_size_in_bytes
    memory["total"] = sum(memory.values())
    hlo = _text(compiled)
    if cores_per_replica == 1:
        summed = between_replicas = stablehlo.summed_bytes(lowered.text)
    elif hlo is not None:  # the compiler adds sums of its own, within a replica
        summed = summed_bytes(hlo)
        between_replicas = summed - summed_bytes(hlo, cores_per_replica)
    else:
        summed = between_replicas = None
    chips = len(cores) // generation.cores_a_chip
    return CompileReport(
        fits=memory["total"] <= generation.usable_hbm,
        memory=memory,
        compiler_secs=_lower_bound(compiled.cost_analysis(), hlo),
        summed_bytes=summed,
        summing_secs=summed and generation.all_reduce_secs(between_replicas, chips),
        **facts,
    )


def _text(compiled):
    """The compiled program's text, or None where it has operations newer than this jaxlib."""
    jax = devices.import_jax()
    try:
        return compiled.as_text()
    except jax.errors.JaxRuntimeError as error:
        if "RET_CHECK" not in str(error):  # the check that fails where it reads the operations
            raise
        return None


def bytes_needed(message):
    """Returns the bytes a program needs, from the compiler's refusal; None: it is no such one."""
    for pattern in _TOO_BIG:
        match = pattern.search(message)
        if match:
            return int(float(match[1]) * _UNITS[match[2]])
    return None


_ALL_REDUCE = re.compile(r" = (.*?) all-reduce(?:-start)?\((.*)")
_ARRAY = re.compile(r"\b[a-z]+(\d+)\[([\d,]*)\]")


def summed_bytes(hlo, within=None):
    """Returns the bytes of the arrays that a compiled program's all-reduces sum, once each.

    Args:
      hlo: the program's text.
      within: count only the sums of so many cores that follow each other, those of a replica.
    """
    # Groups are written as [number,size]<=[cores], or in full.
    listed = ",".join(map(str, range(within or 0)))
    of_replica = re.compile(rf"replica_groups=(\[\d+,{within}\]<=\[\d+\](?!T)|\{{\{{{listed}\}})")
    return sum(
        int(bits) // 8 * math.prod(int(size) for size in shape.split(",") if size)
        for results, rest in _ALL_REDUCE.findall(hlo)
        if within is None or of_replica.search(rest)
        for bits, shape in _ARRAY.findall(re.sub(r"\{[^}]*\}", "", results))
    )


def _state_and_input(lowered, mesh):
    """Bytes of one core's weights, other state and input, without the padding of layouts."""

    def num_bytes(shape, dtype):
        return math.prod(shape) * stablehlo.dtype(dtype).itemsize

    sizes = {"weights": 0, "optimizer_state": 0}
    for variable, sharding in zip(lowered.state, mesh.of_state(lowered.state), strict=True):
        kind = "weights" if variable.trainable else "optimizer_state"
        sizes[kind] += num_bytes(sharding.shard_shape(variable.shape), variable.dtype)
    inputs = stablehlo.parameters(lowered.text)[: lowered.num_inputs]
    return {**sizes, "input": sum(num_bytes(*each) for each in inputs)}


def _lower_bound(costs, hlo):
    """Returns the compiler's lower bound of the time of a step, or None, as without a text.

    It is a sum over operations, with -1 for each that the compiler knows no time of. The custom
    calls that take an int64 (the global step) apart and put it together are such, and take none.
    Loops count once, so there is no bound for a step with one (micro-batches).
    """
    if hlo is None or " while(" in hlo:
        return None
    secs = costs.get("optimal_seconds", 0) + len(re.findall(r'custom_call_target="X64', hlo))
    return secs if secs > 0 else None
