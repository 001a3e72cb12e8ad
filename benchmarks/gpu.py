"""BERT's training step on a GPU: exported programs against Hugging Face's BertForPreTraining.

    python -m benchmarks.gpu

For each network and length, this times the program of `run_pretraining.py --export_program` on one
CUDA GPU (with jax and numpy), and the same work in torch: transformers' model under bfloat16
autocast, sdpa attention and torch's fused AdamW, with and without torch.compile. Both get the same
batches of the embedded corpus, with BERT's padding, dropout and clipping by the global norm; only
the masked positions go through the vocabulary's matrix. Steps follow each other without waiting for
the host. The first steps, which compile, are not timed. The share of peak counts the exported
program's matrix products, also for torch.

The programs can be made on any machine with TensorFlow. They are written to runs/gpu:

    python -m benchmarks.gpu --export

A program has 1 to 2 MB, because weights and slots are not exported; they are drawn anew for the
measurement, which takes the same time with any values. Making the program of BERT-Large takes two
minutes on two cores, and less than 16 GB of memory; measuring it needs 4 GB of disk. If this Python
lacks torch and transformers, --torch_python names a Python that has them; it does not need other
packages. Every measurement is a process of its own and a row of results/gpu.csv; measurements with
a row are skipped. --tokens is the size of a batch; the default is for GPUs with 16 GB. If a step
does not fit, its row says so. To try it on a CPU:

    python -m benchmarks.gpu --networks tiny --lengths 32 --tokens 128 --tpu_name rehearse:1 \\
        --results /tmp/gpu.csv
"""

import argparse
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import types
from collections.abc import Sequence
from typing import Any

from benchmarks import csv_rows, torch_bert
from bert_estimator.system import disk_files

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


def export(directory: str, network: str, length: int, batch: int) -> dict[str, Any]:
    """Exports a program without its state, and the network's sizes for torch; needs TensorFlow. The
    directory does not exist until the program is complete."""
    import run_pretraining
    from benchmarks import training_speed
    from bert_estimator.tpu.program import exported_program, stablehlo

    os.makedirs(os.path.dirname(directory), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(directory)) as folder:
        cell = training_speed.Cell(os.path.join(folder, "cell"), network, length, batch)
        program = os.path.join(folder, "program")
        flags = [
            "--use_tpu", "--tpu_name=rehearse:1", "--precision=bfloat16", "--optimizer=adamw",
            *cell.flags, f"--output_dir={folder}/out", f"--export_program={program}",
        ]  # fmt: skip
        if code := run_pretraining.main(["run_pretraining.py", *flags]):
            sys.exit(code)
        step, _ = exported_program.load_step(program)
        flops = stablehlo.matmul_flops(step.mlir_module())
        with open(os.path.join(program, "benchmark.json"), "w", encoding="utf-8") as writer:
            json.dump({"flops": flops, "bert_config": cell.sizes}, writer)
        os.remove(os.path.join(program, "state.npz"))
        os.rename(program, directory)
    return {}


def make_state(directory: str) -> None:
    """Writes a program's state.npz if it is missing."""
    import numpy as np

    from bert_estimator.tpu.program import exported_program

    path = os.path.join(directory, "state.npz")
    if os.path.exists(path):
        return
    step, _ = exported_program.load_step(directory)
    (of_state, _), _ = step.in_tree.unflatten(step.in_avals)
    with disk_files.writer(path, "wb") as writer:
        np.savez(writer, **drawn(of_state))


def drawn(of_state: dict[str, Any]) -> dict[str, Any]:
    """Returns values of variables by name, from their shapes and dtypes: weights as BERT draws
    them, slots of 0."""
    import numpy as np

    random, values = np.random.default_rng(1), {}
    for name, variable in of_state.items():
        is_weight = f"{name}/adam_m" in of_state
        values[name] = np.zeros(variable.shape, variable.dtype)
        if is_weight and len(variable.shape) > 1:
            values[name] = 0.02 * random.standard_normal(variable.shape, np.float32)
        elif is_weight and name.endswith("gamma"):
            values[name] += 1
    return values


