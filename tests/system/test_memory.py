"""Tests Python's garbage collector in steps, and the options of malloc."""

import gc
import os
import subprocess
import sys

import pytest

import bert_estimator
from bert_estimator.system import memory


@pytest.fixture(autouse=True)
def _unchanged():
    assert gc.isenabled()
    yield
    gc.enable()


def test_the_collector_is_off_within_and_as_it_was_afterwards():
    with memory.paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), memory.paused():
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    with memory.paused(), memory.paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


ROOT = os.path.dirname(os.path.dirname(bert_estimator.__file__))

# Four times, 100 MiB are allocated in pieces of 1 and 10 MiB, written, and freed.
FAULTS = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
faults = []
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pieces = [(libc.malloc(size << 20), size << 20) for size in [10, 1] * 9 + [1]]
    for address, size in pieces:
        ctypes.memset(address, 1, size)
    for address, _ in pieces:
        libc.free(ctypes.c_void_p(address))
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(*faults)
"""

# Four threads allocate; glibc says how many arenas it has.
ARENAS = """
import ctypes, tempfile, threading
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
everyone = threading.Barrier(4)
def allocate():
    libc.malloc(5000)
    everyone.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
with tempfile.NamedTemporaryFile() as file:
    stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
    assert libc.malloc_info(0, stream) == 0
    libc.fclose(stream)
    print(open(file.name).read().count("<heap "))
"""

pytestmark = pytest.mark.skipif(
    "CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", {}), reason="needs glibc"
)


def printed(function, code, **env):
    """Runs the code after a function without arguments; returns the integers that it prints."""
    before = (
        f"from bert_estimator.system import memory, tensorflow_import\n{function}()\n"
        if function
        else ""
    )
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MALLOC_") and name != "GLIBC_TUNABLES"
    }
    output = subprocess.check_output(
        [sys.executable, "-c", before + code], cwd=ROOT, env=inherited | env, text=True
    )
    return [int(word) for word in output.split()]


def test_freed_memory_serves_the_next_step():
    faults = printed("memory.keep_freed_memory", FAULTS)
    assert faults[0] > 10000  # 100 MiB are 25,600 pages
    assert max(faults[1:]) < 100


@pytest.mark.parametrize(
    ("function", "env"),
    [
        (None, {}),
        ("memory.keep_freed_memory", {"MALLOC_ARENA_MAX": "2"}),
        ("memory.keep_freed_memory", {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}),
    ],
)
def test_settings_of_the_environment_are_left_alone(function, env):
    assert min(printed(function, FAULTS, **env)) > 1000


@pytest.mark.parametrize(("function", "arenas"), [("tensorflow_import.prepare", 1), (None, 4)])
def test_threads_share_one_arena(function, arenas):
    (found,) = printed(function, ARENAS)
    assert found >= arenas if function is None else found == arenas
