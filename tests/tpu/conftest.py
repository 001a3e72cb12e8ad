import logging

import pytest
import tensorflow.compat.v1 as tf


@pytest.fixture
def logged():
    """What is logged in the test: a list of (level, message)."""
    lines = []

    class Collector(logging.Handler):
        def emit(self, record):
            lines.append((record.levelname, record.getMessage()))

    logger, collector = tf.get_logger(), Collector()
    level = logger.level
    logger.addHandler(collector)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(collector)
    logger.setLevel(level)


@pytest.fixture
def warned(logged):
    """The warnings so far: a function without arguments."""
    return lambda: [message for level, message in logged if level == "WARNING"]


@pytest.fixture(autouse=True)
def closed_event_files():
    """Event writers are cached by directory for the process; here each test has its own."""
    yield
    tf.summary.FileWriterCache.clear()