def time_exported(directory: str | None, steps: int, tpu_name: str) -> dict[str, Any]:
    """Times an exported program; without a directory, only names the device.

    It returns `device` and `versions`, and with a directory `secs` (of a step), `first_loss` and
    `last_loss`. A RuntimeError says what to do if the device cannot be used.
    """
    from bert_estimator.tpu import run_program
    from bert_estimator.tpu.program import devices, exported_program

    (core,) = run_program.find_cores(tpu_name, 1)
    versions = f"jax {devices.import_jax().__version__}, {core.client.platform_version}"
    result = {"device": core.device_kind, "versions": " ".join(versions.split())}
    if directory:
        make_state(directory)
        program = exported_program.load(directory)
        losses, result["secs"], _ = run_program.run(program, [core], steps + 1)
        result.update(first_loss=losses[0], last_loss=losses[-1])
    return result


VERBS = {"export": export, "exported": time_exported, "torch": torch_bert.time_step}


def answer(what: str, arguments: dict[str, Any]) -> None:
    """Calls the function that `ask` named for this process, and prints its result."""
    try:
        result = VERBS[what](**arguments)
    except Exception as error:
        if not arguments["directory"]:
            result = {"error": str(error)}
        elif what != "export" and _NO_MEMORY.search(str(error)):
            result = {"secs": OUT_OF_MEMORY}
        else:
            raise
    print(json.dumps(result))


def ask(python: str, what: str, hide_gpus: bool = False, **arguments: Any) -> Any:
    """Calls a function of VERBS in a new process; returns its result, or exits with its error."""
    command = [python, "-m", "benchmarks.gpu", "--answer", json.dumps([what, arguments])]
    # jax takes 75 % of the GPU's memory by default; with this it may take as much as torch.
    env = {"XLA_CLIENT_MEM_FRACTION": "0.95", **os.environ}
    if hide_gpus:
        env.update(CUDA_VISIBLE_DEVICES="-1", JAX_PLATFORMS="cpu")
    done = subprocess.run(command, cwd=ROOT, env=env, text=True, capture_output=True)
    if done.returncode:
        sys.exit(f"{done.stderr[-4000:]}\n{what} {arguments} ended with {done.returncode}")
    result = json.loads(done.stdout.splitlines()[-1])
    if "error" in result:
        sys.exit(result["error"])
    return result


def row_of(
    key: Sequence[str], result: dict[str, Any], flops: float | None, peak: float | None, steps: int
) -> dict[str, Any]:
    """Returns the CSV's row of a measurement.

    `secs` of the result may be OUT_OF_MEMORY; `flops`, of a step, and `peak`, a second, may be
    unknown.
    """
    row = {**dict(zip(KEYS, key, strict=True)), "steps": str(steps), **result}
    if result["secs"] != OUT_OF_MEMORY:
        secs = result["secs"]
        row.update(secs=f"{secs:.5g}", sequences_per_sec=f"{int(row['batch']) / secs:.5g}")
        row.update({name: f"{result[name]:.4f}" for name in ("first_loss", "last_loss")})
        row["share_of_peak"] = f"{flops / secs / peak:.4f}" if flops and peak else ""
    return {name: row.get(name, "") for name in COLUMNS}


def table(rows: list[dict[str, Any]]) -> str:
    """Returns a table: sequences/s of each side, and its share of the peak."""
    cells = {tuple(row[name] for name in KEYS): row for row in rows}
    table_rows = []
    for device, network, length, batch in dict.fromkeys(key[:-1] for key in cells):
        side_rows = (cells.get((device, network, length, batch, side)) for side in SIDES)
        table_rows.append([device, f"{network}, {length}, {batch}", *map(_cell, side_rows)])
    return csv_rows.markdown(f"device | network, tokens, batch | {' | '.join(SIDES)}", table_rows)


