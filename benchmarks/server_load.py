"""Clients of `bert-serve`: texts a second and latency, and whether memory grows.

    python -m benchmarks.server_load runs/classifier --soak=100000

RUN is a run of run_classifier.py --do_export for single texts. The server answers 1, 8 and 64
clients, each of which sends a text and waits for its answer, in batches of 32 and one by one; the
share is of the rate at which `Predictor` answers requests of 32 texts in a process of its own. Then
64 clients send --soak requests, every tenth of which is garbage, and the server's memory is read
after every tenth of them. The last line is JSON.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time

import numpy as np

from benchmarks.main_job import machine
from benchmarks.serving_speed import texts_of

CLIENTS = (1, 8, 64)
_TEXTS = 640
_BATCH = 32
_GARBAGE = (b"", b"{", b"[]", b'{"instances": [5]}', b"\xff" * 100)

_PREDICTOR = """
import sys, time
from bert_estimator.serving.predictor import Predictor
model, secs, *texts = sys.argv[1:]
predictor, number = Predictor(model, 32), 0
predictor(texts)
end = time.perf_counter() + float(secs)
start = time.perf_counter()
while time.perf_counter() < end:
    for first in range(0, len(texts), 32):
        number += len(predictor(texts[first : first + 32]))
print(number / (time.perf_counter() - start))
"""


class _Server:
    """Runs `bert-serve` in a process of its own."""

    def __init__(self, run, batch_size):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bert_estimator.serving.server", f"m={run}", "--port=0",
             f"--batch_size={batch_size}"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
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
    statuses = {}
    while (number := take()) is not None:
        start = time.perf_counter()
        writer.write(requests[number % len(requests)])
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))
        latencies.append(time.perf_counter() - start)
        status = head[9:12].decode()
        statuses[status] = statuses.get(status, 0) + 1
    writer.close()
    await writer.wait_closed()
    return statuses


async def _clients(port, requests, number, take):
    """Returns (latencies in seconds, status -> number) of so many clients."""
    latencies = []
    parts = await asyncio.gather(*(_client(port, requests, take, latencies) for _ in range(number)))
    statuses = {s: sum(part.get(s, 0) for part in parts) for s in {s for p in parts for s in p}}
    return latencies, statuses


def _for_secs(secs):
    numbers, end = iter(range(1 << 60)), time.perf_counter() + secs
    return lambda: next(numbers) if time.perf_counter() < end else None


def _speed(server, requests, number, secs):
    asyncio.run(_clients(server.port, requests, number, _for_secs(secs / 10)))  # not measured
    latencies, statuses = asyncio.run(_clients(server.port, requests, number, _for_secs(secs)))
    assert set(statuses) == {"200"}, statuses
    p50, p99 = 1e3 * np.quantile(latencies, [0.5, 0.99])
    return {"texts_per_sec": len(latencies) / secs, "p50_ms": p50, "p99_ms": p99}


def _soak(server, requests, total):
    """Returns the memory after each tenth of so many requests, and the statuses."""
    mixed = [
        _request(_GARBAGE[i // 10 % len(_GARBAGE)]) if i % 10 == 9 else request
        for i, request in enumerate(requests)
    ]
    memory, statuses = [], {}
    for _ in range(10):
        left = iter(range(total // 10))
        _, part = asyncio.run(_clients(server.port, mixed, 64, lambda: next(left, None)))  # noqa: B023
        statuses = {s: statuses.get(s, 0) + part.get(s, 0) for s in {*statuses, *part}}
        memory.append(server.megabytes())
    assert statuses == {"200": 9 * total // 10, "400": total // 10}, statuses
    return {"requests": total, "megabytes": memory}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", metavar="RUN", help="use this run's directory, with its export")
    parser.add_argument("--secs", type=float, default=10, help="measure for so many seconds each")
    parser.add_argument("--soak", type=int, default=0, help="add this many requests at the end")
    args = parser.parse_args(argv)
    texts = texts_of(_TEXTS)
    requests = [_request(json.dumps({"instances": [text]}).encode()) for text in texts]
    predictor = [sys.executable, "-c", _PREDICTOR, args.run, str(args.secs), *texts]
    rate = float(subprocess.check_output(predictor, text=True))
    print(f"Predictor, requests of {_BATCH}: {rate:,.0f} texts/s")
    result = {"machine": machine(), "predictor_texts_per_sec": rate, "server": {}}
    for batch_size in (_BATCH, 1):
        with _Server(args.run, batch_size) as server:
            for number in CLIENTS:
                row = _speed(server, requests, number, args.secs)
                result["server"][f"{number} clients, batches of {batch_size}"] = row
                print(
                    f"{number:2} clients, batches of {batch_size:2}: {row['texts_per_sec']:,.0f} "
                    f"texts/s ({row['texts_per_sec'] / rate:.0%}), p50 {row['p50_ms']:.1f} ms, "
                    f"p99 {row['p99_ms']:.1f} ms"
                )
            if args.soak and batch_size == _BATCH:
                result["soak"] = _soak(server, requests, args.soak // 100 * 100)
                shown = ", ".join(f"{m:.0f}" for m in result["soak"]["megabytes"])
                print(f"{args.soak} requests, MB after each tenth: {shown}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
