"""How many steps the next loop has."""

import collections
import contextlib
import math
import time

import numpy as np

_UNIT_SECS = {"s": 1, "m": 60, "h": 3600}


class LoopLength:
    """Steps in the next loop: a number, or as many as fit into a time such as "30s".

    Args:
      iterations_per_loop: as of `TPUConfig`.
    """

    def __init__(self, iterations_per_loop):
        self._steps, self._target_secs = iterations_per_loop, None
        if isinstance(iterations_per_loop, str):
            self._target_secs = int(iterations_per_loop[:-1]) * _UNIT_SECS[iterations_per_loop[-1]]
            self._steps = 1  # the first loop finds out how long a step takes
        self._step_secs = collections.deque(maxlen=20)

    def get(self):
        return self._steps

    def most(self):
        """Returns how many steps a loop may have; a time does not say."""
        return self._steps if self._target_secs is None else math.inf

    @contextlib.contextmanager
    def timed(self, iterations):
        """Measures a loop of so many steps; the next one is made to last as long as is wished."""
        start = time.perf_counter()
        yield
        if self._target_secs is not None:
            self._step_secs.append((time.perf_counter() - start) / iterations)
            self._steps = max(1, round(self._target_secs / np.mean(self._step_secs)))
