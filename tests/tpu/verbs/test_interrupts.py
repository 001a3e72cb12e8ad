"""Signals, and scripts that end while something is still open."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import forked
import numpy as np
import pytest
from toy import checkpoint_steps, wait_until, weight_at

from bert_estimator.cluster import hosts
from bert_estimator.system.termination import Termination
from bert_estimator.tpu.verbs import interrupts
from bert_estimator.tpu.verbs.interrupts import Interrupts

# Each way to end is some lines of Python after these.
BEFORE = """
import queue, threading
import tensorflow.compat.v1 as tf
from bert_estimator import tpu
import toy

def model_fn(features, labels, mode, params):
    predictions = {"predictions": {"x": features["x"]}}
    return toy.make_model_fn(lambda features, loss: predictions)(features, mode, params)

def estimator():
    return toy.make_estimator(
        "model", model_fn, predict_batch_size=4, **KEYWORDS
    )

def predict(input_fn=lambda params: toy.batches()):
    answers = estimator().predict(input_fn, yield_single_examples=False)
    assert next(answers)["x"].tolist() == [1.0] * 4
    return answers

def waiting(params, ahead=0):
    def generate():
        yield 1.0
        queue.Queue().get()
    numbers = tf.data.Dataset.from_generator(generate, tf.float32, [])
    batches = numbers.map(lambda x: {"x": tf.fill([4], x)})
    return batches.prefetch(ahead) if ahead else batches

def in_daemon(run):
    began = threading.Event()
    threading.Thread(target=run, args=[began], daemon=True).start()
    assert began.wait(30)

class Began(tf.train.SessionRunHook):
    def __init__(self, began):
        self.began = began
    def after_run(self, run_context, run_values):
        self.began.set()

class Opened(Began):
    def after_create_session(self, session, coord):
        self.began.set()
