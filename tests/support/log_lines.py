"""Collects what is logged."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def collected() -> Iterator[list[tuple[str, str]]]:
    """Gives a list of (level, message), to which TensorFlow's logger adds what is logged."""
    lines = []

    class Collector(logging.Handler):
        def emit(self, record):
            lines.append((record.levelname, record.getMessage()))

    logger, collector = logging.getLogger("tensorflow"), Collector()
    level = logger.level
    logger.addHandler(collector)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(collector)
        logger.setLevel(level)
