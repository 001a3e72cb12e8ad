"""How much of this machine's memory a run takes: what `bert_estimator.memory_needed` is fitted to.

    python -m benchmarks.machine_memory

This trains BERT-base and BERT-Large for four steps, with a checkpoint in the middle, and evaluates
them, with several lengths, batches and options; embeds texts with them; and converts them, each in
a process of its own and one at a time.
The most memory that the process used becomes a row of results/machine_memory.csv; measurements with
a row are skipped. On two cores it takes an hour, and BERT-Large needs 16 GiB.
"""

import argparse
import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence

from benchmarks import csv_rows, main_job, training_speed
from bert_estimator import memory_needed
from bert_estimator.bert_config import BertConfig
from bert_estimator.jobs import job_estimator
from bert_estimator.jobs.pretraining.pretraining_config import ScheduleFlags
from bert_estimator.model_fns import depth

RESULTS = os.path.join(main_job.ROOT, "benchmarks", "results", "machine_memory.csv")
KEY = ["verb", "network", "length", "batch", "precision", "options"]
COLUMNS = [*KEY, "peak_gib"]

_F32, _BF16 = "float32", "bfloat16"
_CORES = "--tpu_name=rehearse:2"
_SHAPES = ((128, 16), (512, 4))  # tokens of a sequence, sequences of a batch
MEASUREMENTS = [
    *[("train", "base", *shape, _F32, runtime) for runtime in ("", _CORES) for shape in _SHAPES],
    ("train", "large", 128, 4, _F32, ""),
    ("evaluate", "base", 512, 16, _F32, ""),
    ("evaluate", "base", 512, 16, _F32, _CORES),
    ("embed", "base", 512, 32, _F32, ""),
    ("convert", "base", 0, 0, _F32, ""),
    ("train", "base", 128, 16, _BF16, ""),
    ("train", "base", 512, 4, _BF16, _CORES),
    *[
        ("train", "base", 512, 4, _F32, f"{runtime}{flag}")
        for runtime in ("", f"{_CORES} ")
        for flag in ("--recompute", "--micro_batch_size=1")
    ],
    ("convert", "large", 0, 0, _F32, ""),
    ("train", "base", 512, 4, _BF16, ""),
    ("train", "base", 128, 8, _F32, "--optimizer=adafactor"),
    ("train", "large", 512, 2, _BF16, ""),
    ("embed", "large", 512, 32, _F32, ""),
    ("train", "base", 128, 16, _F32, "--tpu_name=rehearse:4"),
    ("evaluate", "large", 512, 8, _F32, ""),
    ("evaluate", "base", 512, 32, _BF16, ""),
    ("train", "base", 128, 32, _BF16, ""),
    ("train", "small", 512, 16, _F32, _CORES),
    *[
        ("train", "base", 128, 16, _F32, f"{runtime}--trainable={value}")
        for value in ("last:4", "head")
        for runtime in ("", f"{_CORES} ")
    ],
]


def command_of(verb, network, length, batch, precision, options, directory):
    """Returns the command of a measurement, whose files it writes into a directory."""
    if verb in ("embed", "convert"):
        model = os.path.join(directory, "model")
        write_model(model, network)
        if verb == "convert":
            module = "bert_estimator.interchange"
            return [sys.executable, "-m", module, model, os.path.join(directory, "converted")]
        texts = os.path.join(directory, "texts.txt")
        with open(texts, "w", encoding="utf-8") as writer:
            writer.write(("a " * (length - 2) + "\n") * 2 * batch)
        module = "bert_estimator.serving.embed"
        # The shell becomes the command, whose output is not text.
        shell = ["sh", "-c", 'exec "$@" > "$0"', os.path.join(directory, "vectors.npy")]
        return [*shell, sys.executable, "-m", module, model, texts, f"--batch_size={batch}"]
    cell = training_speed.Cell(os.path.join(directory, "cell"), network, length, batch)
    command = [
        sys.executable, os.path.join(main_job.ROOT, "run_pretraining.py"),
        f"--precision={precision}", *cell.flags, f"--output_dir={directory}/run",
        f"--eval_batch_size={batch}", f"--do_{'train' if verb == 'train' else 'eval'}",
        "--iterations_per_loop=1",
        "--num_train_steps=4", "--num_warmup_steps=0", "--max_eval_steps=2",
        "--save_checkpoints_steps=2", *options.split(),
    ]  # fmt: skip
    if "--optimizer" not in options:
        command.append("--optimizer=lamb")
    if "--tpu_name" in options:
        command.append("--use_tpu")
    if "--trainable" in options:  # what it does not train must come from somewhere
        write_model(os.path.join(directory, "model"), network)
        command += [f"--init_checkpoint={directory}/model", "--allow_partial_init"]
    return command


