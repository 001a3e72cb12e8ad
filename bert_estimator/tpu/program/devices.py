"""Finds the cores of the XLA runtime: the devices that a master names, through PJRT and jax."""

import collections
import contextlib
import functools
import glob
import os
import re
import warnings
from importlib import metadata
from types import ModuleType

from bert_estimator.cluster import hosts

# Versions of jax and libtpu that were tested together. Other versions of jax may fail anywhere,
# because `stablehlo` uses jax's private API. `[tpu]` in pyproject.toml installs one of these pairs.
TRIED = {"0.10.2": "0.0.52", "0.12.0": "0.0.52"}

_INSTALL = "pip install 'bert-estimator[tpu]', on Python 3.11 or newer"

_REHEARSE = re.compile(r"rehearse:([1-9][0-9]{0,17})")
_ADDRESS = re.compile(r"grpc://.*|[^/:]+:[0-9]{3,5}")
ALLOWED = "local (the TPU of this machine), gpu (its GPUs), rehearse:N (N virtual cores of its CPU)"

# TPU drivers create these files. Looking for them is quick, and does not start jax.
_TPU_FILES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")

_MOST_VIRTUAL_CORES = 1024

# Many virtual cores share few real cores, so the last one may arrive late at a sum.
_SUM_TIMEOUT_SECS = 1200


def default_master() -> str:
    """Returns the master to use if none is given: `TPU_NAME` if it is set, else "local" if this
    machine has a TPU, else "", which means the session runtime."""
    name = os.environ.get("TPU_NAME", "")
    if name or not _has_tpu_files():
        return name
    try:
        find("local")
    except RuntimeError as error:
        # The files may belong to another kind of device, such as a GPU of a virtual machine.
        warnings.warn(
            f"This machine seems to have a TPU, but running without it: {error}", stacklevel=2
        )
        return ""
    return "local"


def find(master: str, wait_secs: float = hosts.WAIT_SECS) -> list:
    """Returns the devices that a master names: one for each core, sorted by host.

    If there are several hosts, this waits up to `wait_secs` for all of them. Then "local" and "gpu"
    are the devices of all hosts, and "rehearse:N" has N / hosts cores on each host.

    Raises:
      RuntimeError: the devices cannot be reached, or jax is not installed, or the port at
        which the hosts meet is taken.
    """
    if master == "local":
        if not _has_tpu_files():
            raise RuntimeError(
                f"master={master!r}: this machine does not have a TPU ("
                f"{' or '.join(_TPU_FILES)} does not exist). Allowed: {ALLOWED}"
            )
        check_libtpu()
        return _devices_of_kind(
            "tpu",
            master,
            wait_secs,
            f"master={master!r}: the TPU of this machine cannot be used: {{}}. Install libtpu "
            "(pip install 'bert-estimator[tpu]'), and end other programs that use the TPU",
        )
    if master == "gpu":
        return _devices_of_kind(
            "gpu",
            master,
            wait_secs,
            f"master={master!r}: jax does not find a GPU: {{}}. It needs jax's build for GPUs: "
            "pip install 'bert-estimator[tpu]' 'jax[cuda12]'",
        )
    if cores := num_virtual_cores(master):
        return _virtual_cores(cores, wait_secs)
    what = "does not name a TPU that this program can reach"
    if _ADDRESS.fullmatch(master):
        what = (
            "is the address of a TPU's worker, which TensorFlow no longer talks to: run this "
            "program on the TPU's own machine, with master='local'"
        )
    raise RuntimeError(
        f"master={master!r} {what}. Allowed: {ALLOWED}. Without a master, the program uses the TPU "
        "of this machine if it has one, else the session runtime. The name of a Cloud TPU does not "
        "work either: run the program on the Cloud TPU's own machine (its TPU VM)"
    )


def num_virtual_cores(master: str) -> int:
    """Returns N of "rehearse:N", and 0 for any other master."""
    rehearse = _REHEARSE.fullmatch(master)
    return int(rehearse.group(1)) if rehearse else 0


def compiler_options(cores: list) -> dict:
    """Returns the compiler options that some devices need, as a dict."""
    if cores[0].platform != "cpu":
        return {}
    return {"xla_cpu_collective_call_terminate_timeout_seconds": _SUM_TIMEOUT_SECS}


def _has_tpu_files():
    return any(glob.glob(pattern) for pattern in _TPU_FILES)


