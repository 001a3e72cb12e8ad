"""Clients of `bert-serve`: texts a second and latency, and whether memory grows.

    python -m benchmarks.server_load runs/classifier --soak=100000

RUN is a run of run_classifier.py --do_export for single texts. The server answers 1, 8 and 64
clients, each of which sends a text and waits for its answer, in batches of 32 and one by one; the
share is of the rate at which `Predictor` answers requests of 32 texts in a process of its own. Then
64 clients send --soak requests, every tenth of which is garbage, and the server's memory is read
after every tenth of them, for the exported model and the ONNX model of float32.

With the extra [onnx], the same is measured for the run's ONNX models, of float32 and of int8. If
the environment variable TRANSFORMERS_PYTHON names a Python with torch, transformers and the
packages of the extra [serve], the same server asks a pipeline there, which has the same weights;
its share is of the pipeline's own rate. The last line is JSON.
"""

import argparse
import asyncio
import collections
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.main_job import machine
from benchmarks.serving_speed import converted, onnx_models, texts_of

CLIENTS = (1, 8, 64)
_TEXTS = 640
_BATCH = 32
_GARBAGE = (b"", b"{", b"[]", b'{"instances": [5]}', b"\xff" * 100)

_RATE = """
import sys, time
model, secs, *texts = sys.argv[1:]

def measure(answer):
    number = 0
    answer(texts)
    end = time.perf_counter() + float(secs)
    start = time.perf_counter()
    while time.perf_counter() < end:
        for first in range(0, len(texts), 32):
            number += len(answer(texts[first : first + 32]))
    print(number / (time.perf_counter() - start))

"""

_PREDICTOR = """
from bert_estimator.serving.predictor import Predictor
measure(Predictor(model, 32))
"""

# Runs where transformers is: a line of texts gives a line of their labels' probabilities.
_PIPELINE = """
import json, sys, transformers
transformers.logging.set_verbosity_error()
pipe = transformers.pipeline("text-classification", sys.argv[1], device="cpu")
for line in sys.stdin:
    texts = json.loads(line)
    print(json.dumps(pipe(texts, batch_size=len(texts), truncation=True, top_k=None)), flush=True)
"""

_PIPELINE_RATE = """
from benchmarks.server_load import pipeline
measure(pipeline(model))
"""

_PIPELINE_SERVER = """
import sys
from benchmarks.server_load import serve_pipeline
sys.exit(serve_pipeline(sys.argv[1], int(sys.argv[2])))
"""