def write_model(folder: str, network: str, *vocab_file: str) -> None:
    """Has another process write a checkpoint of random weights with its network and a vocabulary,
    by default of a few words."""
    code = "import sys; from benchmarks import machine_memory as memory; memory.write_weights"
    command = [sys.executable, "-c", f"{code}(*sys.argv[1:])", folder, network, *vocab_file]
    training_speed.Process(command)


def write_weights(folder: str, network: str, vocab_file: str | None = None) -> None:
    """Writes what `write_model` says."""
    import numpy as np

    from bert_estimator.interchange import network_variables
    from bert_estimator.interchange.google import tf1_checkpoint
    from bert_estimator.interchange.source import TF1, Source
    from bert_estimator.tokenization import SPECIAL_TOKENS

    os.makedirs(folder)
    if vocab_file is None:
        vocab_file = os.path.join(folder, "tokens.txt")
        with open(vocab_file, "w", encoding="utf-8") as writer:
            writer.write("\n".join([*SPECIAL_TOKENS, "a"]) + "\n")
    config = BertConfig.preset(network, 30522)
    random = np.random.default_rng(1)
    shapes = network_variables.encoder_shapes(config)
    weights = {name: random.random(shape, np.float32) / 50 for name, shape in shapes.items()}
    source = Source(folder, TF1, shapes, weights.get, config=config, vocab_file=vocab_file)
    tf1_checkpoint.write(folder, source, weights)


def measure(*measurement) -> dict[str, str]:
    """Runs the command of a measurement once; returns the column of its result."""
    with tempfile.TemporaryDirectory() as directory:
        command = command_of(*measurement, directory)
        return {"peak_gib": f"{training_speed.Process(command).peak_gib:.4g}"}


def estimate(row: Mapping[str, str]) -> float:
    """Returns the GiB that `memory_needed` says for a row."""
    verb, network, length, batch, precision, options = (row[name] for name in KEY)
    config = BertConfig.preset(network, 30522)
    values = dict(option.lstrip("-").partition("=")[::2] for option in options.split())
    micro_batch_size = values.get("micro_batch_size")
    step = memory_needed.Computation(
        rows=int(batch),
        length=int(length),
        precision=precision,
        replicas=int(values.get("tpu_name", "rehearse:0").rpartition(":")[2]),
        micro_batch_size=micro_batch_size and int(micro_batch_size),
        recompute="recompute" in values,
        predictions=0 if verb == "embed" else math.ceil(0.15 * int(length)),
        trained_layers=depth.trained_layers(values.get("trainable", depth.ALL), config),
    )
    if verb == "train":
        moments = job_estimator.moments_of(ScheduleFlags(optimizer=values.get("optimizer", "lamb")))
        return memory_needed.of_training(config, step, moments) / 2**30
    if verb == "convert":
        return memory_needed.of_conversion(config) / 2**30
    return memory_needed.of_running(config, step) / 2**30


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Returns a table of measurements beside what `memory_needed` says."""
    table_rows = []
    for row in rows:
        verb, network, length, batch, precision, options, peak = (row[name] for name in COLUMNS)
        shape = "" if batch == "0" else f"{batch} x {length}"
        options = options and f"`{options}`"
        gib = (f"{number:.1f}" for number in (float(peak), estimate(row)))
        table_rows.append([f"{verb} {network}", shape, precision, options, *gib])
    heads = "run | batch, tokens | precision | options | measured, GiB | estimated, GiB"
    return csv_rows.markdown(heads, table_rows)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", default=RESULTS, help="keep the rows in this CSV file")
    parser.add_argument("--table", action="store_true", help="print the table of all rows only")
    arguments = parser.parse_args(argv)
    results = csv_rows.Results(arguments.results, COLUMNS, len(KEY))
    if not arguments.table:
        for measurement in MEASUREMENTS:
            results.row(measurement, measure)
    print(table(results.rows))


if __name__ == "__main__":
    main()
