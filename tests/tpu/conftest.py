import pytest
import tensorflow.compat.v1 as tf
import toy


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
    if request.param == "rehearse:2":
        request.getfixturevalue("xla_runtime")
        return {"master": request.param}
    return {"use_tpu": request.param != "local"}


@pytest.fixture(autouse=True)
def closed_event_files():
    """Event writers are cached by directory for the process; here each test has its own."""
    yield
    tf.summary.FileWriterCache.clear()
