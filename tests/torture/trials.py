"""A trial: a run that is interrupted, run to its end, and compared with a whole run.

Each run is a process that is forked from this one, which has imported TensorFlow and jax but does
not use them. So a run does not spend seconds on imports.
"""

import json
import os
import re
import signal
import socket
import sys
import time
import traceback

from bert_estimator.command_line import console
from bert_estimator.tpu.program import devices

devices.import_jax()

LONGEST_SECS = 300
LOST_HOST_SECS = 30
MOST_INTERRUPTIONS = 3

_whole = {}  # Scenario -> (what a run leaves, its seconds, its file events)

# Python's audit events of what changes files, or opens them.
_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.copyfile")


class Run:
    """A process that runs a scenario's command.

    Args:
      scenario: the `Scenario`.
      data, output_dir: what it reads, and where it writes.
      log: path of a file for what it prints.
      at_event: kill the process at its file event of this number, counted from 1.
      cluster: for several hosts: (TF_CONFIG's cluster, the task).
    """

    def __init__(self, scenario, data, output_dir, log, at_event=None, cluster=None):
        self.log = log
        self._events, writer = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            _be_run(scenario, data, output_dir, log, at_event, cluster, writer)
        os.close(writer)
        self._started = time.monotonic()
        self.code, self.events = None, 0

    def poll(self):
        """Returns the exit code, or None while the process runs; minus a signal that killed it."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                self.secs = time.monotonic() - self._started
                with os.fdopen(self._events) as reader:
                    self.events = len(reader.read())
        return self.code

    def wait(self, secs=LONGEST_SECS):
        """Waits for the end; returns the exit code, or None if it takes too long: then it kills."""
        end = time.monotonic() + secs
        while self.poll() is None:
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                end += LONGEST_SECS
                self.poll()
                while self.poll() is None:
                    time.sleep(0.01)
                return None
            time.sleep(0.01)
        return self.code

    def signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def printed(self):
        with open(self.log, encoding="utf-8", errors="replace") as reader:
            return reader.read()


def _be_run(scenario, data, output_dir, log, at_event, cluster, events):
    """Runs the command as the forked process; does not return."""
    code = 70
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.argv = [scenario.name]
        if cluster:
            os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster[0], "task": cluster[1]})
        count = 0

        def hook(event, args):
            nonlocal count
            if event in _EVENTS and args and str(output_dir) in str(args[0]):
                count += 1
                os.write(events, b".")
                if count == at_event:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            code = scenario.main(data, output_dir)
        except SystemExit as end:
            code = end.code
        console.leave(code)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class Trial:
    """Runs a scenario with an action that a generator draws.

    Attributes:
      action: "kill", "signal", "damage" or "host".
      folder: the trial's directory.
      hits: how many interruptions came before the run's end.
    """

    def __init__(self, scenario, generator, folder):
        self._scenario, self._generator = scenario, generator
        actions = ["kill", "kill", "signal"] + ["damage"] * bool(scenario.checkpoints)
        self.action = "host" if scenario.hosts > 1 else generator.choice(actions)
        self._root = folder / re.sub(r"\W+", "-", scenario.name)
        self.folder = self._root / f"trial-{generator.randrange(10**9)}"
        self.hits, self._notes = 0, []

    def described(self):
        return f"{self.action} ({', '.join(self._notes)})"

    def run(self):
        """Returns what the trial found wrong, as text, or None."""
        expected, secs, events = self._whole_run()
        os.makedirs(self.folder)
        interrupt = self._interrupt_hosts if self._scenario.hosts > 1 else self._interrupt
        for number in range(self._generator.randint(1, MOST_INTERRUPTIONS)):
            problem = interrupt(number, secs, events)
            if problem:
                return problem
        codes = [run.wait() for run in self._start("last")]
        if codes != [0] * len(codes):
            return f"The last run ended with {codes}; see last*.log."
        left = self._left("run")
        if self.action == "signal":
            expected, left = _after_signals(expected), _after_signals(left)
        return _difference(expected, left)

    def _whole_run(self):
        if self._scenario not in _whole:
            os.makedirs(self._root / "data", exist_ok=True)
            self._in_child(lambda: self._scenario.write_data(self._root / "data"))
            self.folder, own = self._root, self.folder
            runs = self._start("whole", "whole")
            codes = [run.wait() for run in runs]
            if any(codes) or None in codes:
                raise SystemExit(
                    f"The run that nothing interrupts ended with {codes}: see {self._root}"
                )
            _whole[self._scenario] = self._left("whole"), runs[0].secs, runs[0].events
            self.folder = own
        return _whole[self._scenario]

    def _start(self, log, output_dir="run", at_event=None):
        """Starts the command: a `Run` for each host."""
        clusters = [None]
        if self._scenario.hosts > 1:
            with socket.socket() as free:
                free.bind(("localhost", 0))
                port = free.getsockname()[1]
            cluster = {"chief": [f"localhost:{port}"], "worker": ["localhost:1"]}
            tasks = {"type": "chief", "index": 0}, {"type": "worker", "index": 0}
            clusters = [(cluster, task) for task in tasks]
        return [
            Run(
                self._scenario,
                self._root / "data",
                self.folder / output_dir,
                self.folder / f"{log}-{number}.log",
                at_event,
                cluster,
            )
            for number, cluster in enumerate(clusters)
        ]

    def _interrupt(self, number, secs, events):
        """Interrupts a run once; returns what is wrong, or None."""
        generator = self._generator
        if self.action == "signal":
            return self._signal(number, generator.uniform(0, 1.1 * secs))
        at_event, at_secs = None, LONGEST_SECS
        if generator.random() < 0.6:
            at_event = generator.randint(1, max(1, events))
            self._notes.append(f"at file event {at_event} of {events}")
        else:
            at_secs = generator.uniform(0, 1.1 * secs)
            self._notes.append(f"after {at_secs:.2f} of {secs:.2f} s")
        (run,) = self._start(f"killed-{number}", at_event=at_event)
        code = run.wait(at_secs)
        if code not in (0, None, -signal.SIGKILL):
            return f"Before it was killed, it ended with exit code {code}: see {run.log}"
        self.hits += code != 0
        if self.action == "damage":
            self._damage()
        return None

    def _signal(self, number, at_secs):
        """Sends SIGTERM or SIGINT; the run must save, and end with the signal's own exit code."""
        which = self._generator.choice([signal.SIGTERM, signal.SIGINT])
        self._notes.append(f"{which.name} after {at_secs:.2f} s")
        (run,) = self._start(f"signalled-{number}")
        end = time.monotonic() + at_secs
        while run.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        ended_before = run.poll() is not None
        run.signal(which)
        code = run.wait(60)
        self.hits += not ended_before
        # Outside of training and evaluation, SIGTERM ends a process as the kernel does: for a
        # shell, its exit code is 143 too.
        if code in ({0} if ended_before else {0, 128 + which, -which}):
            if "Traceback" in run.printed():
                return f"It printed a traceback: see {run.log}"
            return None
        return f"After {which.name} it ended with {code}: see {run.log}"

    def _interrupt_hosts(self, number, secs, events):
        """Kills a host; the other host must end in time, with a sentence and exit code 1."""
        at_secs, killed = self._generator.uniform(0, secs), self._generator.randrange(2)
        self._notes.append(f"host {killed} after {at_secs:.2f} of {secs:.2f} s")
        runs = self._start(f"killed-{number}")
        other = runs[1 - killed]
        runs[killed].wait(at_secs)
        runs[killed].signal(signal.SIGKILL)
        start = time.monotonic()
        code = other.wait(2 * LOST_HOST_SECS)
        runs[killed].wait()
        if runs[killed].code == 0 and code == 0:
            return None
        self.hits += 1
        if runs[killed].code == 0 or code == 0:  # one of them was through
            return None
        took = time.monotonic() - start
        if code != 1 or took > LOST_HOST_SECS:
            return f"The other host ended after {took:.1f} s with {code}: see {other.log}"
        text = other.printed()
        sentences = [line for line in text.splitlines() if ": error: " in line]
        if len(sentences) != 1 or "Traceback" in text or "Check failure" in text:
            return f"The other host did not end with one sentence: see {other.log}"
        return None

    def _damage(self):
        """Flips bits of the newest checkpoint, or cuts one of its files, or the state file."""
        generator = self._generator
        folder = self.folder / "run" / generator.choice(self._scenario.checkpoints)
        steps = [
            int(match[1])
            for name in (os.listdir(folder) if folder.is_dir() else ())
            if (match := re.fullmatch(r"model\.ckpt-(\d+)\.index", name))
        ]
        if len(steps) < 2:  # One checkpoint must be left.
            return
        newest = f"model.ckpt-{max(steps)}."
        files = [name for name in os.listdir(folder) if name.startswith(newest)]
        path = folder / generator.choice(sorted([*files, "checkpoint"]))
        size = os.path.getsize(path)
        if generator.random() < 0.3:
            os.truncate(path, generator.randrange(size))
        else:
            with open(path, "r+b") as file:
                place = generator.randrange(size)
                file.seek(place)
                byte = file.read(1)[0] ^ (1 << generator.randrange(8))
                file.seek(place)
                file.write(bytes([byte]))
        self._notes.append(f"then {path.name} damaged")

    def _left(self, name):
        return self._in_child(lambda: self._scenario.left(self.folder / name))

    def _in_child(self, function):
        """Calls a function in a forked process, so that this process stays fit to be forked."""
        reader, writer = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            try:
                result = json.dumps({"result": function()}).encode()
            except BaseException:
                result = json.dumps({"error": traceback.format_exc()}).encode()
            with os.fdopen(writer, "wb") as file:
                file.write(result)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            result = json.loads(file.read() or "{}")
        os.waitpid(pid, 0)
        return result["result"] if "result" in result else {"error": result.get("error")}


def _after_signals(left):
    """Leaves out what a signal moves: it saves at its own step, and later loops begin there."""
    moved = {"metrics", "checkpoints", "best", "kept", "results", "predictions", "exported step"}
    return {
        name: _after_signals(value) if name.startswith("stage_") else value
        for name, value in left.items()
        if name not in moved
    }


def _difference(expected, found):
    """Returns where what a run left differs from what it should be, as text, or None."""
    if expected == found:
        return None
    lines = []
    for name in sorted({*expected, *found}):
        if expected.get(name) != found.get(name):
            lines.append(f"  {name}: {_short(found.get(name))}, not {_short(expected.get(name))}")
    return "It left something else than a run that nothing interrupts:\n" + "\n".join(lines)


def _short(value):
    text = str(value)
    return text if len(text) < 1500 else text[:1500] + "..."
