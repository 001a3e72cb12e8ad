"""A trial: a run that is interrupted, run to its end, and compared with a whole run."""

import collections
import contextlib
import json
import os
import re
import signal
import socket
import sys
import time
import traceback

from process import LONGEST_SECS, Blow, Run

LOST_HOST_SECS = 60
MOST_INTERRUPTIONS, MOST_SIGNALS = 3, 8
ACTIONS = ("kill", "signal", "damage", "worker", "streams", "host")

_whole = {}  # Scenario -> (what a run leaves, its `Run`)


class Trial:
    """Runs a scenario with an action that a generator draws; `hits` counts what it did."""

    def __init__(self, scenario, generator, folder, only=None):
        self._scenario, self._generator = scenario, generator
        self.action = generator.choice([*actions_of(scenario), "kill", "kill"])
        if scenario.hosts > 1:
            self.action = "host"
        self.action = only or self.action
        self._weather = {}  # arguments of `Run` for all runs of the trial
        if self.action == "streams":
            self._weather = {"taken_bytes": generator.choice([0, 1, 1000, 5000])}
        self._is_background = generator.random() < 0.5
        self._root = folder / re.sub(r"\W+", "-", scenario.name)
        self.folder = self._root / f"trial-{generator.randrange(10**9)}"
        self.hits, self._notes = collections.Counter(), []
        if self._is_background:
            self._notes.append("writes in the background")

    def described(self):
        return f"{self.action} ({', '.join(self._notes)})"

    def run(self):
        """Returns what the trial found wrong, as text, or None."""
        expected, whole = self._whole_run()
        os.makedirs(self.folder)
        interrupt = {
            "signal": self._signal, "worker": self._kill_worker, "host": self._kill_host,
        }.get(self.action, self._kill)  # fmt: skip
        most = MOST_SIGNALS if self.action == "signal" else MOST_INTERRUPTIONS
        for number in range(self._generator.randint(1, most)):
            problem = interrupt(number, whole)
            if problem:
                return problem
        runs = self._start("last", **self._weather)
        codes = [run.wait() for run in runs]
        if codes != [0] * len(codes):
            return f"The last run ended with {codes}; see last*.log."
        if any("Traceback" in run.printed() for run in runs):
            return "The last run printed a traceback; see last*.log."
        left = self._left("run")
        if self.action == "signal":
            expected, left = _after_signals(expected), _after_signals(left)
        if "then checkpoint damaged" in self._notes:
            left = _without_forgotten(left, expected)
        return _difference(expected, left)

    def _whole_run(self):
        if self._scenario not in _whole:
            os.makedirs(self._root / "data", exist_ok=True)
            self._in_child(lambda: self._scenario.write_data(self._root / "data"))
            folder, self.folder = self.folder, self._root
            is_background, self._is_background = self._is_background, True
            runs = self._start("whole", "whole")
            codes = [run.wait() for run in runs]
            if any(codes) or None in codes:
                raise SystemExit(
                    f"The run that nothing interrupts ended with {codes}: see {self._root}"
                )
            _whole[self._scenario] = self._left("whole"), runs[0]
            self.folder, self._is_background = folder, is_background
        return _whole[self._scenario]

    def _start(self, log, output_dir="run", blow=None, **weather):
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
                blow,
                cluster,
                self._is_background,
                **weather,
            )
            for number, cluster in enumerate(clusters)
        ]

    def _inside(self, whole, number=signal.SIGKILL):
        """Draws a place of the run, and a time while the place is at work; returns a `Blow`."""
        generator = self._generator
        place = generator.choice(sorted(whole.spans))
        call = generator.randint(1, len(whole.spans[place]))
        secs = generator.uniform(0, whole.spans[place][call - 1])
        self._notes.append(f"{1000 * secs:.1f} ms into call {call} of {place}")
        return Blow(number, place=place, call=call, secs=secs)

    def _kill(self, number, whole):
        """Kills a run once; returns what is wrong, or None."""
        generator = self._generator
        blow, at_secs, way = None, LONGEST_SECS, generator.random()
        if way < 0.3:
            blow = Blow(event=generator.randint(1, max(1, whole.events)))
            self._notes.append(f"at file event {blow.event} of {whole.events}")
        elif way < 0.7 and whole.spans:
            blow = self._inside(whole)
        else:
            at_secs = generator.uniform(0, 1.1 * whole.secs)
            self._notes.append(f"after {at_secs:.2f} of {whole.secs:.2f} s")
        (run,) = self._start(f"killed-{number}", blow=blow, **self._weather)
        code = run.wait(at_secs)
        if code not in (0, None, -signal.SIGKILL):
            return f"Before it was killed, it ended with exit code {code}: see {run.log}"
        if code != 0:
            self.hits[blow.place if blow and blow.place else "kill"] += 1
        if self.action == "damage":
            self._damage()
        return None

    def _signal(self, number, whole):
        """Sends SIGTERM or SIGINT; the run must save, and end with the signal's own exit code."""
        generator = self._generator
        which = generator.choice([signal.SIGTERM, signal.SIGINT])
        blow, at_secs, way = None, LONGEST_SECS, generator.random()
        self._notes.append(which.name)
        if way < 0.4 and whole.spans:
            blow = self._inside(whole, which)
        elif way < 0.8:  # The machine may be faster or slower than during the whole run.
            blow = Blow(which, event=generator.randint(1, max(1, whole.events)))
            self._notes.append(f"at file event {blow.event} of {whole.events}")
        else:
            at_secs = generator.uniform(0, 1.1 * whole.secs)
            self._notes.append(f"after {at_secs:.2f} of {whole.secs:.2f} s")
        (run,) = self._start(f"signalled-{number}", blow=blow)
        end = time.monotonic() + at_secs
        while run.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        if blow is None:
            ended_before = run.poll() is not None
            run.signal(which)
        else:
            ended_before = False
        code = run.wait(60)
        self.hits[which.name] += code != 0
        # Outside of training and evaluation, SIGTERM ends a process as the kernel does: for a
        # shell, its exit code is 143 too.
        if code not in ({0} if ended_before else {0, 128 + which, -which}):
            return f"After {which.name} it ended with {code}: see {run.log}"
        if "Traceback" in run.printed():
            return f"It printed a traceback: see {run.log}"
        return self._unsaved(run)

    def _unsaved(self, run):
        """Returns what a run that says it saves has not saved, or None."""
        if "then saving" not in run.printed() or run.code == 0:
            return None
        for folder in [self.folder / "run", *(self.folder / "run").glob("stage_*")]:
            logged = [0]
            if (folder / "metrics.jsonl").exists():
                lines = (folder / "metrics.jsonl").read_text().splitlines()
                logged += [json.loads(line)["step"] for line in lines if '"loss"' in line]
            if logged[-1] > max(_steps(folder), default=0):
                return f"It did not save step {logged[-1]} in {folder}: see {run.log}"
        return None

    def _kill_worker(self, number, whole):
        """Kills a process that the run has started: it must say so, and end with exit code 1."""
        generator, run = self._generator, self._start(f"worker-{number}")[0]
        end = time.monotonic() + generator.uniform(0, whole.secs)
        while run.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        workers = run.workers()
        if not workers:
            self._notes.append("no worker")
            return None if run.wait() == 0 else f"It ended with {run.code}: see {run.log}"
        with contextlib.suppress(ProcessLookupError):
            os.kill(generator.choice(workers), signal.SIGKILL)
        self._notes.append("a worker killed")
        code, text = run.wait(), run.printed()
        if code not in (0, 1) or "Traceback" in text:
            return f"When a worker was killed, it ended with {code}: see {run.log}"
        self.hits["worker"] += code
        if code and "it resumes" not in text.splitlines()[-1]:
            return f"When a worker was killed, it did not say what to do: see {run.log}"
        return None

    def _kill_host(self, number, whole):
        """Kills a host; the other host must end in time, and not with exit code 0."""
        at_secs, killed = self._generator.uniform(0, whole.secs), self._generator.randrange(2)
        self._notes.append(f"host {killed} after {at_secs:.2f} of {whole.secs:.2f} s")
        runs = self._start(f"killed-{number}")
        other = runs[1 - killed]
        runs[killed].wait(at_secs)
        start = time.monotonic()
        runs[killed].signal(signal.SIGKILL)
        code = other.wait(2 * LOST_HOST_SECS)
        took = time.monotonic() - start
        runs[killed].wait()
        self.hits[f"host {killed}"] += runs[killed].code != 0 and code != 0
        if runs[killed].code == 0 or code == 0:  # one of them was through
            return None
        if code is None or took > LOST_HOST_SECS:
            return f"The other host ended after {took:.1f} s with {code}: see {other.log}"
        self._notes.append(f"the other one ended with {code} {took:.1f} s later")
        text = other.printed()
        if "Terminating process because the JAX" not in text and "Another host of TF_" not in text:
            return f"The other host did not say why it ended: see {other.log}"
        return None

    def _damage(self):
        """Flips bits of the newest checkpoint, or cuts one of its files, or the state file."""
        generator = self._generator
        folder = self.folder / "run" / generator.choice(self._scenario.checkpoints)
        steps = _steps(folder)
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
        self.hits["damage"] += 1

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


