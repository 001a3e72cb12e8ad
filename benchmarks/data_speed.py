"""The speed of creating pretraining records: examples a second of one core, and of several.

    python -m benchmarks.data_speed --megabytes=200

The text is Python's own documentation, repeated; in each copy some words are replaced or new. The
work is google-research/bert's by default: static masks, 10 passes, 128 tokens. The last line is
JSON.
"""

import argparse
import functools
import json
import multiprocessing
import os
import platform
import random
import resource
import tempfile
import time
from collections.abc import Iterator

from bert_estimator.tokenization import open_tokenizer, train_vocabulary, write_vocab
from input_pipelines.creation.pools import WorkerPool
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.embedded import embedded_corpus
from input_pipelines.text.documents import split_files

VOCAB_SIZE, PASSES = 8192, 10
_REPLACED, _NEW = 0.05, 0.005  # shares of the words of a copy


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


class MeasuredPool(WorkerPool):
    """Runs tasks, and says what the workers needed.

    Attributes:
      megabytes: the greatest memory of a worker, once the pool has ended; 0 without workers.
    """

    megabytes = 0.0

    def __exit__(self, *arguments) -> None:
        peaks = [peak_megabytes(child.pid) for child in multiprocessing.active_children()]
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


def write_text(directory: str, megabytes: float, vocab_size: int) -> tuple[str, str]:
    """Writes a text and a vocabulary into a directory; returns their paths."""
    text_file, vocab_file = os.path.join(directory, "text"), os.path.join(directory, "vocab.txt")
    sentences = (line for document in english() for line in document)
    write_vocab(train_vocabulary(sentences, vocab_size), vocab_file)
    with open(text_file, "w", encoding="utf-8") as file:
        file.writelines(text_of(megabytes))
    return text_file, vocab_file


def measure(megabytes: float, directory: str) -> dict[str, object]:
    """Runs everything in a directory; returns the values of the last line."""
    text_file, vocab_file = write_text(directory, megabytes, VOCAB_SIZE)
    megabytes = os.path.getsize(text_file) / 1e6

    def of(num_workers, masking, passes):
        name = os.path.join(directory, f"{masking}-{num_workers}")
        found = created(text_file, vocab_file, name, num_workers, masking, passes)
        print(f"{masking} masks, {num_workers} workers: {found}", flush=True)
        return found

    one, dynamic, several = of(1, "static", PASSES), of(1, "dynamic", 1), of(2, "static", PASSES)
    return {
        "megabytes": round(megabytes, 1),
        "examples": one["examples"],
        "examples_per_sec_1_core": one["examples"] / one["secs"],
        "examples_per_cpu_sec": one["examples"] / one["cpu_secs"],
        "text_megabytes_per_sec_1_core": megabytes / one["secs"],
        "dynamic_text_megabytes_per_sec_1_core": megabytes / dynamic["secs"],
        "workers": 2,
        "speedup": one["secs"] / several["secs"],
        "worker_megabytes": several["worker_megabytes"],
        "static_bytes": one["bytes"],
        "dynamic_bytes": dynamic["bytes"],
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def main(argv: list[str] | None = None) -> None:
    """Runs the benchmark with arguments; prints a line of JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=float, default=200.0, help="make a text of this size")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(measure(arguments.megabytes, directory)))


if __name__ == "__main__":
    main()