def _cell(row):
    if row is None or row["secs"] == OUT_OF_MEMORY:
        return OUT_OF_MEMORY if row else "not measured"
    share = f" ({float(row['share_of_peak']):.1%})" if row["share_of_peak"] else ""
    return f"{float(row['sequences_per_sec']):.4g}{share}"


def find_programs(
    folder: str, cells: Sequence[tuple[str, str, str]]
) -> dict[tuple[str, str, str], str]:
    """Exports the programs that are missing; returns each cell's directory."""
    directories = {cell: os.path.abspath(os.path.join(folder, "_".join(cell))) for cell in cells}
    missing = [cell for cell, directory in directories.items() if not os.path.exists(directory)]
    if missing and importlib.util.find_spec("tensorflow") is None:
        sys.exit(
            f"{folder} lacks the programs {', '.join(map('_'.join, missing))}, and TensorFlow, "
            "which makes them, is not installed here. Run python -m benchmarks.gpu --export (with "
            "these --networks, --lengths, --tokens) on a machine with TensorFlow, and copy the "
            "directory here"
        )
    for cell in missing:
        print("exporting", *cell, flush=True)
        network, length, batch = cell
        sizes = {"network": network, "length": int(length), "batch": int(batch)}
        ask(sys.executable, "export", hide_gpus=True, directory=directories[cell], **sizes)
    return directories


def measure(
    arguments: argparse.Namespace, cells: Sequence[tuple[str, str, str]], results: csv_rows.Results
) -> None:
    """Makes the measurements that the results lack."""
    from bert_estimator.tpu import run_program

    def run(side, directory):
        python = sys.executable if side == "exported" else arguments.torch_python
        options = {"compiled": True} if side == "torch.compile" else {}
        options.update(steps=arguments.steps, tpu_name=arguments.tpu_name)
        return ask(python, side.removesuffix(".compile"), directory=directory, **options)

    def row(*key):
        device, *cell, side = key
        directory = directories[tuple(cell)]
        with open(os.path.join(directory, "benchmark.json"), encoding="utf-8") as reader:
            flops = json.load(reader)["flops"]
        peak = run_program.peak_of(types.SimpleNamespace(device_kind=device))
        return row_of(key, run(side, directory), flops, peak, arguments.steps)

    devices = {side: run(side, None)["device"] for side in arguments.sides}
    directories = find_programs(arguments.programs, cells)
    for cell, side in itertools.product(cells, arguments.sides):
        results.row((devices[side], *cell, side), row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--networks", nargs="+", default=["base", "large"], help="measure these presets")
    add("--lengths", type=int, nargs="+", default=[128, 512], help="measure these lengths")
    add("--tokens", type=int, default=8192, help="put this many tokens into a batch")
    add("--sides", nargs="+", default=SIDES, choices=SIDES, help="measure these programs")
    add("--steps", type=int, default=50, help="time this many steps")
    add("--tpu_name", default="gpu", help="run on gpu, or on rehearse:1, the CPU")
    add("--torch_python", default=sys.executable, help="run torch with this Python")
    programs = os.path.join(ROOT, "runs", "gpu")
    add("--programs", default=programs, help="keep the exported programs in this directory")
    add("--results", default=RESULTS, help="keep the rows in this CSV file")
    add("--export", action="store_true", help="make the programs, and stop")
    add("--answer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answer:
        answer(*json.loads(arguments.answer))
        return
    batches = [(length, max(1, arguments.tokens // length)) for length in arguments.lengths]
    cells = [(name, str(n), str(b)) for name in arguments.networks for n, b in batches]
    if arguments.export:
        find_programs(arguments.programs, cells)
        return
    results = csv_rows.Results(arguments.results, COLUMNS, len(KEYS))
    measure(arguments, cells, results)
    print(table(results.rows))


if __name__ == "__main__":
    main()
