"""How many pretraining examples a second one core reads, checks and masks.

    python -m benchmarks.input_speed

For records with masks and without masks (drawn while reading), of 128 and of 512 tokens, this takes
batches of the embedded corpus from the `input_fn` of training, and counts the seconds of processors
that the whole process uses. The last line is JSON, which is kept in results/input_speed.json: the
plan for a pod (`--compile_only`) goes by it.
"""

import argparse
import itertools
import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence

from benchmarks import main_job

RESULTS = os.path.join(main_job.ROOT, "benchmarks", "results", "input_speed.json")
PREDICTIONS = {128: 20, 512: 77}  # length of an example -> the most masked tokens
_BATCH, _WARMUP_BATCHES = 256, 8


def examples_per_cpu_sec(
    directory: str, masking: str, length: int, num_batches: int
) -> dict[str, float]:
    """Reads batches of records made in a directory; returns rates by the clock and by CPU time."""
    import tensorflow.compat.v1 as tf

    from input_pipelines.embedded import default_data
    from input_pipelines.records import pretraining_input

    predictions = PREDICTIONS[length]
    data = default_data.make(directory, 2000, length, predictions, 5, seed=1, masking=masking)
    input_fn = pretraining_input.input_fn_builder(
        data.train_files, length, predictions, is_training=True, vocab_size=2000
    )
    with tf.Graph().as_default(), tf.Session() as session:
        batch = tf.data.make_one_shot_iterator(input_fn({"batch_size": _BATCH})).get_next()
        for _ in range(_WARMUP_BATCHES):
            session.run(batch)
        start, busy = time.perf_counter(), time.process_time()
        for _ in range(num_batches):
            session.run(batch)
        secs, busy = time.perf_counter() - start, time.process_time() - busy
    number = num_batches * _BATCH
    return {"examples_per_cpu_sec": number / busy, "examples_per_sec": number / secs}


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmark with arguments; prints a line of JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batches", type=int, default=400, help="read this number of batches")
    parser.add_argument("--results", default=RESULTS, help="write the last line to this file")
    arguments = parser.parse_args(argv)
    rates = {}
    for masking, length in itertools.product(("dynamic", "static"), PREDICTIONS):
        name = f"{masking}_{length}"
        with tempfile.TemporaryDirectory() as directory:
            rates[name] = examples_per_cpu_sec(directory, masking, length, arguments.batches)
        print(f"{name}: {rates[name]}", flush=True)
    result = {
        "rates": rates,
        "machine": f"{main_job.machine()}, Python {platform.python_version()}",
        "load": os.getloadavg()[0],
    }
    with open(arguments.results, "w", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
