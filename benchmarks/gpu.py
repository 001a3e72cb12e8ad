"""BERT's training step on a GPU: exported programs against Hugging Face's BertForPreTraining.

    python -m benchmarks.gpu

times, for each network and length, the program of `run_pretraining.py --export_program` on one CUDA
GPU (jax and numpy), and the same work on torch: transformers' model under bfloat16 autocast, sdpa
attention and torch's fused AdamW, with and without torch.compile. Both get the same batches of the
embedded corpus: padding, dropout, the masked positions (only they go through the vocabulary's
matrix), and clipping by the global norm are those of BERT. Steps follow each other without waiting
for the host; the first ones, which compile, are not timed. The share of peak counts the exported
program's matrix products, for torch as well.

Programs are made where TensorFlow is, on any machine, and lie in runs/gpu:

    python -m benchmarks.gpu --export

A program is 1 to 2 MB: weights and slots stay behind, and are drawn anew where it runs; values of
the same size take the same time. BERT-Large's takes two minutes on two cores to make, and less than
16 GB of memory; where it runs it needs 4 GB of disk. --torch_python names a Python with torch and
transformers, which needs nothing else, where this one has none. Every measurement is a process of
its own and a row of results/gpu.csv, and is not made again. --tokens is the size of a batch; the
default is meant for GPUs with 16 GB. What does not fit is a row that says so. --table prints the
table of what is there. On a CPU, to try it out:

    python -m benchmarks.gpu --networks tiny --lengths 32 --tokens 128 --tpu_name rehearse:1 \\
        --results /tmp/gpu.csv
"""

import argparse
import csv
import importlib.util
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types

from benchmarks import torch_bert

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "benchmarks", "results", "gpu.csv")
KEYS = ["device", "network", "length", "batch", "side"]
COLUMNS = [
    *KEYS, "secs", "sequences_per_sec", "share_of_peak", "first_loss", "last_loss", "steps",
    "versions",
]  # fmt: skip
SIDES = ["exported", "torch", "torch.compile"]
OUT_OF_MEMORY = "out of memory"
_NO_MEMORY = re.compile("RESOURCE_EXHAUSTED|out of memory|CUBLAS_STATUS_ALLOC_FAILED", re.I)


def export(directory, network, length, batch):
    """Exports a program, without its state, and what torch needs of the network. Needs TensorFlow.

    Args:
      directory: appears when it is whole.
      network: a preset of `bert_config`.
    """
    import run_pretraining
    from bert_estimator.bert_config import BertConfig
    from bert_estimator.tpu.program import stablehlo
    from input_pipelines import default_data

    network = BertConfig.preset(network, 30522).to_dict()
    predictions = math.ceil(0.15 * length)
    os.makedirs(os.path.dirname(directory), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(directory)) as folder:
        config, records, program = (
            os.path.join(folder, name) for name in ("config.json", "records", "program")
        )
        with open(config, "w", encoding="utf-8") as writer:
            json.dump(network, writer)
        data = default_data.make(os.path.join(folder, "data"), 2000, length, predictions, 1, seed=1)
        # Apart from their manifest, which says that the vocabulary has 2000 pieces.
        shutil.move(data.train_files[0], records)
        flags = [
            "--use_tpu", "--tpu_name=rehearse:1", "--precision=bfloat16", "--optimizer=adamw",
            f"--input_file={records}", f"--bert_config_file={config}", f"--output_dir={folder}/out",
            f"--max_seq_length={length}", f"--max_predictions_per_seq={predictions}",
            f"--train_batch_size={batch}", f"--export_program={program}",
        ]  # fmt: skip
        code = run_pretraining.main(["run_pretraining.py", *flags])
        if code:
            sys.exit(code)
        with open(os.path.join(program, "step.stablehlo"), "rb") as reader:
            flops = stablehlo.matmul_flops(stablehlo.from_portable(reader.read()))
        with open(os.path.join(program, "benchmark.json"), "w", encoding="utf-8") as writer:
            json.dump({"flops": flops, "bert_config": network}, writer)
        os.remove(os.path.join(program, "state.npz"))
        os.rename(program, directory)
    return {}


