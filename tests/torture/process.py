"""A run of a command in a fork of this process, which may kill itself at a chosen point."""

import collections
import contextlib
import dataclasses
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import types

from tensorflow.python.lib.io import file_io

from bert_estimator.command_line import console
from bert_estimator.tpu.program import devices
from bert_estimator.tpu.verbs import snapshot

devices.import_jax()

LONGEST_SECS = 900

# Python's audit events of what changes files, or opens them.
_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.copyfile")

# Functions that are worth a kill while they run: what is done there -> module and function.
_VERBS, _JOBS = "bert_estimator.tpu.verbs", "bert_estimator.jobs"
PLACES = {
    "copying the values of a checkpoint": f"{_VERBS}.snapshot:Snapshot.take",
    "writing a checkpoint in the background": f"{_VERBS}.snapshot:Snapshot.run_write",
    "naming a checkpoint": f"{_VERBS}.checkpoint_saver:KeptCheckpoints.keep",
    "deleting a checkpoint": f"{_VERBS}.checkpoint_saver:delete",
    "fsync of a checkpoint": f"{_VERBS}.checkpoint_saver:sync",
    "evaluating": "bert_estimator.tpu.base_estimator:Estimator.evaluate",
    "copying the best checkpoint": f"{_JOBS}.best_checkpoint:BestCheckpoint._copy",
    "removing other best checkpoints": f"{_JOBS}.best_checkpoint:BestCheckpoint._remove_others",
    "writing best.json": "bert_estimator.command_line.run_directory:write_evaluations",
    "a line of metrics": "bert_estimator.command_line.run_directory:RunDirectory.add_metrics",
    "an evaluation's line": "bert_estimator.command_line.run_directory:RunDirectory.add_evaluation",
    "predicting labels": f"{_JOBS}.fine_tuning.classification_job:Classification.predict",
    "predicting answers": f"{_JOBS}.fine_tuning.question_answering_job:QuestionAnswering.predict",
    "exporting": f"{_JOBS}.run:Run.export",
    "handing over": "bert_estimator.model_fns.init_checkpoint:open_source",
    "matching the weights handed over": "bert_estimator.model_fns.init_checkpoint:match",
    "giving a worker a task": "concurrent.futures:ProcessPoolExecutor.submit",
    "joining records": "input_pipelines.creation.stages:join_pieces",
    "writing the manifest": "input_pipelines.records.manifest:write_manifest",
}


@dataclasses.dataclass(frozen=True)
class Blow:
    """Says which signal the process sends itself: at an event, or after a place's call began."""

    number: int = signal.SIGKILL
    event: int | None = None
    place: str | None = None
    call: int = 0
    secs: float = 0


class Run:
    """A process that runs a scenario's command; `events` and `spans` are known after its end."""

    def __init__(
        self,
        scenario,
        data,
        output_dir,
        log,
        blow=None,
        cluster=None,
        is_background=False,
        taken_bytes=None,
    ):
        self.log = log
        self._news, writer = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            if is_background:
                snapshot.LEAST_BYTES = 0
            _be_run(scenario, data, output_dir, (log, taken_bytes), blow, cluster, writer)
        os.close(writer)
        self._started = time.monotonic()
        self.code, self.events, self.spans = None, 0, collections.defaultdict(list)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self):
        """Reads what the process says of its events, so that the pipe never fills up."""
        with os.fdopen(self._news) as reader:
            for line in reader:
                if line == ".\n":
                    self.events += 1
                else:
                    place, secs = line.rsplit(" ", 1)
                    self.spans[place].append(float(secs))

    def poll(self):
        """Returns the exit code, or None while the process runs; minus a signal that killed it."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
                self.secs = time.monotonic() - self._started
                self._listener.join(LONGEST_SECS)
        return self.code

    def wait(self, secs=LONGEST_SECS):
        """Waits for the end; returns the exit code, or None if it takes too long: then it kills."""
        end = time.monotonic() + secs
        while self.poll() is None:
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                while self.poll() is None:
                    time.sleep(0.01)
                return None
            time.sleep(0.01)
        return self.code

    def signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def workers(self):
        """Returns the ids of the processes that it has started."""
        path = f"/proc/{self.pid}/task/{self.pid}/children"
        with contextlib.suppress(OSError), open(path, encoding="ascii") as reader:
            # Python starts its tracker of semaphores again, which prints what it then lacks.
            return [pid for pid in map(int, reader.read().split()) if not _is_tracker(pid)]
        return []

    def printed(self):
        with open(self.log, encoding="utf-8", errors="replace") as reader:
            return reader.read()


def _is_tracker(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", encoding="utf-8") as reader:
        return "multiprocessing.resource_tracker" in reader.read()
    return False


def _be_run(scenario, data, output_dir, output, blow, cluster, news):
    """Runs the command as the forked process; does not return."""
    code = 70
    signals = signal.SIGINT, signal.SIGTERM
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # until the command begins
    try:
        descriptor = _open_output(*output)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        sys.argv = [scenario.name]
        sys.modules["__main__"] = types.ModuleType("__main__")  # Workers would load ours.
        if cluster:
            os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster[0], "task": cluster[1]})
        _watch_events(str(output_dir), blow, news)
        for place, function in PLACES.items():
            _watch_place(place, function, blow, news)
        try:
            if signal.SIGINT in signal.sigpending():
                os._exit(128 + signal.SIGINT)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
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


def _open_output(log, taken_bytes):
    """Returns a descriptor of what the process prints to: a file, or a pipe whose reader ends."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    if taken_bytes is None:
        return descriptor
    reader, writer = os.pipe()
    command = ["head", "-c", str(taken_bytes)]
    subprocess.Popen(command, stdin=reader, stdout=descriptor, start_new_session=True)
    os.close(reader)
    os.close(descriptor)
    return writer


def _watch_events(output_dir, blow, news):
    count = 0
    delete_file = file_io.delete_file

    def deleting(path):  # C++ deletes, which Python does not hear of.
        hook(_EVENTS[0], [path])
        delete_file(path)

    def hook(event, args):
        nonlocal count
        if event in _EVENTS and args and output_dir in str(args[0]):
            count += 1
            os.write(news, b".\n")
            if blow and count == blow.event:
                os.kill(os.getpid(), blow.number)

    sys.addaudithook(hook)
    file_io.delete_file = deleting


def _watch_place(place, function, blow, news):
    """Wraps a function: its calls are timed, and one of them may be struck while it runs."""
    module, path = function.split(":")
    owner = importlib.import_module(module)
    *outer, name = path.split(".")
    for each in outer:
        owner = getattr(owner, each)
    original, count = getattr(owner, name), 0

    @functools.wraps(original)
    def watched(*args, **kwargs):
        nonlocal count
        count += 1
        if blow and blow.place == place and blow.call == count:
            threading.Thread(target=_strike, args=(blow,), daemon=True).start()
        start = time.monotonic()
        try:
            return original(*args, **kwargs)
        finally:
            os.write(news, f"{place} {time.monotonic() - start:.6f}\n".encode())

    setattr(owner, name, watched)


def _strike(blow):
    time.sleep(blow.secs)
    os.kill(os.getpid(), blow.number)
