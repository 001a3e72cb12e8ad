"""The interface of a step: what the verbs can do with it, whichever runtime runs it."""

import collections
import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from bert_estimator.tpu.spec import EstimatorSpec


class LoopResult(NamedTuple):
    """Holds the results of one loop of steps.

    Attributes:
      losses: list of floats, the loss of each step that was run.
      scalars: dict of name -> float, the one-value float tensors of the host_call at the
        last step.
      first_scalars: the same of the first step.
      summary: the serialized v1 summaries of the last step; None if summaries are not due.
    """

    losses: list[float]
    scalars: dict[str, float]
    first_scalars: dict[str, float]
    summary: bytes | None

    def add(self, loss: float, scalars: dict[str, float]) -> None:
        """Adds a step."""
        if not self.losses:
            self.first_scalars.update(scalars)
        self.scalars.update(scalars)
        self.losses.append(loss)  # last: to the thread that reads it, the step is complete then


class Step(Protocol):
    """A step is a `LocalStep`, a `SessionStep` or an `XlaStep`. A verb builds it and runs it.

    A verb makes it in a graph with a global step: `StepClass(job, input_fn, start_step)`. The
    constructor calls the `input_fn` and the `model_fn`. Then the verb calls, in this order:
    `add_summaries` (only in training), `host_session`, `start`, `run_loop` repeatedly, `finish`,
    `stop`. If the step `restarts`, a verb may then begin with `host_session` again, with the same
    session, whose variables may have other values.

    Attributes:
      restarts: whether its data starts over: the `input_fn` returned a Dataset.
      spec: the `EstimatorSpec` of the host, with the scaffold, the hooks, and the loss and the
        train_op that hooks may look at.
      update: the operation that updates the variables, in the graph that the model was built in;
        None unless a training runs.
      metric_values: dict of name -> tensor, to be run in the session after the last step.
      predicted: deque with the predictions of each step: a dict of arrays, or an array.
      waited_secs: how many seconds the steps have waited for input in total; None if unknown.
    """

    restarts: bool
    spec: EstimatorSpec
    update: Any
    metric_values: dict[str, Any]
    predicted: collections.deque
    waited_secs: float | None

    def add_summaries(self, config) -> list:
        """Has v1 summaries written as `config` says; returns a list of the hooks that do it."""

    def host_session(self, session):
        """Returns the session that hooks see. After a loop, its variables have the new values."""

    def start(self, session, limit: int | None = None, start_step: int | None = None) -> None:
        """Starts the data and the threads.

        Args:
          session: what `host_session` returned.
          limit: how many batches are drawn at most. None means all.
          start_step: the global step before the next step. None means the step that the
            constructor got.
        """

    def loop_length(self, step: int, stop_step: int) -> int:
        """Returns how many steps the loop after the global step `step` has."""

    def run_loop(
        self, iterations: int, hook_run, visit: Callable[[LoopResult], bool]
    ) -> tuple[LoopResult, dict]:
        """Runs a loop of at most `iterations` steps.

        It ends early if `visit` asks for it, or at a loss that is not finite.

        Args:
          iterations: the number of steps.
          hook_run: what the hooks want, a `HookRun`.
          visit: function that is called again and again while the loop runs, also while it waits
            for data, with the result of the steps that have ended. It returns whether to end the
            loop.

        Returns:
          A `LoopResult`; and the values of `hook_run.fetches` after the loop, a dict by hook.

        Raises:
          EndOfInput: there are no more batches.
        """

    def reached(self, global_step: int) -> None:
        """Takes notice of the global step after a loop of training.

        It need not have risen by as many as there were steps. The limit of `start` counts rises of
        the global step.
        """

    def element_of_step(self, fetch):
        """Returns the tensor or operation that `fetch` means if it belongs to the step.

        Hooks cannot fetch it. If `fetch` means something else, this returns None.
        """

    def finish(self, session) -> None:
        """Waits until the host functions have received all values; raises their first error."""

    def stop(self, session) -> None:
        """Ends the threads. It may be called at any time, even before `start`."""


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
