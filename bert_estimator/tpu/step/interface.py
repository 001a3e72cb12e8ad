"""What every step offers to the verbs, whatever runs it."""

import collections
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from bert_estimator.tpu.spec import EstimatorSpec


class LoopResult(NamedTuple):
    """Holds what one loop of steps gave.

    Attributes:
      losses: a float for each step that was run.
      scalars: dict name -> float: the one-value host_call tensors of the last step.
      summary: the serialized v1 summaries of the last step, or None if none are due.
    """

    losses: list[float]
    scalars: dict[str, float]
    summary: bytes | None


class Step(Protocol):
    """A step that a verb built and can run: `LocalStep`, `SessionStep` or `XlaStep`.

    A verb makes it in a graph with a global step: `StepClass(job, input_fn, start_step)`. It calls
    the `input_fn` and the `model_fn`. Then the verb calls, in this order: `add_summaries` (training
    only), `host_session`, `start`, `run_loop` again and again, `finish`, `stop`.

    Attributes:
      spec: the `EstimatorSpec` of the host: the scaffold, the hooks, and the loss and the train_op
        that hooks may look at.
      metric_values: dict name -> tensor, to be run in the session after the last step.
      predicted: deque of the predictions of the steps run, a dict of arrays or an array each.
      waited_secs: how many seconds steps have waited for input in total; None if unknown.
    """

    spec: EstimatorSpec
    metric_values: dict[str, Any]
    predicted: collections.deque
    waited_secs: float | None

    def add_summaries(self, config) -> list:
        """Has v1 summaries written as `config` says; returns the hooks that this takes."""

    def host_session(self, session):
        """Returns the session that hooks see. Its variables have their values after a loop."""

    def start(self, session, limit: int | None = None) -> None:
        """Starts the data and the threads; draws at most `limit` batches."""

    def loop_length(self, step: int, stop_step: int) -> int:
        """Returns how many steps the loop after the global step `step` has."""

    def run_loop(
        self, iterations: int, hook_run, interrupted: Callable[[], bool]
    ) -> tuple[LoopResult, dict]:
        """Runs a loop of at most so many steps.

        It ends early if `interrupted()` becomes true, or at a loss that is not finite.

        Returns:
          A `LoopResult`; and the values of `hook_run.fetches` after the loop, a dict by hook.

        Raises:
          EndOfInput: there is no batch left.
        """

    def element_of_step(self, fetch):
        """Returns the tensor or operation of the step that `fetch` means if hooks cannot fetch it,
        or None."""

    def finish(self, session) -> None:
        """Returns when host functions have received all that the steps sent; raises their error."""

    def stop(self, session) -> None:
        """Ends the threads; may be called at any time, also if `start` was not."""
