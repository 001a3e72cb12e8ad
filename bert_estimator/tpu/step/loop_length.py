"""The number of steps in the next loop."""

import collections
import contextlib
import math
import time
from collections.abc import Iterator

import numpy as np

_UNIT_SECS = {"s": 1, "m": 60, "h": 3600}


class LoopLength:
    """Says how many steps the next loop has: a number, or as many as take a time such as "30s".

    Args:
      iterations_per_loop: int or str, see `TPUConfig`.
    """

    def __init__(self, iterations_per_loop: int | str):
        self._steps, self._target_secs = iterations_per_loop, None
        if isinstance(iterations_per_loop, str):
            self._target_secs = int(iterations_per_loop[:-1]) * _UNIT_SECS[iterations_per_loop[-1]]
            self._steps = 1  # The first loop measures how long a step takes.
        self._step_secs = collections.deque(maxlen=20)

    def get(self) -> int:
        return self._steps

    def most(self) -> float:
        """Returns how many steps a loop may have; infinity if a time was given."""
        return self._steps if self._target_secs is None else math.inf

    @contextlib.contextmanager
    def timed(self, iterations: int) -> Iterator[None]:
        """Measures the time of a loop of `iterations` steps, to choose the next loop's length."""
        start = time.perf_counter()
        yield
        if self._target_secs is not None:
            self._step_secs.append((time.perf_counter() - start) / iterations)
            self._steps = max(1, round(self._target_secs / np.mean(self._step_secs)))
