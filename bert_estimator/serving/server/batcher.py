"""Requests that arrive at about the same time are computed together.

Texts wait in one queue for each model, whose thread computes one batch at a time. What arrives
meanwhile is the next batch. So a request that is alone is computed at once; only if the last batch
had several requests does the next one wait for others, and at most 2 ms.

Every accepted request is answered, with answers or an error of its own: if requests cannot be
computed together, each is computed by itself.
"""

import asyncio
import collections
import concurrent.futures
import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

# asyncio's clock counts whole milliseconds and rounds up, so that this is at most 2 ms.
_WAIT_SECS = 0.001

Answer = Callable[[list[Any]], Sequence[Any]]


class QueueFullError(Exception):
    """The queue is full, so a request is refused; the text says what to do."""


class Batch(NamedTuple):
    """Tells of a batch that was computed."""

    num_texts: int
    secs: float  # to compute it
    waited: list[float]  # for each request, the seconds that it was in the queue


class _Request(NamedTuple):
    texts: list[Any]
    answers: asyncio.Future
    arrived: float


class Batcher:
    """Answers requests in batches, on a thread of its own; `report` is called with each `Batch` in
    the event loop."""

    def __init__(
        self,
        answer: Answer,
        batch_size: int,
        queue_size: int,
        report: Callable[[Batch], None] = lambda batch: None,
    ):
        self._answer, self._report = answer, report
        # Both count texts. A request with more texts than a batch has is a batch by itself.
        self._batch_size, self._queue_size = batch_size, queue_size
        self.num_waiting = 0
        self._queue: collections.deque[_Request] = collections.deque()
        self._arrived, self._is_full = asyncio.Event(), asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._waits = False
        self._runs: asyncio.Task | None = None

    def __call__(self, texts: list[Any]) -> asyncio.Future[list[Any]]:
        """Accepts a request, or raises QueueFullError, and returns the future of its texts'
        answers; if the future is cancelled before the request is computed, it is not computed."""
        # A request with more texts than the queue holds is accepted if nothing waits: else it never
        # would be.
        if self._queue and self.num_waiting + len(texts) > self._queue_size:
            raise QueueFullError(
                f"{self.num_waiting} texts are waiting, and the queue holds {self._queue_size}; "
                "try again later"
            )
        request = _Request(texts, asyncio.get_running_loop().create_future(), time.monotonic())
        self._queue.append(request)
        self.num_waiting += len(texts)
        self._is_idle.clear()
        self._arrived.set()
        if self.num_waiting >= self._batch_size:
            self._is_full.set()
        # The constructor may run before there is an event loop.
        if self._runs is None:
            self._runs = asyncio.create_task(self._run())
        return request.answers

    async def drain(self) -> None:
        """Waits until every request has its answers."""
        await self._is_idle.wait()

    async def soon(self, function: Callable[[], Any]) -> Any:
        """Calls a function on the thread between two batches; returns what it returns."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def close(self) -> None:
        """Ends the thread; requests that still wait get a CancelledError."""
        if self._runs is not None:
            self._runs.cancel()
            await asyncio.wait([self._runs])
        for request in self._queue:
            request.answers.cancel()
        self._thread.shutdown(wait=False)

    async def _run(self):
        """Computes batch after batch."""
        while True:
            await self._arrived.wait()
            # If the last batch had several requests, their clients send the next ones at about the
            # same time. A request that is alone does not wait.
            if self._waits:
                await self._wait_for_others(self._queue[0].arrived + _WAIT_SECS)
            requests = self._take()
            self._waits = len(requests) > 1
            if requests:
                await self._compute(requests)
            if not self._queue:
                self._is_idle.set()

    async def _wait_for_others(self, end):
        left = end - time.monotonic()
        if left > 0 and self.num_waiting < self._batch_size:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._is_full.wait(), left)

    def _take(self):
        """Takes the requests of a batch from the queue, without those whose caller is gone."""
        requests, size = [], 0
        while self._queue and (
            not requests or size + len(self._queue[0].texts) <= self._batch_size
        ):
            request = self._queue.popleft()
            self.num_waiting -= len(request.texts)
            # The caller is gone if, for example, a client has closed its connection.
            if not request.answers.cancelled():
                requests.append(request)
                size += len(request.texts)
        if not self._queue:
            self._arrived.clear()
        if self.num_waiting < self._batch_size:
            self._is_full.clear()
        return requests

    async def _compute(self, requests):
        start = time.monotonic()
        texts = [request.texts for request in requests]
        outcomes = await self.soon(lambda: _outcomes(self._answer, texts))
        for request, outcome in zip(requests, outcomes, strict=True):
            # It may have been cancelled while the batch was computed.
            if request.answers.cancelled():
                continue
            if isinstance(outcome, Exception):
                request.answers.set_exception(outcome)
            else:
                request.answers.set_result(outcome)
        waited = [start - request.arrived for request in requests]
        self._report(Batch(sum(map(len, texts)), time.monotonic() - start, waited))


def _outcomes(answer: Answer, requests: list[list[Any]]) -> list[list[Any] | Exception]:
    """Returns the answers of each request, or the exception that its texts cause."""
    try:
        answers = list(answer([text for texts in requests for text in texts]))
    except Exception as error:  # whatever it is, the other requests are answered
        if len(requests) == 1:
            return [error]
        return [outcome for texts in requests for outcome in _outcomes(answer, [texts])]
    ends = [0]
    for texts in requests:
        ends.append(ends[-1] + len(texts))
    return [answers[start:end] for start, end in itertools.pairwise(ends)]
