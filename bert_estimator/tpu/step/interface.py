"""The interface of a step: what the verbs can do with it, whichever runtime runs it."""

import collections
import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sized
from typing import Any, NamedTuple

import numpy as np

from bert_estimator.tpu.spec import EstimatorSpec
from bert_estimator.tpu.step.inputs import Inputs


class LoopResult(NamedTuple):
    """Holds the results of one loop of steps."""

    losses: list[float]  # of each step that was run
    scalars: dict[str, float]  # the one-value float tensors of the host_call, at the last step
    first_scalars: dict[str, float]  # at the first step
    summary: bytes | None  # the serialized v1 summaries of the last step, if they are due

    def add(self, loss: float, scalars: dict[str, float]) -> None:
        """Adds a step."""
        if not self.losses:
            self.first_scalars.update(scalars)
        self.scalars.update(scalars)
        self.losses.append(loss)  # last: to the thread that reads it, the step is complete then


class Step:
    """Says what a `LocalStep`, a `SessionStep` and an `XlaStep` can do, and holds what several
    of them do alike.

    A verb makes one in a graph with a global step: `StepClass(job, input_fn, start_step)`. The
    constructor calls the `input_fn` and the `model_fn`. Then the verb calls, in this order:
    `add_summaries` (only in training), `host_session`, `start`, `run_loop` repeatedly, `finish`,
    `stop`. If the step `restarts`, a verb may then begin with `host_session` again, with the same
    session, whose variables may have other values.
    """

    spec: EstimatorSpec  # of the host: the scaffold, the hooks, and what hooks may look at
    # What updates the variables, in the graph that the model was built in; None unless a training
    # runs.
    update: Any
    metric_values: dict[str, Any]  # tensors, to be run in the session after the last step
    predicted: collections.deque  # a dict of arrays, or an array, for each step
    waited_secs: float | None = None  # for input, in total; None if unknown
    _inputs: Inputs
    _loop_length: "LoopLength"

    @property
    def restarts(self) -> bool:
        """Returns whether the data starts over: the `input_fn` returned a Dataset."""
        return self._inputs.initializer is not None

    def add_summaries(self, config) -> list:
        """Has v1 summaries written as `config` says; returns a list of the hooks that do it."""

    def host_session(self, session):
        """Returns the session for hooks, which brings the variables they read from the devices."""
        return session

    def start(self, session, limit: int | None = None, start_step: int | None = None) -> None:
        """Starts the data and the threads: at most `limit` batches are drawn (None: all), and the
        next step follows the global step `start_step` (None: the constructor's)."""

    def loop_length(self, step: int, stop_step: int) -> int:
        """Returns how many steps the loop after the global step `step` has."""
        return min(self._loop_length.get(), stop_step - step)

    def run_loop(
        self, iterations: int, hook_run, visit: Callable[[LoopResult], bool]
    ) -> tuple[LoopResult, dict]:
        """Runs a loop of at most `iterations` steps; returns its result, and the values of the
        hooks' fetches after it, a dict by hook.

        It ends early at a loss that is not finite, or if `visit` returns true, which is called
        again and again with the result so far, also while the loop waits for data. It raises
        EndOfInput if there are no more batches.
        """

    def reached(self, global_step: int) -> None:
        """Takes notice of the global step after a loop of training, which need not have risen by as
        many as there were steps: the limit of `start` counts its rises."""

    def element_of_step(self, fetch):
        """Returns the tensor or operation that `fetch` means if it belongs to the step, so that
        hooks cannot fetch it; else None."""

    def finish(self, session) -> None:
        """Waits until the host functions have received all values; raises their first error."""

    def stop(self, session) -> None:
        """Ends the threads; it may be called at any time, even before `start`."""


_UNIT_SECS = {"s": 1, "m": 60, "h": 3600}


class LoopLength:
    """Says how many steps the next loop has: a number, or as many as take a time such as "30s"."""

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
    def timed(self, done: Sized) -> Iterator[None]:
        """Measures the time of a loop, to choose the next loop's length; in the end `done` has an
        element for each step that was run."""
        start = time.perf_counter()
        yield
        if self._target_secs is not None and done:
            self._step_secs.append((time.perf_counter() - start) / len(done))
            self._steps = max(1, round(self._target_secs / np.mean(self._step_secs)))
