"""The speed of creating pretraining records: examples a second of one core, and of several.

    python -m benchmarks.data_speed --megabytes=200 --before=../checkout-of-an-earlier-version

The text is Python's own documentation, repeated; in each copy some words are replaced or new. The
work is google-research/bert's by default: static masks, 10 passes, 128 tokens. A loop of plain
Python is timed beside it, to compare machines and moments. Earlier versions of this project, and
the Rust tokenizer of `tokenizers` alone, run on the same text if they are given. The last line is
JSON.
"""

import argparse
import functools
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from bert_estimator.tokenization import open_tokenizer, train_vocabulary, write_vocab
from input_pipelines.creation.pools import WorkerPool
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.embedded import embedded_corpus
from input_pipelines.text.documents import split_files

_REPLACED, _NEW = 0.05, 0.005  # shares of the words of a copy
_GIGABYTES = 16  # English Wikipedia and books
_CORES, _MACHINES = 16, 50

_TOKENIZERS = """
import os, sys, time
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import BertWordPieceTokenizer
tokenizer = BertWordPieceTokenizer(sys.argv[2], lowercase=True)
with open(sys.argv[1], encoding="utf-8") as file:
    lines = [line for line in file.read().split("\\n") if line]
start = time.process_time()
for first in range(0, len(lines), 1000):
    tokenizer.encode_batch(lines[first : first + 1000], add_special_tokens=False)
print(time.process_time() - start)
"""


@functools.cache
def english() -> list[list[str]]:
    """Returns the documents that the text is made of."""
    return embedded_corpus.load().train


def text_of(megabytes: float, seed: int = 0) -> Iterator[str]:
    """Yields documents of perturbed English of this size, each with an empty line at its end."""
    documents = english()
    words = sorted({word for document in documents for line in document for word in line.split()})
    rng = random.Random(seed)
    size = 0
    while True:
        for document in documents:
            text = "\n".join(_perturbed(line, words, rng) for line in document) + "\n\n"
            yield text
            size += len(text.encode())
            if size >= megabytes * 1e6:
                return


def _perturbed(line: str, words: list[str], rng: random.Random) -> str:
    changed = line.split()
    for place in range(len(changed)):
        draw = rng.random()
        if draw < _NEW:
            changed[place] = "".join(rng.choices("aeioubcdfghlmnprst", k=rng.randint(3, 12)))
        elif draw < _NEW + _REPLACED:
            changed[place] = rng.choice(words)
    return " ".join(changed)


def python_loop_ns() -> float:
    """Returns the nanoseconds of a step of a loop of plain Python."""
    number, total = 3_000_000, 0
    start = time.process_time()
    for step in range(number):
        total += step
    return (time.process_time() - start) / number * 1e9


class MeasuredPool(WorkerPool):
    """Runs tasks, and says what the workers needed.

    Attributes:
      megabytes: the greatest memory of a worker, once the pool has ended; 0 without workers.
    """

    megabytes = 0.0

    def __exit__(self, *arguments) -> None:
        peaks = [peak_megabytes(process.pid) for process in self._workers.values()]
        self.megabytes = max([self.megabytes, *peaks])
        super().__exit__(*arguments)


def peak_megabytes(pid: int) -> float:
    """Returns the most memory that a process has used so far; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            peaks = [line.split()[1] for line in file if line.startswith("VmHWM:")]
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return int(peaks[0]) * 1024 / 1e6 if peaks else 0.0


def created(
    text_file: str, vocab_file: str, directory: str, num_workers: int, masking: str, passes: int
) -> dict[str, float]:
    """Creates records; returns their number, their bytes and the seconds that it took."""
    # Workers import the main module too, and should not load TensorFlow.
    from input_pipelines.creation.pretraining_records import write_pretraining_records

    os.makedirs(directory)
    pool = MeasuredPool(num_workers)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start, busy = time.perf_counter(), time.process_time()
    manifest = write_pretraining_records(
        split_files([text_file]),
        open_tokenizer(vocab_file),
        vocab_file,
        [os.path.join(directory, f"{number}.tfrecord") for number in range(max(2, num_workers))],
        CreationSettings(dupe_factor=passes),
        masking=masking,
        pool=pool,
    )
    secs, busy = time.perf_counter() - start, time.process_time() - busy
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "examples": manifest.num_records,
        "bytes": sum(entry.num_bytes for entry in manifest.files),
        "secs": secs,
        "cpu_secs": busy,
        "worker_megabytes": pool.megabytes,
    }


def before_secs(checkout: str, text_file: str, vocab_file: str, output: str, passes: int) -> float:
    """Returns the CPU seconds that another version of this project takes for static records."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "input_pipelines.create_pretraining_data",
            f"--input_file={text_file}",
            f"--vocab_file={vocab_file}",
            f"--output_file={output}",
            f"--dupe_factor={passes}",
        ],
        cwd=checkout,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def tokenizers_secs(python: str, text_file: str, vocab_file: str) -> float:
    """Returns the CPU seconds that the Rust tokenizer takes for a text, on one thread."""
    command = [python, "-c", _TOKENIZERS, text_file, vocab_file]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def write_text(directory: str, megabytes: float, vocab_size: int) -> tuple[str, str]:
    """Writes a text and a vocabulary into a directory; returns their paths."""
    text_file, vocab_file = os.path.join(directory, "text"), os.path.join(directory, "vocab.txt")
    sentences = (line for document in english() for line in document)
    write_vocab(train_vocabulary(sentences, vocab_size), vocab_file)
    with open(text_file, "w", encoding="utf-8") as file:
        file.writelines(text_of(megabytes))
    return text_file, vocab_file


