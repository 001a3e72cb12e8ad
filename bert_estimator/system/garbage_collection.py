"""Switches Python's garbage collector off while many objects are made that all stay."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Surrounds what makes many objects that all stay, such as an import or a large graph.

    The collector searches all objects for unreachable ones, again and again while their number
    grows. That takes a fifth of TensorFlow's import, and a tenth of building a graph. Meanwhile it
    is off in all threads; objects that only refer to each other are freed afterwards.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
