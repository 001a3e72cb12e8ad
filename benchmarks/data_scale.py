"""Creates records of a large text in all ways, and compares them: memory, kills, workers, Beam.

    python -m benchmarks.data_scale --megabytes=1000 --beam_python=python-with-apache-beam

The text is made as in `benchmarks.data_speed`. `create_pretraining_data` runs with one worker, then
with several; that command is killed (SIGKILL) at random moments, its workers end by themselves, and
it resumes when it is given again.
With --beam_python, it also runs on Apache Beam. All must write the same files, byte for byte. No
process may use more than a gigabyte of memory, but for Beam's. The last line is JSON.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import cores, data_speed

_MOST_MEGABYTES = 1000  # of memory of a process
_KILLS = 3
_START_SECS = 1.5  # until the command has begun to work, on a fast machine
_SHARDS = 8
_BEAM = [
    "--runner=DirectRunner",
    "--beam_options=--direct_num_workers=2 --direct_running_mode=multi_processing",
]


class Run:
    """Runs a command, and measures it.

    Args:
      command: the command.
      kill_after: seconds after which the command is killed, but not the processes that it started;
        None: the command runs to its end.

    Attributes:
      was_killed: whether the command had not ended by itself before.
      secs: the seconds that it took until all its processes had ended.
      megabytes: the greatest memory of the command's own process.
      worker_megabytes: the greatest memory of any process that it started; 0 without them.

    Raises:
      SystemExit: the command failed; the text has the end of its output.
    """

    def __init__(self, command: Sequence[str], kill_after: float | None = None):
        self.was_killed = False
        self.megabytes = self.worker_megabytes = 0.0
        start = time.monotonic()
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                command, cwd=cores.ROOT, stdout=output, stderr=output, start_new_session=True
            )
            while process.poll() is None:
                self._measure(process.pid)
                time.sleep(0.1)
                if kill_after is not None and time.monotonic() - start > kill_after:
                    process.send_signal(signal.SIGKILL)
                    self.was_killed = process.wait() == -signal.SIGKILL
            while members_of(process.pid):  # workers end by themselves
                time.sleep(0.1)
            if process.returncode and not self.was_killed:
                output.seek(0)
                end = output.read()[-4000:].strip()
                sys.exit(f"{end}\n{command} ended with {process.returncode}")
        self.secs = time.monotonic() - start

    def _measure(self, pid):
        for member in members_of(pid):
            megabytes = data_speed.peak_megabytes(member)
            if member == pid:
                self.megabytes = max(self.megabytes, megabytes)
            else:
                self.worker_megabytes = max(self.worker_megabytes, megabytes)


def members_of(session: int) -> list[int]:
    """Returns the ids of the processes of a session that have not ended."""
    members = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                state, _, _, of_process = file.read().rsplit(")", 1)[1].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of_process) == session and state != "Z":
            members.append(int(name))
    return members


def kill_moments(secs: float, seed: int) -> list[float]:
    """Returns after how many seconds each start of the command is killed, if one takes `secs`."""
    rng = random.Random(seed)
    shares = sorted(rng.uniform(0.05, 0.75) for _ in range(_KILLS))
    return [(b - a) * secs + _START_SECS for a, b in zip([0, *shares], shares, strict=False)]


class Scale:
    """Runs the command on one text; each time into a directory of its own.

    Args:
      arguments: of `main`.
      directory: where everything is written.
    """

    def __init__(self, arguments: argparse.Namespace, directory: str):
        self.text_file, self.vocab_file = data_speed.write_text(
            directory, arguments.megabytes, arguments.vocab_size
        )
        self._arguments, self._directory = arguments, directory

    def command(self, name: str, *others: str, python: str = sys.executable) -> list[str]:
        """Returns the command that writes into the directory of this name, which is made."""
        output = os.path.join(self._directory, name)
        os.makedirs(output, exist_ok=True)
        return [
            python,
            "-m",
            "input_pipelines.create_pretraining_data",
            f"--input_file={self.text_file}",
            f"--vocab_file={self.vocab_file}",
            f"--output_file={os.path.join(output, 'train.tfrecord')}",
            f"--num_shards={_SHARDS}",
            f"--masking={self._arguments.masking}",
            f"--dupe_factor={self._arguments.dupe_factor}",
            *others,
        ]

    def files(self, name: str) -> dict[str, str]:
        """Returns a dict of file -> hash of what lies in the directory of this name."""
        from input_pipelines.records import manifest

        directory = os.path.join(self._directory, name)
        return {
            file: manifest.sha256_of_file(os.path.join(directory, file))
            for file in sorted(os.listdir(directory))
            if not file.startswith(".")  # locks
        }


def measure(arguments: argparse.Namespace, directory: str) -> dict[str, Any]:
    """Runs everything in a directory; returns the values of the last line."""
    scale = Scale(arguments, directory)
    runs = {"one": Run(scale.command("one", "--num_workers=1"))}
    print(f"one worker: {vars(runs['one'])}", flush=True)
    expected = scale.files("one")
    workers = f"--num_workers={arguments.num_workers}"
    killed = []
    for secs in kill_moments(runs["one"].secs / arguments.num_workers, arguments.seed):
        killed.append(Run(scale.command("several", workers), secs))
        print(f"killed after {secs:.1f} s: {vars(killed[-1])}", flush=True)
    runs["resumed"] = Run(scale.command("several", workers))
    print(f"resumed: {vars(runs['resumed'])}", flush=True)
    if arguments.beam_python:
        runs["beam"] = Run(scale.command("beam", *_BEAM, python=arguments.beam_python))
        print(f"Beam: {vars(runs['beam'])}", flush=True)
    differ = [
        name
        for name, others in {"resumed": "several", "beam": "beam"}.items()
        if name in runs and scale.files(others) != expected
    ]
    here = [runs["one"], *killed, runs["resumed"]]
    return {
        "megabytes": round(os.path.getsize(scale.text_file) / 1e6, 1),
        "masking": arguments.masking,
        "dupe_factor": arguments.dupe_factor,
        "record_megabytes": _megabytes_of_records(directory),
        "kills": sum(run.was_killed for run in killed),
        "killed_after_secs": [round(run.secs, 1) for run in killed],
        "differ_from_one_worker": differ,
        "compared_files": len(expected),
        "compared_with": sorted(set(runs) - {"one"}),
        "worker_megabytes": round(max(run.worker_megabytes for run in here)),
        "main_process_megabytes": round(max(run.megabytes for run in here)),
        "secs": {name: round(run.secs, 1) for name, run in runs.items()},
        "load": os.getloadavg()[0],
    }


def _megabytes_of_records(directory):
    folder = os.path.join(directory, "one")
    names = [name for name in os.listdir(folder) if name.startswith("train")]
    return round(sum(os.path.getsize(os.path.join(folder, name)) for name in names) / 1e6, 1)


def broken_promises(result: dict[str, Any]) -> list[str]:
    """Returns what a result breaks, in words."""
    broken = [f"{name} wrote other files" for name in result["differ_from_one_worker"]]
    if result["kills"] < _KILLS:
        broken.append(f"only {result['kills']} kills came before the end; give more text")
    for name in ("worker_megabytes", "main_process_megabytes"):
        if result[name] > _MOST_MEGABYTES:
            broken.append(f"{name} is {result[name]}, but at most {_MOST_MEGABYTES} is promised")
    return broken


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark with arguments; prints a line of JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=float, default=1000.0, help="make a text of this size")
    parser.add_argument(
        "--vocab_size", type=int, default=8192, help="make a vocabulary of this size"
    )
    parser.add_argument(
        "--masking", default="dynamic", choices=["dynamic", "static"], help="make these records"
    )
    parser.add_argument(
        "--dupe_factor", type=int, default=1, help="make this number of passes over the text"
    )
    parser.add_argument("--num_workers", type=int, default=2, help="use this number of processes")
    parser.add_argument("--seed", type=int, default=0, help="draw the moments of the kills by this")
    parser.add_argument("--beam_python", help="run on Apache Beam with this Python, too")
    parser.add_argument("--directory", help="write the text and the records here, for a while")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        result = measure(arguments, directory)
    print(json.dumps(result))
    if broken := broken_promises(result):
        sys.exit("; ".join(broken))


if __name__ == "__main__":
    main()