"""

# What a script does last, and its exit code.
ENDINGS = {
    "open": ("answers = predict()", 0),
    "two": ("first, second = predict(), predict()", 0),
    "in a function": ("(lambda: predict())()\nkept = [predict()]", 0),
    "sys.exit": ("answers = predict()\nsys.exit(3)", 3),
    "exception": ("answers = predict()\nraise ValueError('my own')", 1),
    "cycle": ("class Cycle: pass\ncycle = Cycle()\ncycle.own, cycle.answers = cycle, predict()", 0),
    "__del__": (
        "class Server:\n"
        "    def __init__(self): self.answers = predict()\n"
        "    def __del__(self): self.answers.close()\n"
        "server = Server()",
        0,
    ),
    "atexit": (
        "import atexit\nanswers = predict()\n"
        "atexit.register(lambda: print('second', next(answers)['x'][0]))",
        0,
    ),
    "in a thread": (
        "answers = []\n"
        "thread = threading.Thread(target=lambda: answers.append(predict()))\n"
        "thread.start()\nthread.join()",
        0,
    ),
    "a daemon predicts": (
        "def run(began):\n    for batch in predict(): began.set()\nin_daemon(run)",
        0,
    ),
    "a daemon trains": (
        "in_daemon(lambda began: estimator().train("
        "toy.input_fn, hooks=[Began(began)], steps=10**6))",
        0,
    ),
    "a daemon evaluates": (  # Under TPU rules the hook's after_run comes after the last step.
        "in_daemon(lambda began: estimator().evaluate("
        "toy.input_fn, hooks=[Opened(began)], steps=10**6))",
        0,
    ),
    "a daemon trains and evaluates": (
        "in_daemon(lambda began: tpu.train_and_evaluate(estimator(),\n"
        "    tpu.TrainSpec(toy.input_fn, max_steps=10**6, hooks=[Began(began)]),\n"
        "    tpu.EvalSpec(toy.input_fn, steps=2)))",
        0,
    ),
    "requests": ("answers = predict(waiting)", 0),
    "requests, prefetched": ("answers = predict(lambda params: waiting(params, 2))", 0),
    "evaluation": (
        "kept = estimator().kept_evaluation(lambda params: toy.batches(last=2), steps=2)\n"
        "estimator().train(toy.input_fn, steps=1)\nkept.evaluate()",
        0,
    ),
}
QUICK = [("sys.exit", "local"), ("sys.exit", "session")]


def script(keywords, last_lines):
    path = f"import sys\nsys.path[:0] = {sys.path!r}\n"
    return f"{path}KEYWORDS = {keywords!r}\n{BEFORE}\n{last_lines}\n"


CASES = [
    pytest.param(ending, runs_on, marks=pytest.mark.slow if (ending, runs_on) not in QUICK else ())
    for ending in ENDINGS
    for runs_on in ["local", "session", "rehearse:2"]
]


@pytest.mark.parametrize("ending, rules", CASES, indirect=["rules"])
def test_a_script_may_end_whatever_is_open(tmp_path, ending, rules):
    last_lines, code = ENDINGS[ending]
    program = script(rules, last_lines)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.count("Traceback") == (ending == "exception"), done.stderr
    assert "Exception ignored" not in done.stderr
    assert ("second 2.0" in done.stdout) == (ending == "atexit")


@pytest.mark.slow
def test_tests_may_end_with_an_open_prediction(tmp_path, rules):
    test = "kept = []\n\ndef test(): kept.append(predict())\n"
    (tmp_path / "test_open.py").write_text(script(rules, test))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_open.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout and "Traceback" not in done.stderr


PROGRAM = '''
import sys, time
import numpy as np
import tensorflow.compat.v1 as tf
sys.path[:0] = {path!r}
import toy
scenario, folder = {scenario!r}, {folder!r}

def ready_at_100(i):
    """Any runtime has then done a few steps, since it does not draw that far ahead."""
    if i == 100:
        print("ready", flush=True)
    time.sleep(0.01)
    return np.full([4], i, np.float32)

def hangs_at_4(i):
    if i == 4:
        print("ready", flush=True)
        time.sleep(600)
    return np.full([4], i, np.float32)

def train(function, **keywords):
    estimator = toy.make_estimator(folder, save_checkpoints_steps=10**6, **keywords)
    estimator.train(toy.py_input_fn(function), steps=10**5)
    print("trained", flush=True)

if scenario in {runtimes}:
    toy.MASTER = "" if scenario == "session" else scenario
    try:
        train(ready_at_100, iterations_per_loop=10**5)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    train(ready_at_100, iterations_per_loop=10**5)
else:
    train(hangs_at_4, iterations_per_loop=1, use_tpu=scenario == "infeed")
'''

# What the program does, the signals it gets, its exit code. Python ends a program by
# KeyboardInterrupt with the signal itself, which a shell shows as 130.
SCENARIOS = {
    # These, a runtime each, catch the first signal's KeyboardInterrupt and train on.
    "session": ([signal.SIGINT, signal.SIGTERM], 143),
    "rehearse:2": ([signal.SIGINT, signal.SIGTERM], 143),
    "infeed": ([signal.SIGINT], -signal.SIGINT),
    # A step in TensorFlow that never ends cannot be finished: only a second signal helps.
    "local": ([signal.SIGINT, signal.SIGTERM], 143),
}
RUNTIMES = ("session", "rehearse:2")


class Process:
    """Runs a scenario in a process; `run` sends the signals, and waits for its end."""

    def __init__(self, folder, scenario, signals):
        self.folder, self.scenario, self.signals = folder, scenario, signals
        self._lines = []
        self._process = forked.start(
            [
                sys.executable,
                "-c",
                PROGRAM.format(
                    path=sys.path,
                    scenario=scenario,
                    runtimes=RUNTIMES,
                    folder=str(folder),
                ),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(
            target=lambda: self._lines.extend(iter(self._process.stderr.readline, ""))
        )
        self._reader.start()

    def run(self):
        try:
            for number in self.signals:
                if number == self.signals[0] or self.scenario in RUNTIMES:
                    self._wait_for_output("ready")
                self._process.send_signal(number)
                if number == self.signals[0]:
                    wait_until(lambda: any("Send it again" in line for line in self._lines), 30)
                    if self.scenario in RUNTIMES:
                        self._wait_for_output("interrupted")
            sent = time.monotonic()
            self.printed = self._process.stdout.read()
            self.code = self._process.wait(60)
            self.secs = time.monotonic() - sent
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            self._process.stdout.close()
            self._process.stderr.close()
        self.errors = "".join(self._lines)
        return self

    def _wait_for_output(self, word):
        while (line := self._process.stdout.readline()).strip() != word:
            assert line, "".join(self._lines)


@pytest.fixture(scope="module")
def processes(request, tmp_path_factory):
    """Returns the ended processes by scenario, without scenarios that cannot run here."""
    scenarios = dict(SCENARIOS)
    try:
        request.getfixturevalue("xla_runtime")
    except pytest.skip.Exception:
        del scenarios["rehearse:2"]
    started = [
        Process(tmp_path_factory.mktemp("model"), scenario, signals)
        for scenario, (signals, _) in scenarios.items()
    ]
    return {process.scenario: process.run() for process in started}


@pytest.fixture
def process(request, processes, scenario):
    if scenario == "rehearse:2":
        request.getfixturevalue("xla_runtime")
    return processes[scenario]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_signal_ends_the_program_soon_with_its_code_and_a_message(process, scenario):
    assert process.code == SCENARIOS[scenario][1]
    assert process.secs < 15
    assert "trained" not in process.printed
    words = "finishing the current step, then saving. Send it again to exit at once."
    told = process.signals if scenario in RUNTIMES else process.signals[:1]
    for number in told:
        assert f"{number.name}: {words}\n" in process.errors
    assert process.errors.count(words) == len(told)
    assert process.errors.rstrip().endswith("KeyboardInterrupt") == (scenario == "infeed")


@pytest.mark.parametrize("scenario", RUNTIMES)
def test_the_step_reached_is_saved_in_the_middle_of_a_loop(process):
    first, interrupted, terminated = checkpoint_steps(process.folder)
    assert first == 0
    assert 5 <= interrupted < terminated < 10**5
    for step in (interrupted, terminated):
        assert weight_at(process.folder, step) == step


def test_the_step_before_a_blocked_infeed_is_saved(processes):
    assert checkpoint_steps(processes["infeed"].folder) == [0, 3]
    assert weight_at(processes["infeed"].folder, 3) == 3.0


def test_a_second_signal_leaves_what_there_was(processes):
    assert checkpoint_steps(processes["local"].folder) == [0]


# In this process.


def raise_signal(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("number", "error", "code"),
    [(signal.SIGINT, KeyboardInterrupt, None), (signal.SIGTERM, SystemExit, 143)],
)
def test_the_first_signal_is_noted_and_raised_when_asked(number, error, code, capfd):
    with Interrupts("doing this and that") as interrupts:
        assert interrupts.requested is None
        interrupts.raise_if_requested()
        raise_signal(number)
        assert interrupts.requested == number
        with pytest.raises(error) as raised:
            interrupts.raise_if_requested()
    if code is not None:
        assert raised.value.code == code
    assert f"{number.name}: doing this and that. Send it again" in capfd.readouterr().err


def test_one_within_another_has_its_signals_in_common(monkeypatch, capfd):
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    with Interrupts("training") as outer:
        with Interrupts("evaluating") as inner:
            assert not interrupts.stop_requested()
            raise_signal(signal.SIGTERM)
            assert outer.requested == inner.requested == signal.SIGTERM
            assert interrupts.stop_requested()
            wait_until(lambda: "SIGTERM: evaluating. Send" in capfd.readouterr().err)
        with pytest.raises(SystemExit), Interrupts("evaluating once more"):
            raise AssertionError
        raise_signal(signal.SIGINT)
        wait_until(lambda: codes == [130])  # the second one, in spite of what came between
    assert "once more" not in capfd.readouterr().err
    assert not interrupts.in_one()
    with Interrupts("") as another:
        assert another.requested is None


@pytest.mark.parametrize(
    ("gathered", "wish", "number"),
    [
        ([[0, 0], [0, 0]], False, None),
        ([[0, 0], [1, 0]], True, None),
        ([[0, 0], [0, signal.SIGTERM]], True, signal.SIGTERM),
    ],
)
def test_a_signal_to_one_host_is_one_to_all(monkeypatch, capfd, gathered, wish, number):
    monkeypatch.setattr(hosts, "gather", lambda values: np.array(gathered))
    with Interrupts("saving", num_hosts=2) as asked:
        assert asked.wanted_by_any_host() == wish
        assert asked.requested == number
    told = "SIGTERM: saving, since another host got it.\n" in capfd.readouterr().err
    assert told == (number is not None)
    if number:
        with pytest.raises(SystemExit, match="143"):
            asked.raise_if_requested()


def test_a_signal_while_the_hosts_agree_is_for_the_next_time(monkeypatch):
    """This one alone would leave, and the others wait for it."""
    asked = Interrupts("saving", num_hosts=2)

    def gather(values):
        asked._handle(signal.SIGTERM, None)
        return np.array([[0, 0], values])

    monkeypatch.setattr(hosts, "gather", gather)
    with asked:
        asked.raise_if_requested()
        with pytest.raises(SystemExit, match="143"):
            asked.raise_if_requested()


def test_several_hosts_agree_before_one_within_another_raises(monkeypatch):
    """Asks the others first: they would wait for a host that leaves alone."""
    gathered = []

    def gather(values):
        gathered.append(values)
        return np.array([values, [0, 0]])

    monkeypatch.setattr(hosts, "gather", gather)
    with Interrupts("training", num_hosts=2):
        with Interrupts("training on", num_hosts=2):
            pass
        raise_signal(signal.SIGTERM)
        with pytest.raises(SystemExit, match="143"), Interrupts("evaluating", num_hosts=2):
            raise AssertionError
    assert gathered == [[0, 0], [0, signal.SIGTERM]]
    assert not interrupts.in_one()


def test_other_signals_are_left_alone():
    called = []
    previous = signal.signal(signal.SIGUSR1, lambda number, frame: called.append(number))
    try:
        with Interrupts("") as interrupts:
            raise_signal(signal.SIGUSR1)
            raise_signal(signal.SIGUSR1)
        assert called == [signal.SIGUSR1] * 2
        assert interrupts.requested is None
    finally:
        signal.signal(signal.SIGUSR1, previous)


def open_pipes():
    """The pipes this process has open, where the system can tell."""
    folder = "/proc/self/fd"
    if not os.path.isdir(folder):
        return None
    links = []
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(os.path.join(folder, name)))
    return sorted(link for link in links if link.startswith("pipe:"))


def test_what_was_there_before_is_put_back():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    pipes = open_pipes()
    for _ in range(3):
        with Interrupts(""), Interrupts(""):
            assert not any(signal.getsignal(number) is before[number] for number in before)
        assert {number: signal.getsignal(number) for number in before} == before
    assert signal.set_wakeup_fd(-1) == -1
    assert open_pipes() == pipes


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_signal_that_the_program_handles_or_ignores_is_left_to_it(number, is_ignored):
    called = []
    mine = signal.SIG_IGN if is_ignored else lambda number, frame: called.append(number)
    (other,) = {signal.SIGINT, signal.SIGTERM} - {number}
    previous = signal.signal(number, mine)
    try:
        with Interrupts("") as outer, Interrupts("") as inner:
            assert signal.getsignal(number) is mine
            for _ in range(2):  # a second one would end the process
                raise_signal(number)
            time.sleep(0.1)
            assert outer.requested is inner.requested is None
            raise_signal(other)
            assert outer.requested == other
        assert called == [] if is_ignored else [number] * 2
        assert signal.getsignal(number) is mine
    finally:
        signal.signal(number, previous)


def test_a_signal_that_ends_an_upload_is_taken_over():
    with Termination():
        before = signal.getsignal(signal.SIGTERM)
        assert before != signal.SIG_DFL
        with Interrupts("") as interrupts:
            raise_signal(signal.SIGTERM)
            assert interrupts.requested == signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) == before


def test_in_another_thread_nothing_is_installed():
    def body():
        with Interrupts("") as interrupts:
            seen.append((signal.getsignal(signal.SIGINT), interrupts.requested))

    seen = []
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [(signal.getsignal(signal.SIGINT), None)]