def make_state(directory):
    """Writes a program's state.npz, if it isn't there: weights as BERT draws them, slots 0."""
    import numpy as np

    path = os.path.join(directory, "state.npz")
    if os.path.exists(path):
        return
    with open(os.path.join(directory, "program.json"), encoding="utf-8") as reader:
        variables = json.load(reader)["state"]
    random, values = np.random.default_rng(1), {}
    for each in variables:
        value = np.zeros(each["shape"], each["dtype"])
        if each["trainable"] and value.ndim > 1:
            value = 0.02 * random.standard_normal(each["shape"], np.float32)
        elif each["trainable"] and each["name"].endswith("gamma"):
            value += 1
        values[each["name"]] = value
    np.savez(path + ".part.npz", **values)
    os.replace(path + ".part.npz", path)


def time_exported(directory, steps, tpu_name):
    """Times an exported program; without a directory, says only what it would run on.

    Returns:
      Dict of `device` and `versions`; and of `secs` of a step, `first_loss` and `last_loss`.

    Raises:
      RuntimeError: there is no such device; the text says what to do.
    """
    from bert_estimator.tpu.program import devices, exported_program, run_program

    (core,) = run_program.find_cores(tpu_name, 1)
    versions = f"jax {devices.import_jax().__version__}, {core.client.platform_version}"
    found = {"device": core.device_kind, "versions": " ".join(versions.split())}
    if directory:
        make_state(directory)
        program = exported_program.load(directory)
        losses, found["secs"], _ = run_program.run(program, [core], steps + 1)
        found.update(first_loss=losses[0], last_loss=losses[-1])
    return found


VERBS = {"export": export, "exported": time_exported, "torch": torch_bert.time_step}


def answer(what, arguments):
    """Does what `ask` asks of this process, and prints the answer."""
    try:
        found = VERBS[what](**arguments)
    except Exception as error:
        if not arguments["directory"]:
            found = {"error": str(error)}
        elif what != "export" and _NO_MEMORY.search(str(error)):
            found = {"secs": OUT_OF_MEMORY}
        else:
            raise
    print(json.dumps(found))


