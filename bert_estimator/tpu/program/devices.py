"""The cores of the XLA runtime: which devices a master names, found through PJRT by jax."""

import contextlib
import glob
import os
import re
import warnings
from importlib import metadata

from bert_estimator.tpu.program import hosts

# another may fail anywhere; `[tpu]` in pyproject.toml installs one of these.
TRIED = {"0.10.2": "0.0.52", "0.12.0": "0.0.52"}

_INSTALL = "pip install 'bert-estimator[tpu]', on Python 3.11 or newer"

_REHEARSE = re.compile(r"rehearse:([1-9][0-9]*)")
_ADDRESS = re.compile(r"grpc://.*|[^/:]+:[0-9]{3,5}")
ALLOWED = "local (the TPU of this machine), gpu (its GPUs), rehearse:N (N virtual cores of its CPU)"

# Where the drivers of TPUs put them. A jax without libtpu, or a machine without either, says no in
# a moment, and starts nothing.
_TPU_FILES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")

# Many virtual cores share few real ones: the last to arrive at a sum may be late.
_SUM_TIMEOUT_SECS = 1200


def default_master():
    """Returns what to run on where nothing was asked for: `TPU_NAME`, "local" where this machine
    has a TPU, or "": the session runtime."""
    name = os.environ.get("TPU_NAME", "")
    if name or not _has_tpu_files():
        return name
    try:
        find("local")
    except RuntimeError as error:
        # It may be another kind of device, such as a GPU given to a virtual machine.
        warnings.warn(f"Running without the TPU that seems to be here: {error}", stacklevel=2)
        return ""
    return "local"


def find(master):
    """Returns the devices that a master names, one a core, those of each host together.

    Where there are several hosts, it waits for them: "local" and "gpu" are what all of them have,
    and "rehearse:N" has N / hosts cores on each.

    Args:
      master: "local", "gpu" or "rehearse:N".

    Raises:
      RuntimeError: the master names nothing that can be reached, or jax is not installed.
      ValueError: TF_CONFIG makes no sense; see `hosts.find`.
    """
    if master == "local":
        if not _has_tpu_files():
            raise RuntimeError(
                f"master={master!r}: this machine has no TPU (there is no "
                f"{' or '.join(_TPU_FILES)}). Allowed: {ALLOWED}"
            )
        check_libtpu()
        return _devices_of_kind(
            "tpu",
            f"master={master!r}: the TPU of this machine cannot be used: {{}}. It needs libtpu "
            "(pip install 'bert-estimator[tpu]'), and no other program that holds it",
        )
    if master == "gpu":
        return _devices_of_kind(
            "gpu",
            f"master={master!r}: jax finds no GPU: {{}}. A GPU needs jax's build for it: "
            "pip install 'bert-estimator[tpu]' 'jax[cuda12]'",
        )
    rehearse = _REHEARSE.fullmatch(master)
    if rehearse is not None:
        return _virtual_cores(int(rehearse.group(1)))
    what = "names no TPU that this program can reach"
    if _ADDRESS.fullmatch(master):
        what = (
            "is the address of a TPU's worker, which TensorFlow no longer talks to: run this "
            "program on the TPU's own machine, as local"
        )
    raise RuntimeError(
        f"master={master!r} {what}. Allowed: {ALLOWED}; or no master at all, for the TPU of this "
        "machine if it has one, else the session runtime. A Cloud TPU's name reaches nothing "
        "either: its own machine (TPU VM) is where the program runs"
    )


def compiler_options(cores):
    """Returns what the compiler has to be told for some devices, as a dict."""
    if cores[0].platform != "cpu":
        return {}
    return {"xla_cpu_collective_call_terminate_timeout_seconds": _SUM_TIMEOUT_SECS}


def _has_tpu_files():
    return any(glob.glob(pattern) for pattern in _TPU_FILES)


def _devices_of_kind(kind, error_text):
    """Returns the devices of all hosts; raises RuntimeError with the text where jax finds none."""
    jax = import_jax()
    hosts.join(jax)
    try:
        cores = _by_host(jax.devices(kind))
    except RuntimeError as error:
        raise RuntimeError(error_text.format(error)) from error
    # A slice's hosts find each other without TF_CONFIG too; then each would take itself for all.
    have, named = len({core.process_index for core in cores}), hosts.find().number
    if have > named:
        raise RuntimeError(
            f"These are cores of {have} hosts, and TF_CONFIG names {named}: give it on each of "
            "them, with one cluster of all and a task of its own"
        )
    return cores


def _virtual_cores(number):
    jax = import_jax()
    number_of_hosts = hosts.find().number
    if number % number_of_hosts:
        raise RuntimeError(
            f"master='rehearse:{number}': {number} cores cannot be shared evenly by the "
            f"{number_of_hosts} hosts of TF_CONFIG"
        )
    a_host = number // number_of_hosts
    # Both are refused where jax runs already, with what it was given then. It is kept from
    # taking this machine's GPUs or TPU, which a rehearsal does not use. No more cores than asked
    # for: each brings a thread, and the threads take turns on the real cores.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", max(a_host, jax.config.jax_num_cpu_devices))
        if not jax.config.jax_platforms:
            jax.config.update("jax_platforms", "cpu")
    hosts.join(jax)
    has = len(jax.local_devices(backend="cpu"))
    if has < a_host:
        raise RuntimeError(
            f"master='rehearse:{number}': jax runs in this process already, with {has} "
            "virtual cores, and cannot be given more: ask for them in a new process"
        )
    cores = _by_host(jax.devices("cpu"))
    return [core for i, core in enumerate(cores) if i % has < a_host]


def _by_host(cores):
    return sorted(cores, key=lambda core: (core.process_index, core.id))


def import_jax():
    """Returns the jax module.

    Raises:
      RuntimeError: it is not installed, or not one of the `TRIED`; the text says what to install.
    """
    try:
        import jax
    except ImportError:
        raise RuntimeError(
            f"The XLA runtime needs jax, which is not installed: {_INSTALL}"
        ) from None
    if jax.__version__ not in TRIED:
        raise RuntimeError(
            f"The XLA runtime was tried with jax {' and '.join(TRIED)}, and this is "
            f"{jax.__version__}: {_INSTALL}, with TensorFlow 2.19 or newer"
        )
    return jax


def check_libtpu():
    """Raises RuntimeError where libtpu is installed, and was not tried with this jax."""
    jax = import_jax().__version__
    with contextlib.suppress(metadata.PackageNotFoundError):
        version = metadata.version("libtpu")
        if version != TRIED[jax]:
            raise RuntimeError(
                f"jax {jax} was tried with libtpu {TRIED[jax]}, and this is libtpu {version}: "
                f"{_INSTALL}"
            )
