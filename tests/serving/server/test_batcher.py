"""Requests become batches: which are computed together, how long they wait, and who is answered."""

import asyncio
import threading
import time

import pytest

from bert_estimator.serving.server.batcher import Batcher, QueueFullError


class Model:
    """Answers texts in upper case, and notes the batches; each begins when `gate` is open."""

    def __init__(self):
        self.batches, self.gate = [], threading.Event()
        self.gate.set()

    def __call__(self, texts):
        self.batches.append(list(texts))
        assert self.gate.wait(20)
        if "bad" in texts:
            raise ValueError("texts[0] is bad")
        return [text.upper() for text in texts]


def run(body, batch_size=4, queue_size=8):
    """Runs a coroutine function of a batcher and its model; returns (result, model, reports)."""
    model, reports = Model(), []

    async def main():
        batcher = Batcher(model, batch_size, queue_size, reports.append)
        try:
            return await asyncio.wait_for(body(batcher, model), 20)
        finally:
            model.gate.set()
            await batcher.close()

    return asyncio.run(main()), model, reports


async def while_busy(batcher, model, *requests):
    """Returns the tasks of requests that arrive while a first request, ["x"], is computed."""
    model.gate.clear()
    tasks = [asyncio.ensure_future(batcher(["x"]))]
    while not model.batches:
        await asyncio.sleep(0.001)
    tasks += [asyncio.ensure_future(batcher(texts)) for texts in requests]
    await asyncio.sleep(0)
    return tasks


async def outcomes(tasks):
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_what_arrives_meanwhile_is_a_batch():
    async def body(batcher, model):
        tasks = await while_busy(batcher, model, ["a"], ["b", "c"], ["d"], ["e"])
        model.gate.set()
        return await outcomes(tasks)

    answers, model, reports = run(body)
    assert answers == [["X"], ["A"], ["B", "C"], ["D"], ["E"]]
    assert model.batches == [["x"], ["a", "b", "c", "d"], ["e"]]
    assert [batch.num_texts for batch in reports] == [1, 4, 1]
    assert [len(batch.waited) for batch in reports] == [1, 3, 1]


def test_a_request_of_many_texts_is_a_batch_by_itself():
    async def body(batcher, model):
        tasks = await while_busy(batcher, model, ["a"], list("bcdefg"), ["h"])
        model.gate.set()
        return await outcomes(tasks)

    answers, model, _ = run(body, queue_size=20)
    assert answers[2] == list("BCDEFG")
    assert model.batches == [["x"], ["a"], list("bcdefg"), ["h"]]


def test_an_empty_request_has_no_answers():
    answers, _, _ = run(lambda batcher, model: batcher([]))
    assert answers == []


def test_a_request_alone_does_not_wait(monkeypatch):
    waits = []

    async def body(batcher, model):
        waiting = batcher._wait_for_others
        batcher._wait_for_others = lambda end: waits.append(end) or waiting(end)
        for text in "abc":
            await batcher([text])
        before = len(waits)
        tasks = await while_busy(batcher, model, ["d"], ["e"])
        model.gate.set()
        await outcomes(tasks)
        start = time.monotonic()
        await batcher(["f"])  # the last batch had two requests
        return before, waits[-1] - start

    (before, latest), _, _ = run(body)
    assert before == 0
    assert len(waits) == 1 and latest < 0.002


def test_others_that_arrive_within_the_wait_are_computed_together(monkeypatch):
    monkeypatch.setattr("bert_estimator.serving.server.batcher._WAIT_SECS", 30)

    async def body(batcher, model):
        tasks = await while_busy(batcher, model, ["a"], ["b"])
        model.gate.set()
        await outcomes(tasks)
        tasks = [asyncio.ensure_future(batcher([text])) for text in "cd"]
        await asyncio.sleep(0.01)
        tasks += [asyncio.ensure_future(batcher([text])) for text in "efg"]
        return await outcomes(tasks[:4])  # a full batch does not wait

    _, model, _ = run(body)
    assert model.batches[-1] == list("cdef")


def test_a_bad_text_is_an_error_of_its_request_alone():
    async def body(batcher, model):
        tasks = await while_busy(batcher, model, ["a"], ["bad", "b"], ["c"])
        model.gate.set()
        return await outcomes(tasks)

    answers, _, _ = run(body)
    assert answers[:2] == [["X"], ["A"]] and answers[3] == ["C"]
    assert isinstance(answers[2], ValueError)


def test_a_full_queue_refuses_and_recovers():
    async def body(batcher, model):
        tasks = await while_busy(batcher, model, list("abc"), list("def"))
        with pytest.raises(QueueFullError, match="6 texts are waiting, and the queue holds 8"):
            await batcher(list("ghi"))
        tasks.append(asyncio.ensure_future(batcher(["g", "h"])))
        model.gate.set()
        answered = await outcomes(tasks)
        return answered, await batcher(list("abcdefghijkl")), batcher.num_waiting

    (answered, long, waiting), _, _ = run(body)
    assert answered[-1] == ["G", "H"] and len(long) == 12 and waiting == 0


def test_the_caller_of_a_running_batch_may_go():
    async def body(batcher, model):
        tasks = await while_busy(batcher, model, ["a"])
        tasks[0].cancel()
        model.gate.set()
        return await outcomes(tasks)

    answers, _, _ = run(body)
    assert isinstance(answers[0], asyncio.CancelledError) and answers[1] == ["A"]


def test_a_function_runs_between_two_batches():
    async def body(batcher, model):
        tasks = await while_busy(batcher, model, ["a"])
        swap = asyncio.ensure_future(batcher.soon(lambda: len(model.batches)))
        await asyncio.sleep(0.01)
        assert not swap.done()
        model.gate.set()
        await outcomes(tasks)
        return await swap

    number, _, _ = run(body)
    assert number == 1
