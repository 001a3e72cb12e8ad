"""Runs the commands of a user's journey, and measures how long each of them says nothing."""

import os
import pathlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import bert_estimator

ROOT = pathlib.Path(bert_estimator.__file__).parent.parent

# What a command must not print: the start-up messages of TensorFlow's C++ code.
CHATTER = re.compile(r"^[IWE]0000 |cuInit|oneDNN custom|absl::InitializeLog|cpu_feature_guard")


class Journey:
    """Runs commands in a directory; `longest_silence` is (seconds, the line before it, command)."""

    def __init__(self, directory: pathlib.Path):
        self._directory = directory
        self.longest_silence = (0.0, "", "")

    def run(self, *arguments: str, code: int = 0, stdin: str = "") -> list[str]:
        """Runs `python` and checks its exit code; returns the lines of both streams together."""
        command = [sys.executable, *map(str, arguments)]
        lines, heard = [], time.monotonic()
        with subprocess.Popen(
            command,
            cwd=self._directory,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            feeder = threading.Thread(target=_feed, args=(process.stdin, stdin))
            feeder.start()
            for line in process.stdout:
                heard = self._measure(heard, lines, arguments)
                lines.append(line.rstrip("\n"))
            self._measure(heard, lines, arguments)
            feeder.join()
        text = "\n".join(lines)
        assert process.returncode == code, f"{arguments}\n{text}"
        assert not [line for line in lines if CHATTER.search(line)], text
        return lines

    def _measure(self, heard: float, lines: Sequence[str], arguments: Sequence[str]) -> float:
        now = time.monotonic()
        silence = (now - heard, lines[-1] if lines else "(start)", " ".join(map(str, arguments)))
        self.longest_silence = max(self.longest_silence, silence)
        return now


def _environment():
    """Returns the environment of a user: without what the libraries of this process put into it."""
    theirs = ("TF_", "TPU_", "JAX_", "XLA_", "ALLOW_MULTIPLE_LIBTPU_LOAD")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    return {**kept, "PYTHONPATH": str(ROOT)}


def _feed(stream, text):
    with stream:
        stream.write(text)
