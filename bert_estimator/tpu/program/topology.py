"""TPUs that need not be there: the cores of a topology, for the TPU's compiler, and their facts.

The compiler is libtpu's, and runs on any x86 machine. A topology is a generation and how its chips
are laid out, such as "v3:32x32": 1024 chips of two cores each, a whole TPU v3 pod.
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
    """Facts of a TPU generation, for one of its cores: what the compiler takes for one device.

    Attributes:
      name: as Google Cloud writes it.
      hbm: bytes of memory of a core.
      usable_hbm: bytes that the compiler lets a program take; the rest is the system's.
      peak: FLOP/s of matrix products in bfloat16, of a core.
      cores_a_chip: how many share the chip's links.
      link: bytes a second that one link of a chip carries, in one direction.
      axes: of the torus that the chips form; a chip has two links along each.
    """

    name: str
    hbm: float
    usable_hbm: float
    peak: float
    cores_a_chip: int
    link: float
    axes: int

    def all_reduce_secs(self, num_bytes, num_chips):
        """Least time to sum arrays of `num_bytes` over all chips.

        A ring over n chips sends 2 (n - 1) / n of the bytes through every chip (Patarasuk and Yuan,
        2009). All links of the chip work at once, in both directions, along every axis of the
        torus; what the cores of one chip sum between themselves is not counted, nor is latency.
        """
        if num_chips == 1:
            return 0.0
        sent = 2 * num_bytes * (num_chips - 1) / num_chips
        return sent / (2 * self.axes * self.link)


# By the name that PJRT gives a device. Memory and peak: Google Cloud's pages on TPU versions; of a
# v2, v3 and v4 chip half belongs to each of its two cores. Usable memory: what the compiler (libtpu
# 0.0.51) names when a program takes more. Links: Jouppi et al., "A domain-specific supercomputer
# for training deep neural networks" (2020), for v2 (496 Gbit/s) and v3 (656 Gbit/s); "How to scale
# your model" (Google DeepMind, 2025) for the others, from memory. Of a v5p's memory that page and
# Google Cloud's say 95 GB or 96; the compiler lets a program take 95.73 GiB, so it is 96 GiB here.
GENERATIONS = {
    "TPU v2": Generation("v2", 8 * GIB, 7.48 * GIB, 22.5e12, 2, 62e9, 2),
    "TPU v3": Generation("v3", 16 * GIB, 15.48 * GIB, 61.5e12, 2, 82e9, 2),
    "TPU v4": Generation("v4", 16 * GIB, 15.25 * GIB, 137.5e12, 2, 45e9, 3),
    "TPU v5 lite": Generation("v5e", 16 * GIB, 15.75 * GIB, 197e12, 1, 45e9, 2),
    "TPU v5": Generation("v5p", 96 * GIB, 95.73 * GIB, 459e12, 1, 90e9, 3),
    "TPU v6 lite": Generation("v6e", 32 * GIB, 31.24 * GIB, 918e12, 1, 90e9, 2),
}

# libtpu looks for the TPU of the machine it runs on, and complains at length where there is none.
_WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v3-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_MIN_LOG_LEVEL": "3",
    "TPU_STDERR_LOG_LEVEL": "3",
    # Several compilers at a time do not disturb each other, as programs on one TPU would.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def find(name):
    """Returns the devices of a topology, a list with one for each core.

    Args:
      name: such as "v3:32x32".

    Raises:
      RuntimeError: jax or libtpu is not installed, or they were not tried together.
      ValueError: the compiler does not know the topology; the text names some that it knows.
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
        found = topologies.get_topology_desc(platform="tpu", topology_name=name).devices
    except jax.errors.JaxRuntimeError as error:
        reason = re.sub(r"^[A-Z_]+: ", "", str(error).splitlines()[0])
        raise ValueError(f"{reason}. Topologies are written like {EXAMPLES}") from None
    if found[0].device_kind not in GENERATIONS:
        raise ValueError(
            f"{found[0].device_kind} is not in `topology.GENERATIONS`; there are "
            + ", ".join(GENERATIONS)
        )
    return list(found)


def generation(cores):
    """Returns the `Generation` of a topology's cores."""
    return GENERATIONS[cores[0].device_kind]
