"""The fixtures of all tests. They load TensorFlow, which takes seconds: `conftest.py`, which the
process that shares tests out to others reads, does without."""

import contextlib
import importlib.util

import log_lines
import pytest
import quick_graphs
import tensorflow.compat.v1 as tf
import toy

from bert_estimator.tpu.program import devices
from bert_estimator.tpu.step.xla import step_graph

try:  # jax takes the number of virtual cores once: there are enough for every test
    devices.import_jax().config.update("jax_num_cpu_devices", 8)
    step_graph.check_tensorflow()
    _MISSING = None
except RuntimeError as error:
    _MISSING = str(error)


@pytest.fixture(scope="session")
def xla_runtime():
    """Skips the tests that use this fixture if the XLA runtime cannot run."""
    if _MISSING:
        pytest.skip(f"needs the XLA runtime: {_MISSING}")


@pytest.fixture
def ways_on_cores(request):
    """Skips the cases whose `way` needs cores, where cores cannot run."""
    case = getattr(request.node, "callspec", None)
    if case and "cores" in str(case.params.get("way")):
        request.getfixturevalue("xla_runtime")


@pytest.fixture(scope="session")
def tpu_compiler(xla_runtime):
    """Skips the tests that compile for TPUs if the TPU's compiler is not installed."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs the TPU's compiler, libtpu")


@pytest.fixture(scope="module", autouse=True)
def quicker_graphs(request):
    """Switches off what is done with every graph and program, unless a module asks for it."""
    is_quick = request.config.option.markexpr == "not slow"
    with pytest.MonkeyPatch.context() as patched, contextlib.ExitStack() as switched:
        if is_quick and not getattr(request.module, "REWRITES_GRAPHS", False):
            quick_graphs.switch_rewriting_off(patched)
        if is_quick and not getattr(request.module, "KNOWS_LINES", False):
            quick_graphs.switch_stacks_off(patched)
        if is_quick and not getattr(request.module, "OPTIMIZES_PROGRAMS", False):
            switched.enter_context(quick_graphs.little_optimizing())
        yield


@pytest.fixture
def rewritten_graphs(monkeypatch):
    """Switches the rewriting of graphs on, for exactly the numbers of a new process."""
    quick_graphs.switch_rewriting_on(monkeypatch)


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


@pytest.fixture
def logged():
    """What is logged in the test: a list of (level, message)."""
    with log_lines.collected() as lines:
        yield lines


@pytest.fixture
def warned(logged):
    """Returns a function without arguments that returns the warnings so far."""
    return lambda: [message for level, message in logged if level == "WARNING"]


@pytest.fixture(params=["session", "rehearse:2"])
def cores(request, monkeypatch):
    """Runs a test's toy estimators on each runtime; returns the number of cores."""
    if request.param == "session":
        return 1
    request.getfixturevalue("xla_runtime")
    monkeypatch.setattr(toy, "MASTER", request.param)
    return 2


@pytest.fixture(params=["local", "session", "rehearse:2"])
def rules(request):
    """Keywords of an estimator, in local mode and by the TPU's rules on each runtime."""
    if request.param.startswith("rehearse"):
        request.getfixturevalue("xla_runtime")
        return {"master": request.param}
    return {"use_tpu": request.param != "local"}


@pytest.fixture
def references():
    """As the legacy runner does: variables are references, as in TensorFlow 1, by default."""
    tf.disable_resource_variables()
    yield
    tf.enable_resource_variables()


@pytest.fixture
def old_control_flow():
    """Switches TensorFlow 2's control flow off, as tf.disable_v2_behavior() does."""
    tf.disable_control_flow_v2()
    yield
    tf.enable_control_flow_v2()


@pytest.fixture(autouse=True)
def closed_event_files():
    """Event writers are cached by directory for the process; here each test has its own."""
    yield
    tf.summary.FileWriterCache.clear()
