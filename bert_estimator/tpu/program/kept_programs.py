"""Programs that are kept, so that a program that was made before is not made again.

Within a process, `KeptPrograms` keeps what was lowered or compiled last. Between processes, jax's
compilation cache keeps compiled programs in a directory.
"""

import collections
import contextlib
import hashlib
import math
import os
import platform
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterator

from bert_estimator.system import paths
from bert_estimator.tpu.program import devices

# A kept program is rarely more than some 10 MiB. Train, evaluate and predict each have their own.
_MOST_PROGRAMS = 16
_MOST_BYTES_ON_DISK = 2 * 2**30
_SUFFIX = "-cache"  # of jax's files


class KeptPrograms:
    """Holds the programs of this process that were used last.

    Attributes:
      num_made: how many programs were made because they were not kept.
    """

    def __init__(self):
        self.num_made = 0
        self._programs = collections.OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable):
        """Returns the program of a key. If it is not kept, `make()` makes it."""
        with self._lock:
            if key in self._programs:
                self._programs.move_to_end(key)
                return self._programs[key]
        program = make()
        with self._lock:
            self.num_made += 1
            self._programs[key] = program
            while len(self._programs) > _MOST_PROGRAMS:
                self._programs.popitem(last=False)
        return program


def digest(*parts: bytes | str) -> str:
    """Returns a text of fixed length that only equal parts have in common."""
    digests = [hashlib.sha256(p.encode() if isinstance(p, str) else p).digest() for p in parts]
    return hashlib.sha256(b"".join(digests)).hexdigest()


def default_directory() -> str:
    """Returns the directory of compiled programs that is used if the user does not set one.

    It belongs to this kind of processor, since a program for another kind may not run.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    processor = [platform.machine(), platform.processor(), str(os.cpu_count())]
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        processor += sorted({line for line in file if line.startswith(("flags", "Features"))})
    return os.path.join(cache, "bert_estimator", "programs", digest(*processor)[:16])


def keep_on_disk() -> None:
    """Makes jax keep compiled programs on disk, and find what other processes compiled.

    The environment variable JAX_COMPILATION_CACHE_DIR sets the directory; the default is
    `default_directory()`, of which the oldest files are removed beyond 2 GiB.
    JAX_ENABLE_COMPILATION_CACHE=false turns this off. A program that took jax less than a second
    to compile is not written. If the directory cannot be written to, programs are not kept.
    """
    config = devices.import_jax().config
    directory = config.jax_compilation_cache_dir
    if not config.jax_enable_compilation_cache:
        return
    if directory is None:
        directory = default_directory()
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        except OSError:
            return
        _remove_oldest(directory)
        config.update("jax_compilation_cache_dir", directory)
    if not paths.is_remote(directory):
        _write_whole_files(directory)


@contextlib.contextmanager
def not_on_disk() -> Iterator[None]:
    """Keeps jax from writing programs to disk.

    It cannot read a program for devices that are not there, and would warn of it in the next run.
    """
    config = devices.import_jax().config
    least_secs = config.jax_persistent_cache_min_compile_time_secs
    config.update("jax_persistent_cache_min_compile_time_secs", math.inf)
    try:
        yield
    finally:
        config.update("jax_persistent_cache_min_compile_time_secs", least_secs)


def _write_whole_files(directory):
    """Makes jax move complete files into a directory.

    jax itself writes a file in its place, and never again. Other processes could read a part of it,
    and if the process is killed, the damaged file would stay there for good.
    """
    from jax._src import compilation_cache, lru_cache

    class WholeFiles(lru_cache.LRUCache):
        def put(self, key, value):
            place = os.path.join(directory, f"{key}{_SUFFIX}")
            with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
                file.write(value)
            os.replace(file.name, place)

    if compilation_cache._cache is None:
        compilation_cache._cache = WholeFiles(directory, max_size=-1)
        compilation_cache._cache_initialized = True


def _remove_oldest(directory):
    """Removes the files of a directory that were written first, beyond the most bytes."""
    with contextlib.suppress(FileNotFoundError):  # Another process may remove them too.
        files = [(entry.stat(), entry.path) for entry in os.scandir(directory)]
        total = sum(stat.st_size for stat, _ in files)
        for stat, path in sorted(files, key=lambda file: file[0].st_mtime):
            if total <= _MOST_BYTES_ON_DISK:
                break
            os.remove(path)
            total -= stat.st_size
