"""Standard input, output and error of commands: whatever they are, they do not end the work."""

import io
import os
import sys

_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}


def prepare() -> None:
    """Opens the standard streams that are closed (`>&-`), and has all of them write any character.

    A closed stream is /dev/null afterwards. Otherwise Python has None for it, and the next file
    that is opened would have its number. What an encoding lacks is written as an escape.
    """
    for number in range(len(_MODES)):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(null, True)  # processes that this one starts have it, too
    for number, (name, mode) in enumerate(_MODES.items()):
        if getattr(sys, name) is None:
            stream = open(number, mode, closefd=False)  # noqa: SIM115 (it stays open)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def outlive_reader() -> None:
    """Lets the process go on if the reader of its standard output ends, as `head` does.

    It is for commands whose results are files. What they print afterwards is lost.
    """
    stream = sys.stdout
    if type(stream) is io.TextIOWrapper and stream is sys.__stdout__:
        options = {name: getattr(stream, name) for name in ("encoding", "errors", "line_buffering")}
        sys.stdout = sys.__stdout__ = _Output(stream.detach(), **options)


class _Output(io.TextIOWrapper):
    """A standard output that writes to /dev/null once its reader has ended."""

    def write(self, text):
        try:
            return super().write(text)
        except BrokenPipeError:
            self._forget_reader()
            return len(text)

    def flush(self):
        try:
            super().flush()
        except BrokenPipeError:
            self._forget_reader()

    def _forget_reader(self):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())
        os.close(null)