def ask(python, what, hide_gpus=False, **arguments):
    """Has a new process call a function of VERBS; returns what it gave, or ends with its error."""
    command = [python, "-m", "benchmarks.gpu", "--answer", json.dumps([what, arguments])]
    # As much of the GPU's memory as torch may take; jax's own default is 75 %.
    env = {"XLA_CLIENT_MEM_FRACTION": "0.95", **os.environ}
    if hide_gpus:
        env.update(CUDA_VISIBLE_DEVICES="-1", JAX_PLATFORMS="cpu")
    done = subprocess.run(command, cwd=ROOT, env=env, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{done.stderr[-4000:]}\n{what} {arguments} ended with {done.returncode}")
    found = json.loads(done.stdout.splitlines()[-1])
    if "error" in found:
        sys.exit(found["error"])
    return found


def row_of(key, found, flops, peak, steps):
    """Returns the CSV's row of a measurement.

    Args:
      key: the values of KEYS.
      found: what the side's function gave; its `secs` may be OUT_OF_MEMORY.
      flops: of a step; None where they cannot be counted.
      peak: of the device in FLOP/s; None where it is not known.
    """
    row = {**dict(zip(KEYS, key, strict=True)), "steps": str(steps), **found}
    if found["secs"] != OUT_OF_MEMORY:
        secs = found["secs"]
        row.update(secs=f"{secs:.5g}", sequences_per_sec=f"{int(row['batch']) / secs:.5g}")
        row.update({name: f"{found[name]:.4f}" for name in ("first_loss", "last_loss")})
        row["share_of_peak"] = f"{flops / secs / peak:.4f}" if flops and peak else ""
    return {name: row.get(name, "") for name in COLUMNS}


def table(rows):
    """Returns README.md's table: sequences/s of each side, and its share of the device's peak."""
    lines = [
        "| device | network, tokens, batch | " + " | ".join(SIDES) + " |",
        "|---|---|" + "---|" * len(SIDES),
    ]
    cells = {tuple(row[name] for name in KEYS): row for row in rows}
    for device, network, length, batch in dict.fromkeys(key[:-1] for key in cells):
        found = (cells.get((device, network, length, batch, side)) for side in SIDES)
        sides = " | ".join(_cell(row) if row else "not measured" for row in found)
        lines.append(f"| {device} | {network}, {length}, {batch} | {sides} |")
    return "\n".join(lines)


def _cell(row):
    if row["secs"] == OUT_OF_MEMORY:
        return OUT_OF_MEMORY
    share = f" ({float(row['share_of_peak']):.1%})" if row["share_of_peak"] else ""
    return f"{float(row['sequences_per_sec']):.4g}{share}"


def find_programs(folder, cells):
    """Exports what isn't there yet; returns each cell's directory."""
    directories = {cell: os.path.abspath(os.path.join(folder, "_".join(cell))) for cell in cells}
    missing = [cell for cell, directory in directories.items() if not os.path.exists(directory)]
    if missing and importlib.util.find_spec("tensorflow") is None:
        sys.exit(
            f"{folder} lacks the programs {', '.join(map('_'.join, missing))}, and TensorFlow, "
            "which makes them, is not installed here. Where it is: python -m benchmarks.gpu "
            "--export (with these --networks, --lengths, --tokens); then copy the directory here"
        )
    for cell in missing:
        print("exporting", *cell, flush=True)
        network, length, batch = cell
        sizes = {"network": network, "length": int(length), "batch": int(batch)}
        ask(sys.executable, "export", hide_gpus=True, directory=directories[cell], **sizes)
    return directories


def measure(arguments, cells, rows):
    """Times what `rows` lacks, and adds it to them and to the file of results."""
    from bert_estimator.tpu.program import run_program

    def run(side, directory):
        python = sys.executable if side == "exported" else arguments.torch_python
        options = {"compiled": True} if side == "torch.compile" else {}
        options.update(steps=arguments.steps, tpu_name=arguments.tpu_name)
        return ask(python, side.removesuffix(".compile"), directory=directory, **options)

    devices = {side: run(side, None)["device"] for side in arguments.sides}
    directories = find_programs(arguments.programs, cells)
    for cell, side in itertools.product(cells, arguments.sides):
        key = (devices[side], *cell, side)
        if any(key == tuple(row[name] for name in KEYS) for row in rows):
            continue
        print(*key, flush=True)
        with open(os.path.join(directories[cell], "benchmark.json"), encoding="utf-8") as reader:
            flops = json.load(reader)["flops"]
        peak = run_program.peak_of(types.SimpleNamespace(device_kind=devices[side]))
        rows.append(row_of(key, run(side, directories[cell]), flops, peak, arguments.steps))
        with open(arguments.results, "w", newline="", encoding="utf-8") as writer:
            table_writer = csv.DictWriter(writer, COLUMNS, lineterminator="\n")
            table_writer.writeheader()
            table_writer.writerows(rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="+", default=["base", "large"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of a batch")
    parser.add_argument("--sides", nargs="+", default=SIDES, choices=SIDES)
    parser.add_argument("--steps", type=int, default=50, help="steps that are timed")
    parser.add_argument("--tpu_name", default="gpu", help="gpu, or rehearse:1 for the CPU")
    parser.add_argument("--torch_python", default=sys.executable)
    parser.add_argument("--programs", default=os.path.join(ROOT, "runs", "gpu"))
    parser.add_argument("--results", default=RESULTS)
    parser.add_argument("--export", action="store_true", help="make the programs, time nothing")
    parser.add_argument("--table", action="store_true", help="print the table, time nothing")
    parser.add_argument("--answer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answer:
        answer(*json.loads(arguments.answer))
        return
    rows = []
    if os.path.exists(arguments.results):
        with open(arguments.results, newline="", encoding="utf-8") as reader:
            rows = list(csv.DictReader(reader))
    batches = [(length, max(1, arguments.tokens // length)) for length in arguments.lengths]
    cells = [(name, str(n), str(b)) for name in arguments.networks for n, b in batches]
    if arguments.export:
        find_programs(arguments.programs, cells)
        return
    if not arguments.table:
        measure(arguments, cells, rows)
    print(table(rows))


if __name__ == "__main__":
    main()
