"""The cores of the XLA runtime: which devices a master names, found through PJRT by jax."""

import contextlib
import re

# Virtual cores cannot be added once jax has started its CPU client, so a few more than the first
# caller asks for are made: a rehearsal on 2 cores can be followed by one on 8 in one process.
_LEAST_VIRTUAL_CORES = 8

_REHEARSE = re.compile(r"rehearse:([1-9][0-9]*)")
ALLOWED = "rehearse:N (N virtual cores of this machine's CPU)"


def find(master):
    """Returns the devices that a master names, one a core.

    Args:
      master: "rehearse:N".

    Raises:
      RuntimeError: the master names nothing that can be reached, or jax is not installed.
    """
    rehearse = _REHEARSE.fullmatch(master)
    if rehearse is None:
        raise RuntimeError(
            f"master={master!r} names a TPU that cannot be reached. Allowed: {ALLOWED}; or no "
            "master at all, for the session runtime on this machine's CPU or GPU"
        )
    return _virtual_cores(int(rehearse.group(1)))


def _virtual_cores(number):
    jax = import_jax()
    # Refused where the client runs already, with as many cores as it was given then.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", max(number, _LEAST_VIRTUAL_CORES))
    cores = jax.devices("cpu")
    if len(cores) < number:
        raise RuntimeError(
            f"master='rehearse:{number}': jax runs in this process already, with {len(cores)} "
            "virtual cores, and cannot be given more: ask for them in a new process"
        )
    return cores[:number]


def import_jax():
    """Returns the jax module.

    Raises:
      RuntimeError: it is not installed; the text says what to install.
    """
    try:
        import jax
    except ImportError:
        raise RuntimeError(
            "The XLA runtime needs jax, which is not installed: pip install 'bert-estimator[tpu]'"
        ) from None
    if not hasattr(jax, "enable_x64"):
        raise RuntimeError(
            f"The XLA runtime needs jax 0.8 or newer, not {jax.__version__}: pip install "
            "'bert-estimator[tpu]', on Python 3.11 or newer"
        )
    return jax