def _devices_of_kind(kind, master, wait_secs, error_text):
    """Returns the devices of all hosts; raises RuntimeError with the text if jax finds none."""
    jax = import_jax()
    hosts.join(jax, wait_secs)
    try:
        cores = _by_host(jax.devices(kind))
    except RuntimeError as error:
        raise RuntimeError(error_text.format(error)) from error
    _check_hosts(cores, master, "Hide some from the hosts with more, as CUDA_VISIBLE_DEVICES does")
    return cores


def _virtual_cores(number, wait_secs):
    jax = import_jax()
    if not 0 < number <= _MOST_VIRTUAL_CORES:
        raise RuntimeError(
            f"master='rehearse:{number}': there can be from 1 to {_MOST_VIRTUAL_CORES} virtual "
            "cores, since each has a thread"
        )
    number_of_hosts = hosts.find().number
    if number % number_of_hosts:
        raise RuntimeError(
            f"master='rehearse:{number}': {number} cores cannot be shared evenly by the "
            f"{number_of_hosts} hosts of TF_CONFIG"
        )
    cores_per_host = number // number_of_hosts
    # jax does not take over this machine's GPUs or TPU, which a rehearsal does not use. It gets no
    # more cores than were asked for: each has a thread, and the threads take turns on the real
    # cores. If jax runs already, it refuses both settings.
    with contextlib.suppress(RuntimeError):
        jax.config.update(
            "jax_num_cpu_devices", max(cores_per_host, jax.config.jax_num_cpu_devices)
        )
        if not jax.config.jax_platforms:
            jax.config.update("jax_platforms", "cpu")
    hosts.join(jax, wait_secs)
    num_local = len(jax.local_devices(backend="cpu"))
    if num_local < cores_per_host:
        if number_of_hosts > 1:
            raise RuntimeError(
                f"master='rehearse:{number}': jax already runs in this process, with {num_local} "
                f"virtual cores, and has told the other {number_of_hosts - 1} hosts of TF_CONFIG "
                "so. It cannot get more: start a new process for this master"
            )
        # jax's own client got its number of cores when it started, before this master was asked
        # for.
        return _own_client(number).devices()
    cores = _by_host(jax.devices("cpu"))
    _check_hosts(cores, f"rehearse:{number}", "Give all of them the same master")
    return [core for i, core in enumerate(cores) if i % num_local < cores_per_host]


@functools.cache
def _own_client(number):
    """Returns a client of the CPU beside jax's own; what runs on the cores of one does not touch
    the other."""
    from jaxlib import xla_client

    return xla_client.make_cpu_client(num_devices=number)


def _check_hosts(cores, master, advice):
    """Raises RuntimeError unless the cores are shared evenly by the hosts of TF_CONFIG."""
    of_hosts = collections.Counter(core.process_index for core in cores)
    # The hosts of a TPU slice find each other without TF_CONFIG too. Then each host would take
    # itself for the only one.
    if len(of_hosts) != (num_named := hosts.find().number):
        raise RuntimeError(
            f"These cores belong to {len(of_hosts)} hosts, but TF_CONFIG names {num_named}: set "
            "TF_CONFIG on each host, with one cluster of all hosts and the host's own task"
        )
    if len({*of_hosts.values()}) > 1:
        counts = ", ".join(f"host {host} has {number}" for host, number in of_hosts.items())
        raise RuntimeError(
            f"master={master!r}: each host needs the same number of cores, but {counts}. {advice}"
        )


def _by_host(cores):
    return sorted(cores, key=lambda core: (core.process_index, core.id))


def import_jax() -> ModuleType:
    """Returns the jax module; a RuntimeError says what to install if it is missing or untested."""
    try:
        import jax
    except ImportError:
        raise RuntimeError(
            f"The XLA runtime needs jax, which is not installed: {_INSTALL}"
        ) from None
    if jax.__version__ not in TRIED:
        raise RuntimeError(
            f"The XLA runtime was tested with jax {' and '.join(TRIED)}, but this is jax "
            f"{jax.__version__}: {_INSTALL}, with TensorFlow 2.19 or newer"
        )
    return jax


def check_libtpu() -> None:
    """Raises RuntimeError if the installed libtpu was not tested with this jax."""
    jax = import_jax().__version__
    with contextlib.suppress(metadata.PackageNotFoundError):
        version = metadata.version("libtpu")
        if version != TRIED[jax]:
            raise RuntimeError(
                f"jax {jax} was tested with libtpu {TRIED[jax]}, but this is libtpu {version}: "
                f"{_INSTALL}"
            )
