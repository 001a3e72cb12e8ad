"""Scripts that end while something is still open: they end soon, by their own exit codes.

They are processes of their own, since a copy that `forked` makes does not end as Python ends.
"""

import subprocess
import sys

import pytest

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


RUNS_ON = ["local", "session", "rehearse:2"]
CASES = [
    pytest.param(ending, runs_on, marks=pytest.mark.slow if (ending, runs_on) not in QUICK else ())
    for ending in ENDINGS
    for runs_on in RUNS_ON
]


@pytest.mark.parametrize("ending, runs_on", CASES)
def test_a_script_may_end_whatever_is_open(request, tmp_path, ending, runs_on):
    keywords = {"local": {"use_tpu": False}, "session": {}}.get(runs_on, {"master": runs_on})
    if runs_on == "rehearse:2":
        request.getfixturevalue("xla_runtime")
    last_lines, code = ENDINGS[ending]
    program = script(keywords, last_lines)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.count("Traceback") == (ending == "exception"), done.stderr
    assert "Exception ignored" not in done.stderr
    assert ("second 2.0" in done.stdout) == (ending == "atexit")


@pytest.mark.slow
def test_tests_may_end_with_an_open_prediction(tmp_path):
    test = "kept = []\n\ndef test(): kept.append(predict())\n"
    (tmp_path / "test_open.py").write_text(script({"use_tpu": False}, test))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_open.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