def actions_of(scenario):
    """Returns the actions that a scenario can be tried with."""
    if scenario.hosts > 1:
        return ["host"]
    possible = {"damage": scenario.checkpoints, "worker": scenario.workers}
    return [action for action in ACTIONS[:-1] if possible.get(action, True)]


def _steps(folder):
    """Returns the steps of the complete checkpoints in a directory, in order."""
    names = os.listdir(folder) if folder.is_dir() else ()
    matches = (re.fullmatch(r"model\.ckpt-(\d+)\.index", name) for name in names)
    return sorted(int(match[1]) for match in matches if match)


def _after_signals(left):
    """Leaves out what a signal moves: it saves at its own step, and later loops begin there."""
    moved = {"metrics", "checkpoints", "best", "kept", "results", "predictions", "exported step"}
    return {
        name: _after_signals(value) if name.startswith("stage_") else value
        for name, value in left.items()
        if name not in moved
    }


def _without_forgotten(left, expected):
    """Leaves out old checkpoints that a damaged state file does not list any more: nothing says
    that they are not kept on purpose."""
    kept = {}
    for name, value in left.items():
        if name.startswith("stage_"):
            kept[name] = _without_forgotten(value, expected[name])
        elif name == "checkpoints" and {*value} > {*expected[name]}:
            kept[name] = expected[name]
        else:
            kept[name] = value
    return kept


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
