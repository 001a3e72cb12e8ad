"""Standard input, output and error of commands: whatever they are, they do not end the work.

The results of most commands are files. What such a command prints is lost if nothing takes it: if
the reader of a pipe ends, as `head` does, or if a disk is full. The exit code says what became of
the work. A command whose results are what it prints is run in `needed_output`.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterator

_MODES = {"stdin": "r", "stdout": "w", "stderr": "w"}


class OutputLostError(Exception):
    """Results cannot be printed."""

    def __init__(self, message, code=1):
        super().__init__(message)
        # The exit code: 2 if standard output was closed from the start.
        self.code = code


def prepare() -> None:
    """Opens the standard streams that are closed (`>&-`), and has all of them write any character,
    line by line, without errors; call it before a logger gets hold of the streams."""
    # Python has None for a closed stream, and the next file that is opened would have its number.
    closed = []
    for number, name in enumerate(_MODES):
        try:
            os.fstat(number)
        except OSError:
            closed.append(name)
            null = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(null, True)  # processes that this one starts have it, too
    for number, (name, mode) in enumerate(_MODES.items()):
        if getattr(sys, name) is None:
            stream = open(number, mode, closefd=False)  # noqa: SIM115 (it stays open)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # Another stream is somebody else's, or this function has been called before.
        if type(stream) is io.TextIOWrapper and stream is getattr(sys, f"__{name}__"):
            encoding = stream.encoding
            # Line by line, so that both streams into one file are in the order of the writes.
            options = {"errors": "backslashreplace", "line_buffering": True}
            output = _Output(stream.detach(), encoding, **options)
            output.is_closed = name in closed
            setattr(sys, name, output)
            setattr(sys, f"__{name}__", output)


@contextlib.contextmanager
def needed_output() -> Iterator[None]:
    """Surrounds a command whose results are printed; a loss of them is an `OutputLostError`."""
    output = sys.stdout
    if not isinstance(output, _Output):  # a test's
        yield
        return
    if output.is_closed:
        raise OutputLostError("standard output is closed, and the results are written there", 2)
    output.is_needed = True
    try:
        yield
        output.flush()
    finally:
        output.is_needed = False


@contextlib.contextmanager
def explaining_loss() -> Iterator[None]:
    """Surrounds writes to `sys.stdout.buffer`, whose errors become an OutputLostError."""
    try:
        yield
    except OSError as error:
        raise _loss(error) from error


def _loss(error):
    return OutputLostError(
        # `head` has read enough: it knows.
        ""
        if isinstance(error, BrokenPipeError)
        else f"standard output cannot be written: {os.strerror(error.errno)}"
    )


class _Output(io.TextIOWrapper):
    """Is a standard output or error that writes to /dev/null once it cannot be written."""

    # Whether it was closed when the process started, and whether a lost output is an error.
    is_closed = is_needed = False

    def write(self, text):
        try:
            return super().write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self):
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error):
        # From here on all writes succeed, also Python's own at its end.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())
        os.close(null)
        super().flush()  # what is left in the buffer
        loss = _loss(error)
        if self.is_needed:
            raise loss from error
        if self is sys.stdout and str(loss):
            print(f"WARNING: {loss}; what is printed is lost.", file=sys.stderr)
