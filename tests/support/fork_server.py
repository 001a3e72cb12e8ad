"""A process that has loaded TensorFlow and copies itself for each command that `forked` asks for.

Its arguments are a socket's descriptor, and a folder where copies keep the project's modules
compiled. A request is a byte with five descriptors: a file with the command, then its stdin, stdout
and stderr, then a pipe for the copy's process id and, when it has ended, its status. Copies have
only the thread that made them, and may deadlock: so TensorFlow and jax are loaded, and not started.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import threading
import types

# TensorFlow's client of gs:// reads them when TensorFlow is loaded, which `quick_graphs` does. By
# default it repeats a request that fails for minutes.
os.environ["GCS_RETRY_CONFIG_MAX_RETRIES"] = "1"
os.environ["GCS_RETRY_CONFIG_INIT_DELAY_TIME_US"] = "1000"

# scikit-learn loads pyarrow on Python 3.10, whose memory allocator would start a thread.
os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"

import quick_graphs


def load():
    """Loads third parties' modules, but for tf_slim, whose modules the legacy runner exchanges."""
    import matplotlib.backends.backend_svg
    import matplotlib.figure
    import matplotlib.style  # noqa: F401
    import sentencepiece  # noqa: F401
    import tensorflow.compat.v1  # noqa: F401

    with contextlib.suppress(ImportError):
        import jax  # noqa: F401
    gc.collect()
    gc.freeze()


def keep_compiled_modules(folder):
    """Modules that are loaded from now on are compiled by the first copy that loads them."""
    sys.dont_write_bytecode, sys.pycache_prefix = False, folder


def check_threads():
    """Raises RuntimeError if this process has more than one thread."""
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("what was loaded has started threads: copies may deadlock")


def serve(control):
    """Answers requests; returns (command, its working directory, its environment) in a copy."""
    awake, waker = socket.socketpair()
    for side in (awake, waker):
        side.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests, which close the socket
    pipes = {}  # process id -> the pipe for its status
    while True:
        ready, _, _ = select.select([control, awake], [], [])
        if awake in ready:
            awake.recv(1 << 12)
            report_ended(pipes)
        if control not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, 1, 5)
        if not message:
            sys.exit()
        request, *streams, status = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for side in (control, awake, waker):
                side.close()
            for descriptor in (status, *pipes.values()):
                os.close(descriptor)
            for number, descriptor in enumerate(streams):
                os.dup2(descriptor, number)
                os.close(descriptor)
            open_streams()
            with os.fdopen(request) as reader:
                return json.load(reader)
        check_threads()
        pipes[pid] = status
        os.write(status, b"%d\n" % pid)
        for descriptor in (request, *streams):
            os.close(descriptor)


def open_streams():
    """Makes the standard streams anew: a file can be sought in, and a pipe cannot."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        old = getattr(sys, name)
        new = open(  # noqa: SIM115 (it stays open)
            old.fileno(), mode, closefd=False, encoding=old.encoding, errors=old.errors
        )
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    sys.stderr.reconfigure(line_buffering=True)


def report_ended(pipes):
    """Writes the statuses of the copies that have ended to their pipes, and closes the pipes."""
    while pipes:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        pipe = pipes.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # nobody may wait for it
            os.write(pipe, b"%d\n" % os.waitstatus_to_exitcode(status))
        os.close(pipe)


def run(arguments, folder, environment):
    """Does what `python ARGUMENTS` does in a folder, with these environment variables alone."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # The environment may have another TMPDIR than the server's.
    quick_graphs.do_as_original()
    path = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    kind = arguments[0]
    first = {"-c": "", "-m": os.getcwd()}.get(kind) or os.path.dirname(os.path.abspath(kind))
    sys.path[:] = ["" if kind == "-c" else first, *path, *sys.path[1:]]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if kind == "-m":
        sys.argv[:] = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv[:] = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv[:] = arguments
        main.__file__ = kind
        with open(kind, "rb") as reader:
            exec(compile(reader.read(), kind, "exec"), main.__dict__)


def end(status):
    """Does what Python does at the end of a program, but for freeing objects: that takes 0.3 s."""
    threading._shutdown()  # waits for the threads that are not daemons
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except OSError:  # Python reports that when it ends
        sys.exit(status)
    os._exit(status)


if __name__ == "__main__":
    load()
    keep_compiled_modules(sys.argv[2])
    # In a copy the program goes on here. What it raises is up to Python, as for any program.
    try:
        run(*serve(socket.socket(fileno=int(sys.argv[1]))))
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):  # Python prints it
            raise
        end((ended.code or 0) & 0xFF)
    end(0)
