"""Python's garbage collector, and how the C library's malloc serves the steps of a network.

A step of BERT-base on a CPU allocates gigabytes for its tensors and frees them. By default, glibc
returns much of that to the system and takes it again in the next step, page by page. In bfloat16,
on two cores that emulate it, this was a tenth of the processors' time. glibc also has an arena for
each thread, and what is free in one of them cannot serve another.
"""

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Iterator

try:
    import resource
except ImportError:  # Windows
    resource = None


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Surrounds what makes many objects that all stay, such as an import or a large graph, and
    keeps the garbage collector off in all threads."""
    # The collector searches all objects for unreachable ones, again and again while their number
    # grows. That takes a fifth of TensorFlow's import, and a tenth of building a graph. Objects
    # that only refer to each other are freed afterwards.
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# Options of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_NEVER = -1
_GROWTH_BYTES = 64 << 20

# Of control groups, version 2 and version 1.
_CONTAINER_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def share_one_arena() -> None:
    """Has all threads of this process allocate from one arena; call it before there are threads."""
    _set({_ARENA_MAX: 1})


def keep_freed_memory() -> None:
    """Has this process keep the memory that a step frees, for the next step."""
    # This is for steps whose tensors TensorFlow allocates one by one. XLA's programs allocate all
    # temporaries at once, and need more memory with it.
    _set({_MMAP_MAX: 0, _TRIM_THRESHOLD: _NEVER, _TOP_PAD: _GROWTH_BYTES})


def _set(options):
    """Sets options of glibc's malloc, unless the environment sets some, or it is not glibc."""
    given = any(name.startswith("MALLOC_") for name in os.environ)
    if given or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "gnu_get_libc_version"):
        for option, value in options.items():
            library.mallopt(option, value)


def address_limit() -> int | None:
    """Returns how many bytes of addresses this process may use (`ulimit -v`); None for any."""
    if resource is None:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def machine_bytes() -> int | None:
    """Returns how much memory the machine, its container and `ulimit -v` allow this process to
    have; None if the system does not tell."""
    limits = [limit for limit in [address_limit()] if limit is not None]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as reader:
            limits.append(int(reader.read()))  # "max" is not a number
    return min(limits, default=None)
