"""What all tests share: the XLA runtime, where what it needs is installed; TensorFlow's logger.

jax takes the number of virtual cores once, when the first test that needs a device starts it: so
there are enough for every test.
"""

import importlib.util
import os

import pytest
import tensorflow.compat.v1 as tf

os.environ.pop("TPU_NAME", None)  # what to run on is each test's own choice
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # no test finds what an earlier run compiled

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


def pytest_terminal_summary(terminalreporter):
    """Says how many cases were skipped for want of the XLA runtime, and what it wants."""
    skipped = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    number = sum(reason.endswith("needs the XLA runtime") for reason in skipped)
    if number:
        terminalreporter.write_line(f"{number} cases were skipped: {_MISSING}")
