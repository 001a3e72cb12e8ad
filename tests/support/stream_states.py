"""A program that runs a command once for each state of its standard output and error.

Its arguments are MODULE, FUNCTION, a JSON list of states, a path for the results, a JSON list of
[exit code, stdout, stderr], and the command's own arguments, with "{number}" for the number of the
state. A state is a pair, for stdout and stderr, of

  ok: a file; closed; full: /dev/full; gone: a pipe that nobody reads; head: a pipe whose reader
  ends after the first byte.
"""

import importlib
import json
import os
import sys
import tempfile


def set_stream(number, kind, file):
    """Has a stream of this process in a state; `file` is the file, or the pipe's descriptors."""
    name = ("stdin", "stdout", "stderr")[number]
    if kind == "ok":
        os.dup2(file.fileno(), number)
    elif kind == "full":
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, number)
        os.close(full)
    elif kind in ("gone", "head"):
        os.dup2(file[1], number)
    stream = open(number, "w", closefd=False) if kind != "closed" else None  # noqa: SIM115
    if kind == "closed":
        os.close(number)
    elif name == "stderr":
        stream.reconfigure(line_buffering=True)
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def run(state):
    """Returns True in the child, which is to run the command; else what became of it."""
    pipes = {kind: os.pipe() for kind in ("gone", "head")}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if not pid:
            for number, kind in enumerate(state, 1):
                set_stream(number, kind, pipes.get(kind, (out, err)[number - 1]))
            for pair in pipes.values():
                os.close(pair[0])
                os.close(pair[1])
            return True
        for _, writer in pipes.values():
            os.close(writer)
        os.close(pipes["gone"][0])
        os.read(pipes["head"][0], 1)
        os.close(pipes["head"][0])
        _, status = os.waitpid(pid, 0)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
        return [os.waitstatus_to_exitcode(status), *texts]


def main(module, function, states, path, *arguments):
    command = getattr(importlib.import_module(module), function)
    results = []
    for number, state in enumerate(json.loads(states)):
        result = run(state)
        if result is True:
            sys.argv = [module, *(word.replace("{number}", str(number)) for word in arguments)]
            command()
            return
        results.append(result)
    with open(path, "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
