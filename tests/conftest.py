"""What all tests share: the XLA runtime, where what it needs is installed; TensorFlow's logger.

jax takes the number of virtual cores once, when the first test that needs a device starts it: so
there are enough for every test.
"""

import atexit
import gc
import importlib.util
import os
import pathlib
import shutil
import tempfile

import pytest

# The processes of one run of the tests share the programs that they compile, and no test finds what
# an earlier run compiled. jax reads the variable when it is loaded, which TensorFlow may do.
if "PYTEST_XDIST_WORKER" not in os.environ:  # pytest-xdist's processes take the first one's
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="compiled_programs_")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

import log_lines
import rewriting
import tensorflow.compat.v1 as tf

os.environ.pop("TPU_NAME", None)  # what to run on is each test's own choice

from bert_estimator.tpu.program import devices
from bert_estimator.tpu.step import step_graph

try:
    devices.import_jax().config.update("jax_num_cpu_devices", 8)
    step_graph.check_tensorflow()
    _MISSING = None
except RuntimeError as error:
    _MISSING = str(error)


@pytest.fixture(scope="session")
def xla_runtime():
    """Skips the tests that use this fixture if the XLA runtime cannot run."""
    if _MISSING:
        pytest.skip("needs the XLA runtime")


@pytest.fixture(scope="session")
def tpu_compiler(xla_runtime):
    """Skips the tests that compile for TPUs if the TPU's compiler is not installed."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs the TPU's compiler, libtpu")


HERE = pathlib.Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def graph_rewriting(request):
    """Switches TensorFlow's rewriting of graphs off, unless a module sets REWRITES_GRAPHS = True.

    The copies of the process that `forked` makes do as the process does. It stays on if slow tests
    are asked for, and in new processes.
    """
    is_quick = request.config.option.markexpr == "not slow"
    with pytest.MonkeyPatch.context() as patched:
        if is_quick and not getattr(request.module, "REWRITES_GRAPHS", False):
            rewriting.switch_off(patched)
        yield


@pytest.fixture
def rewritten_graphs(monkeypatch):
    """Switches the rewriting of graphs on, for exactly the numbers of a new process."""
    rewriting.switch_on(monkeypatch)


_LOGGER = tf.get_logger()
_AS_IT_WAS = _LOGGER.level, _LOGGER.propagate, [*_LOGGER.filters], [*_LOGGER.handlers]
_FORMATTERS = [handler.formatter for handler in _LOGGER.handlers]


@pytest.fixture(autouse=True)
def untouched_logger():
    """Scripts set TensorFlow's logger up, in fixtures too: the next test gets it as it was."""
    yield
    level, _LOGGER.propagate, filters, handlers = _AS_IT_WAS
    _LOGGER.setLevel(level)
    _LOGGER.filters[:], _LOGGER.handlers[:] = filters, handlers
    for handler, formatter in zip(handlers, _FORMATTERS, strict=True):
        handler.setFormatter(formatter)


# The files that take longest, the longest first.
LONG_FILES = (
    "test_stopped_runs.py",
    "test_run_classifier.py",
    "oracle/test_local_mode.py",
    "test_run_pretraining.py",
    "serving/test_predictor.py",
    "test_pretraining.py",
    "jobs/test_rollbacks.py",
    "test_classification.py",
    "interchange/test_conversion.py",
    "interchange/test_round_trip.py",
    "test_killed_evaluations.py",
    "jobs/test_compile_only.py",
    "test_wrong_input.py",
    "tpu/step/test_session_step.py",
    "legacy/test_scripts.py",
    "tpu/step/test_xla_step.py",
    "tpu/program/test_hosts.py",
    "test_tagging_runs.py",
    "test_modeling.py",
    "serving/test_text_model.py",
    "input_pipelines/test_embedded_task.py",
    "test_broken_disks.py",
    "test_combinations.py",
    "recipes/test_hand_over.py",
    "tpu/verbs/test_interrupts.py",
    "serving/test_answer_model.py",
    "serving/test_graph_sentencepiece.py",
    "interchange/test_hub.py",
    "test_run_squad.py",
    "tpu/test_train_eval.py",
    "tpu/test_tf1_idioms.py",
    "tpu/verbs/test_evaluation.py",
    "tpu/verbs/test_prediction.py",
    "tpu/verbs/test_kept_evaluation.py",
)


def pytest_configure(config):
    # A graph has so many objects that Python's garbage collector would run all the time: with
    # Python's own thresholds (700, 10, 10) it takes up to 9 % of a file's time.
    gc.set_threshold(20_000, 10, 10)
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # xdist would begin with the most cases instead


def pytest_collection_finish():
    """Spares the garbage collector what has been loaded: it would look at it for each graph."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config, items):
    """Puts the long files first, if pytest-xdist shares the files out to several processes.

    The processes then end at about the same time: none is left alone with a long file.
    """
    if hasattr(config, "workerinput"):
        place = {HERE / name: number for number, name in enumerate(LONG_FILES)}
        items.sort(key=lambda item: place.get(item.path, len(place)))


def pytest_terminal_summary(terminalreporter):
    """Says how many cases were skipped for want of the XLA runtime, and what it wants."""
    skipped = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    number = sum(reason.endswith("needs the XLA runtime") for reason in skipped)
    if number:
        terminalreporter.write_line(f"{number} cases were skipped: {_MISSING}")


@pytest.fixture
def logged():
    """What is logged in the test: a list of (level, message)."""
    with log_lines.collected() as lines:
        yield lines
