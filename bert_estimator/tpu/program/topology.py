"""Topologies of TPUs that need not be there: their cores for the TPU's compiler, and facts of them.

The compiler is part of libtpu, and runs on any x86 machine. A topology names a generation and the
layout of its chips. For example, "v3:32x32" is 1024 chips of two cores each, a whole TPU v3 pod.
"""

import dataclasses
import importlib.util
import os
import re

from bert_estimator.tpu.program import devices

GIB = 2**30
EXAMPLES = "v2:2x2, v3:2x2, v3:32x32, v4:2x2x1, v5e:4x4, v5p:2x2x1, v6e:2x2"


@dataclasses.dataclass(frozen=True)
class Generation:
    """Holds facts of a TPU generation. The compiler takes one core for one device.

    Attributes:
      name: the name that Google Cloud uses.
      hbm: bytes of memory per core.
      usable_hbm: bytes that the compiler lets a program take; the system takes the rest.
      peak: FLOP/s of matrix products in bfloat16, per core.
      cores_a_chip: the number of cores that share a chip's links.
      link: bytes per second that one link of a chip carries in one direction.
      axes: the number of axes of the torus of chips; a chip has two links along each axis.
    """

    name: str
    hbm: float
    usable_hbm: float
    peak: float
    cores_a_chip: int
    link: float
    axes: int

    def all_reduce_secs(self, num_bytes: int, num_chips: int) -> float:
        """Returns the least time to sum arrays of `num_bytes` over all chips.

        A ring over n chips sends 2 (n - 1) / n of the bytes through every chip (Patarasuk and Yuan,
        2009). All links of the chip work at once, in both directions and along every axis of the
        torus. Sums between the cores of a chip, and latency, do not count.
        """
        if num_chips == 1:
            return 0.0
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
    """Returns the devices of a topology, one for each core.

    Args:
      name: a name such as "v3:32x32".

    Raises:
      RuntimeError: jax or libtpu is not installed, or they were not tested together.
      ValueError: the compiler does not know the topology; the text gives examples.
    """
    jax = devices.import_jax()
    if importlib.util.find_spec("libtpu") is None:
        raise RuntimeError(
            "The TPU's compiler is part of libtpu, which is not installed: "
            "pip install 'bert-estimator[tpu]', on Linux x86-64"
        )
    devices.check_libtpu()
    from jax.experimental import topologies

    for variable, value in _WITHOUT_TPU.items():
        os.environ.setdefault(variable, value)
    try:
        cores = topologies.get_topology_desc(platform="tpu", topology_name=name).devices
    except jax.errors.JaxRuntimeError as error:
        reason = re.sub(r"^[A-Z_]+: ", "", str(error).splitlines()[0])
        raise ValueError(f"{reason}. Examples of topologies: {EXAMPLES}") from None
    if cores[0].device_kind not in GENERATIONS:
        raise ValueError(
            f"{cores[0].device_kind} is not in `topology.GENERATIONS`, which has "
            + ", ".join(GENERATIONS)
        )
    return list(cores)


def generation(cores: list) -> Generation:
    """Returns the `Generation` of a topology's cores."""
    return GENERATIONS[cores[0].device_kind]
