"""Tests that commands load, and bert-embed works, without what Python has on Unix alone."""

import json
import sys

import forked
from commands import CONSOLE
from fixtures import DATA

SCRIPT = '''
import contextlib
import importlib
import io
import json
import os
import signal
import sys

import numpy as np

modules = ["fcntl", "grp", "pwd", "resource", "syslog", "termios"]
of_os = """
fork forkpty getegid geteuid getgid getloadavg getuid killpg mkfifo nice posix_fadvise pread pwrite
register_at_fork sched_getaffinity sched_setaffinity set_blocking setsid statvfs sysconf
sysconf_names uname O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK
"""
of_signal = "SIGALRM SIGHUP SIGKILL SIGQUIT SIGUSR1 SIGUSR2 alarm pthread_sigmask setitimer"
sys.modules.update(dict.fromkeys(modules))  # None: an import of it fails
for module, names in ((os, of_os), (signal, of_signal)):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)


def open_file(path, *arguments, before=os.open, **options):
    if isinstance(path, (str, os.PathLike)) and os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return before(path, *arguments, **options)


os.open = open_file
console, model, text = json.loads(sys.argv[1]), *sys.argv[2:]


def printed(target, *arguments):
    """Returns what a command prints."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    main = importlib.import_module(target.partition(":")[0]).main
    with contextlib.redirect_stdout(out):
        try:
            code = main([target, *arguments])
        except SystemExit as end:  # of argparse
            code = end.code
    out.flush()
    assert not code, (target, code)
    return out.buffer.getvalue()


for target in console.values():
    assert printed(target, "--help"), target
print(np.load(io.BytesIO(printed(console["embed"], model, text))).shape)
'''


def test_what_only_unix_has_is_not_needed(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "text.txt").write_text("one text\nanother\n")
    arguments = [json.dumps(CONSOLE), str(DATA / "hf_classifier"), "text.txt"]
    command = [sys.executable, "script.py", *arguments]
    done = forked.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.startswith("(2, "), done.stdout