def measure(arguments: argparse.Namespace, directory: str) -> dict[str, object]:
    """Runs everything in a directory; returns the values of the last line."""
    text_file, vocab_file = write_text(directory, arguments.megabytes, arguments.vocab_size)
    megabytes = os.path.getsize(text_file) / 1e6
    passes = arguments.dupe_factor

    def of(num_workers, masking, passes):
        name = os.path.join(directory, f"{masking}-{num_workers}")
        found = created(text_file, vocab_file, name, num_workers, masking, passes)
        print(f"{masking} masks, {num_workers} workers: {found}", flush=True)
        return found

    loop_ns = python_loop_ns()
    one, dynamic = of(1, "static", passes), of(1, "dynamic", 1)
    several = of(arguments.num_workers, "static", passes)
    per_core = megabytes / one["secs"]
    scaling = one["secs"] / several["secs"]
    efficiency = scaling / arguments.num_workers
    hours = _GIGABYTES * 1e3 / (per_core * efficiency * _CORES) / 3600
    result = {
        "megabytes": round(megabytes, 1),
        "examples": one["examples"],
        "examples_per_sec_1_core": one["examples"] / one["secs"],
        "examples_per_cpu_sec": one["examples"] / one["cpu_secs"],
        "text_megabytes_per_sec_1_core": per_core,
        "dynamic_text_megabytes_per_sec_1_core": megabytes / dynamic["secs"],
        "workers": arguments.num_workers,
        "speedup": scaling,
        "worker_megabytes": several["worker_megabytes"],
        "static_bytes": one["bytes"],
        "dynamic_bytes": dynamic["bytes"],
        f"hours_{_GIGABYTES}_gb_{_CORES}_cores": hours,
        f"minutes_{_GIGABYTES}_gb_{_MACHINES}_machines_of_{_CORES}_cores": hours / _MACHINES * 60,
        "python_loop_ns": [loop_ns, python_loop_ns()],
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }
    if arguments.before:
        output = os.path.join(directory, "before.tfrecord")
        secs = before_secs(arguments.before, text_file, vocab_file, output, passes)
        result["before_examples_per_cpu_sec"] = one["examples"] / secs
    if arguments.tokenizers_python:
        secs = tokenizers_secs(arguments.tokenizers_python, text_file, vocab_file)
        result["tokenizers_megabytes_per_cpu_sec"] = megabytes / secs
    return result


def main(argv: list[str] | None = None) -> None:
    """Runs the benchmark with arguments; prints a line of JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=float, default=200.0, help="make a text of this size")
    parser.add_argument(
        "--vocab_size", type=int, default=8192, help="make a vocabulary of this size"
    )
    parser.add_argument(
        "--dupe_factor", type=int, default=10, help="make this number of passes over the text"
    )
    parser.add_argument(
        "--num_workers",
        type=int,
        default=2,
        help="compare this number of processes with one process",
    )
    parser.add_argument("--before", help="run the version in this checkout on the same text, too")
    parser.add_argument("--tokenizers_python", help="run the Rust tokenizer with this Python, too")
    parser.add_argument("--directory", help="write the text and the records here, for a while")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        print(json.dumps(measure(arguments, directory)))


if __name__ == "__main__":
    main()