def pipeline(model: str) -> Callable[[Sequence[str]], list]:
    """Returns a function of texts that asks a pipeline of transformers in a process of its own."""
    process = subprocess.Popen(
        [os.environ["TRANSFORMERS_PYTHON"], "-c", _PIPELINE, model],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip

    def answer(texts):
        process.stdin.write(json.dumps(list(texts)) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    return answer


def serve_pipeline(model: str, batch_size: int) -> int:
    """Serves a pipeline of transformers as `bert-serve` serves a model; returns the exit code."""
    from bert_estimator.serving.server import app, models

    answer = pipeline(model)
    answer(["a text"])
    opened = models.Opened(
        kind="classification",
        inputs=models.Inputs(("text_a",), 1),
        outputs=("scores",),
        labels=(),
        max_seq_length=None,
        directory=model,
        answer=lambda texts: [{"scores": scores} for scores in answer(texts)],
        num_cut=lambda: 0,
        close=lambda: None,
    )

    def open_models(report):
        arguments = "m", model, lambda path: opened, batch_size, 4096
        return [models.ServedModel(*arguments, lambda batch: report("m", batch))]

    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        server = app.Server(app.Service(open_models))
        print(f"Serving on http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
        server.run(sockets=[listener])
    return 128 + server.stopped_by


class _Side(NamedTuple):
    """Says how a model is run.

    Attributes:
      rate: the command that prints its rate in requests of 32; it is given seconds and texts.
      server: the command of its server, to which the number of texts in a batch is added.
    """

    rate: list[str]
    server: list[str]


def _sides(run: str, folder: str) -> dict[str, _Side]:
    """Returns what can be measured here, by name; it writes models into a folder."""
    python, found = [sys.executable, "-c"], {}
    for name, path in {"exported": run, **onnx_models(run, folder)}.items():
        module = [sys.executable, "-m", "bert_estimator.serving.server"]
        server = [*module, f"m={path}", "--port=0", "--batch_size"]
        found[name] = _Side([*python, _RATE + _PREDICTOR, path], server)
    if os.environ.get("TRANSFORMERS_PYTHON"):
        path = converted(run, os.path.join(folder, "hf"))
        rate = [*python, _RATE + _PIPELINE_RATE, path]
        found["transformers"] = _Side(rate, [*python, _PIPELINE_SERVER, path])
    return found


class _Server:
    """Runs a side's server in a process of its own."""

    def __init__(self, side: _Side, batch_size: int):
        self.process = subprocess.Popen(
            [*side.server, str(batch_size)], stdout=subprocess.PIPE, text=True
        )
        for line in self.process.stdout:
            if match := re.search(r"Serving on http://127.0.0.1:(\d+)", line):
                self.port = int(match[1])
                return
        raise SystemExit("the server did not start")

    def megabytes(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) * 1024 / 1e6

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.terminate()
        code = self.process.wait(60)
        self.process.stdout.close()
        assert code == 143, code


def _request(body: bytes) -> bytes:
    head = (
        "POST /v1/models/m:predict HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _client(port, requests, take, latencies):
    """Sends requests until `take` returns None, and counts the statuses."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    statuses = collections.Counter()
    while (number := take()) is not None:
        start = time.perf_counter()
        writer.write(requests[number % len(requests)])
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))
        latencies.append(time.perf_counter() - start)
        statuses[head[9:12].decode()] += 1
    writer.close()
    await writer.wait_closed()
    return statuses


async def _clients(port, requests, number, take):
    """Returns (latencies in seconds, status -> number) of so many clients."""
    latencies = []
    parts = await asyncio.gather(*(_client(port, requests, take, latencies) for _ in range(number)))
    return latencies, sum(parts, collections.Counter())


def _for_secs(secs):
    numbers, end = iter(range(1 << 60)), time.perf_counter() + secs
    return lambda: next(numbers) if time.perf_counter() < end else None


def _speed(server, requests, number, secs):
    asyncio.run(_clients(server.port, requests, number, _for_secs(secs / 10)))  # not measured
    latencies, statuses = asyncio.run(_clients(server.port, requests, number, _for_secs(secs)))
    assert set(statuses) == {"200"}, statuses
    p50, p99 = (1e3 * np.quantile(latencies, [0.5, 0.99])).round(1).tolist()
    return {"texts_per_sec": len(latencies) / secs, "p50_ms": p50, "p99_ms": p99}


def _soak(server, requests, total):
    """Returns the memory after each tenth of so many requests, and the statuses."""
    mixed = [
        _request(_GARBAGE[i // 10 % len(_GARBAGE)]) if i % 10 == 9 else request
        for i, request in enumerate(requests)
    ]
    memory, statuses = [], collections.Counter()
    for _ in range(10):
        left = iter(range(total // 10))
        _, part = asyncio.run(_clients(server.port, mixed, 64, lambda: next(left, None)))  # noqa: B023
        statuses += part
        memory.append(server.megabytes())
    assert statuses == {"200": 9 * total // 10, "400": total // 10}, statuses
    return {"requests": total, "megabytes": memory}


def _measure(name: str, side: _Side, texts: Sequence[str], secs: float) -> dict[str, Any]:
    """Prints and returns the figures of a side."""
    rate = float(subprocess.check_output([*side.rate, str(secs), *texts], text=True))
    print(f"{name}: requests of {_BATCH}: {rate:,.0f} texts/s", flush=True)
    requests = _requests(texts)
    found: dict[str, Any] = {"texts_per_sec": rate, "server": {}}
    for batch_size in (_BATCH, 1):
        with _Server(side, batch_size) as server:
            for number in CLIENTS:
                key = f"{number} clients, batches of {batch_size}"
                row = found["server"][key] = _speed(server, requests, number, secs)
                print(f"{name}, {key}: {row['texts_per_sec'] / rate:.0%}, {row}", flush=True)
    return found


def _requests(texts):
    return [_request(json.dumps({"instances": [text]}).encode()) for text in texts]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", metavar="RUN", help="use this run's directory, with its export")
    parser.add_argument("--secs", type=float, default=10, help="measure for so many seconds each")
    parser.add_argument("--soak", type=int, default=0, help="add this many requests at the end")
    args = parser.parse_args(argv)
    texts = texts_of(_TEXTS)
    result: dict[str, Any] = {"machine": machine(), "sides": {}}
    with tempfile.TemporaryDirectory() as folder:
        sides = _sides(os.path.abspath(args.run), folder)
        for name, side in sides.items():
            result["sides"][name] = _measure(name, side, texts, args.secs)
        soaked = [name for name in ("exported", "onnx") if args.soak and name in sides]
        for name in soaked:
            with _Server(sides[name], _BATCH) as server:
                found = _soak(server, _requests(texts), args.soak // 100 * 100)
            result["sides"][name]["soak"] = found
            shown = ", ".join(f"{m:.1f}" for m in found["megabytes"])
            print(f"{name}: {args.soak} requests, MB after each tenth: {shown}", flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
