"""Pretraining goes on with texts of a domain: what that does to its masked words, and to a task.

    TRANSFORMERS_PYTHON=/path/to/python python -m benchmarks.your_domain

Network and texts come from `public_record`. The domain is a genre, by default sentences of product
reviews: the four fifths of its texts that `public_record` trains on, without their ratings. The
last fifth is held out of all trainings. For each seed,

1. `run_pretraining.py --init_checkpoint` goes on with the domain's texts, once with all weights and
   once with `--trainable=head`: the published network does not have a head for masked words, so
   this says what a new head learns by itself;
2. `run_classifier.py` learns ratings of texts drawn with the seed, from the published network and
   from the network that has read the domain. The score is Pearson's correlation on the held-out
   texts.

transformers' Trainer does the same, but for the new head alone (`--trained_by` chooses), on the
same texts and ratings, with as many steps of as many texts, warm-up and learning rate.

`--domain editorials` is a control: another domain than the task's. `--own_words=500` adds words to
the vocabulary first. The first part corrects the bias of Adam's moments, as transformers does,
unless `--noadam_bias_correction` is given. Each training is a cell of results/your_domain.json,
written when it is done; another start goes on. Minutes are processor time of the whole command on
one core.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import csv_rows, public_record
from benchmarks.main_job import ROOT, machine
from benchmarks.public_record import GENRES, HERE, THERE
from bert_estimator.command_line import charts

RESULTS = os.path.join(ROOT, "benchmarks", "results", "your_domain.json")
PICTURE = os.path.join(ROOT, "docs", "your_domain.svg")
HEAD, WHOLE = "a new head alone", "all weights"  # what is trained by reading
TRAINABLE = {HEAD: "head", WHOLE: "all"}
ALL = "all"  # ratings that are not held out
RATE = 1e-4  # that `public_record` chose for this network, on tweets
BATCH, FEWEST_STEPS = 32, 200  # of a fine-tuning, which has three epochs at least
PRETRAINING_BATCH, LENGTH = 64, 128  # of a batch in texts, of a row in tokens


class Domain:
    """Holds the published network, the texts of a task's genre, and the texts of a domain."""

    def __init__(
        self,
        cache: str,
        model: str,
        task: str,
        genres: Sequence[str],
        num_words: int = 0,
        is_corrected: bool = True,
    ):
        self.labelled, self.held_out = public_record.tables(cache, task)
        parts = [public_record.tables(cache, genre)[0] for genre in genres]
        self.texts = sorted({text for part in parts for text, _ in part})
        self._cache, self._model, self._num_words = cache, model, num_words
        self._is_corrected = is_corrected
        name = f"{task}-after-{'-'.join(genres)}-{num_words}-words"
        self._folder = os.path.join(cache, name)
        self._start = os.path.join(self._folder, "model") if num_words else model

    def records(self) -> dict[str, str]:
        """Makes what is not there: the network with own words, the records to train on and the
        held-out records; returns the flags that name the records."""
        os.makedirs(self._folder, exist_ok=True)
        held_out = sorted({text for text, _ in self.held_out})
        names = {"input_file": self.texts, "eval_input_file": held_out}
        paths = {name: os.path.join(self._folder, name) for name in names}
        for name, texts in names.items():
            with open(f"{paths[name]}.txt", "w", encoding="utf-8") as writer:
                writer.writelines(f"{text}\n\n" for text in texts)  # each is a document
        if not os.path.exists(self._start):
            command = [
                sys.executable, "-m", "input_pipelines.create_vocabulary",
                f"--extend={self._model}", f"--input_file={paths['input_file']}.txt",
                f"--num_words={self._num_words}", f"--output_dir={self._start}",
            ]  # fmt: skip
            public_record.processor_minutes(command)
        for path in paths.values():
            command = [
                sys.executable, "-m", "input_pipelines.create_pretraining_data", "--objective=mlm",
                f"--input_file={path}.txt", f"--output_file={path}.tfrecord",
                f"--vocab_file={self._start}", "--split_sentences=no", f"--max_seq_length={LENGTH}",
            ]  # fmt: skip
            if not os.path.exists(f"{path}.tfrecord"):
                public_record.processor_minutes(command)
        return {name: f"{path}.tfrecord" for name, path in paths.items()}

    def adapted(self, by: str, trained: str, epochs: int, seed: int) -> str:
        """Returns the directory of the network that has read the domain."""
        name = TRAINABLE[trained] if by == HERE else by
        name += "" if self._is_corrected else "-not-corrected"
        return os.path.join(self._folder, f"{name}-{epochs}-epochs-seed-{seed}")

    def pretrain(self, by: str, trained: str, epochs: int, seed: int) -> dict[str, float]:
        """Goes on pretraining; returns losses of the held-out texts' masked words, in nats."""
        steps = max(1, epochs * len(self.texts) // PRETRAINING_BATCH)
        output = self.adapted(by, trained, epochs, seed)
        if by == THERE:
            return {"steps": steps, **self._pretrain_there(steps, seed, output)}
        flags = {
            **self.records(), "init_checkpoint": self._start, "output_dir": output,
            "trainable": TRAINABLE[trained], "random_seed": seed, "use_tpu": True, "pack": True,
            "adam_bias_correction": self._is_corrected,
            "precision": "bfloat16", "train_batch_size": PRETRAINING_BATCH, "learning_rate": RATE,
            "num_train_steps": steps, "num_warmup_steps": steps // 10, "max_seq_length": LENGTH,
            "save_checkpoints_steps": steps, "eval_batch_size": 64, "max_eval_steps": 1000,
        }  # fmt: skip
        command = [f"--{name}={value}" for name, value in flags.items()]
        minutes = public_record.processor_minutes([sys.executable, "run_pretraining.py", *command])
        with open(os.path.join(output, "metrics.jsonl"), encoding="utf-8") as reader:
            first, *_, last = (r for r in map(json.loads, reader) if "eval_masked_lm_loss" in r)
        losses = {
            "start": first["eval_masked_lm_loss"],
            "loss": last["eval_masked_lm_loss"],
            "unigram": last["eval_unigram_baseline"],
        }
        losses = {name: round(loss, 4) for name, loss in losses.items()}
        return {"steps": steps, **losses, "minutes": minutes}

    def _pretrain_there(self, steps: int, seed: int, output: str) -> dict[str, float]:
        for name, texts in (("train", self.texts), ("test", {text for text, _ in self.held_out})):
            csv_rows.write(f"{output}/{name}.csv", ["text"], [{"text": t} for t in sorted(texts)])
        command = [
            os.environ["TRANSFORMERS_PYTHON"], "-m", "benchmarks.torch_trainer", self._start,
            output, "words", f"--output_dir={output}", f"--max_steps={steps}",
            f"--learning_rate={RATE}", f"--warmup_steps={steps // 10}", f"--seed={seed}",
            f"--per_device_train_batch_size={PRETRAINING_BATCH}", "--per_device_eval_batch_size=64",
            "--bf16", "--use_cpu", "--save_strategy=no", "--report_to=none",
        ]  # fmt: skip
        minutes = public_record.processor_minutes(command)
        with open(os.path.join(output, "losses.json"), encoding="utf-8") as reader:
            losses = {name: round(loss, 4) for name, loss in json.load(reader).items()}
        return {**losses, "minutes": minutes}

    def fine_tune(self, by: str, model: str | None, number: int, seed: int) -> dict[str, float]:
        """Learns this many ratings from `model`, or from the network that has not read; returns the
        score of the held-out texts' ratings."""
        parts = random.Random(seed).sample(self.labelled, number), self.held_out
        epochs, start = max(3, FEWEST_STEPS * BATCH // number), model or self._model
        side = f"{by} --num_train_epochs={epochs}"
        if by == HERE:
            side += f" --max_seq_length={LENGTH}"
        return public_record.fine_tune(self._cache, start, side, parts, RATE, seed)[0]


class Cells:
    """Holds the cells of a file of results, and adds cells that are missing."""

    def __init__(self, path: str):
        self._path = path
        self.content: dict[str, Any] = {"machine": machine(), "cells": []}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as reader:
                self.content = json.load(reader)

    def add(self, key: dict[str, Any], measure: Callable[..., dict], *arguments: Any) -> None:
        """Measures a cell and writes the file, unless it has the cell."""
        if any(key.items() <= cell.items() for cell in self.content["cells"]):
            return
        cell = {**key, **measure(*arguments)}
        self.content["cells"].append(cell)
        public_record.write(self._path, self.content)
        print(cell, flush=True)


def losses_table(cells: Sequence[dict[str, Any]]) -> str:
    """Returns the table of the masked words of held-out texts."""
    rows, pretrained = [], [cell for cell in cells if "loss" in cell]
    names = ("data", "read", "by", "trained")
    for key, own in csv_rows.by_keys(pretrained, *names).items():
        ends, minutes = (csv_rows.numbers(own, name) for name in ("loss", "minutes"))
        mean = f"{statistics.mean(minutes):.1f}"
        rows.append([*key, len(own), own[0].get("unigram", ""), csv_rows.spread(ends), mean])
    heads = "held out | read | by | trained | seeds | unigrams | loss in nats | min"
    return csv_rows.markdown(heads, rows)


def scores_table(cells: Sequence[dict[str, Any]]) -> str:
    """Returns the table of the task; a gain is of two trainings on the same ratings, by seed."""
    tuned = [cell for cell in cells if "pearson" in cell]
    rows, tuned = [], sorted(tuned, key=lambda cell: cell["labels"])
    names = ("data", "labels", "by")
    for key, own in csv_rows.by_keys(tuned, *names).items():
        readers = csv_rows.by_keys(own, "read")
        starts = {cell["seed"]: cell["pearson"] for cell in readers.pop((None,), ())}
        for (read,), after in readers.items():
            pairs = [(starts[c["seed"]], c["pearson"]) for c in after if c["seed"] in starts]
            if pairs:
                columns = [*zip(*pairs, strict=True), [end - start for start, end in pairs]]
                rows.append([*key, read, len(pairs), *map(csv_rows.spread, columns)])
    heads = "ratings of | ratings | by | read | seeds | as it is | after reading | gain"
    return csv_rows.markdown(heads, rows)


def draw(figure: Any, cells: Sequence[dict[str, Any]]) -> None:
    """Draws the scores over the number of ratings, for each task: dots of seeds, lines of means."""
    own = [cell for cell in cells if "pearson" in cell and cell["by"] == HERE]
    tasks = csv_rows.by_keys(own, "data")
    figure.set_figheight(3.5 * len(tasks))
    panels = figure.subplots(len(tasks), squeeze=False)[:, 0]
    for axes, ((data,), own) in zip(panels, tasks.items(), strict=True):
        lines = csv_rows.by_keys(sorted(own, key=lambda cell: cell["labels"]), "read")
        colours = (charts.ORANGE, *(c for c in charts.COLOURS if c != charts.ORANGE))
        order = sorted(lines, key=lambda line: line != (None,))
        for (read,), colour in zip(order, colours, strict=False):
            line = lines[read,]
            axes.plot(*_columns(line), ".", color=colour, markersize=4)
            groups = csv_rows.by_keys(line, "labels").values()
            means = [[statistics.mean(values) for values in _columns(group)] for group in groups]
            name = f"after reading {read}".replace(", ", "\n") if read else "as it is"
            axes.plot(*zip(*means, strict=True), color=colour, label=name)
        numbers = sorted({cell["labels"] for cell in own})
        axes.set_xscale("log")
        axes.set_xticks(numbers, [f"{number:,}" for number in numbers])
        axes.minorticks_off()
        axes.set_xlabel("rated texts to learn from")
        charts.finish_panel(axes, f"ratings of held-out {data}: Pearson's correlation")


def _columns(cells):
    return [csv_rows.numbers(cells, name) for name in ("labels", "pearson")]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cache = os.path.join(tempfile.gettempdir(), "public_record")
    parser.add_argument(
        "--task", default="products", choices=GENRES, help="take these texts and ratings"
    )
    parser.add_argument(
        "--domain", nargs="+", choices=GENRES, help="read these first, by default --task"
    )
    parser.add_argument(
        "--noadam_bias_correction", action="store_true", help="read by google-research/bert's rule"
    )
    parser.add_argument("--own_words", type=int, default=0, help="add so many to the vocabulary")
    parser.add_argument("--epochs", type=int, default=5, help="read them so many times")
    parser.add_argument(
        "--labels", nargs="+", default=["200", "1000", ALL], help="train on so many ratings"
    )
    sides = [HERE, THERE]
    parser.add_argument(
        "--trained_by", nargs="+", default=sides, choices=sides, help="train with these"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=range(1, 6), help="use these seeds")
    parser.add_argument("--cache", default=cache, help="keep the networks and the texts here")
    parser.add_argument("--results", default=RESULTS, help="keep the cells in this JSON file")
    parser.add_argument("--picture", default=PICTURE, help="draw the chart into this SVG file")
    arguments = parser.parse_args(argv)
    if THERE in arguments.trained_by and "TRANSFORMERS_PYTHON" not in os.environ:
        sys.exit("TRANSFORMERS_PYTHON names no Python with torch and transformers; set it")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])  # as `public_record` does
    cache, task, epochs = os.path.abspath(arguments.cache), arguments.task, arguments.epochs
    genres = arguments.domain or [task]
    num_words = arguments.own_words
    is_corrected = not arguments.noadam_bias_correction
    domain = Domain(cache, public_record.fetch(cache), task, genres, num_words, is_corrected)
    numbers = [len(domain.labelled) if n == ALL else int(n) for n in arguments.labels]
    cells = Cells(arguments.results)
    what = " and ".join(genres) + f" with {num_words} own words" * (num_words > 0)
    what += f", {epochs} times" + ", --noadam_bias_correction" * (not is_corrected)
    # transformers does not have google-research/bert's rule.
    sides = arguments.trained_by if is_corrected else [HERE]
    for seed, by in itertools.product(arguments.seeds, sides):
        key = {"by": by, "data": task, "seed": seed}
        for trained in TRAINABLE if by == HERE else [WHOLE]:
            own = {**key, "read": what, "trained": trained}
            cells.add(own, domain.pretrain, by, trained, epochs, seed)
        reader = domain.adapted(by, WHOLE, epochs, seed)
        for number, read in itertools.product(numbers, (None, what)):
            own = {**key, "read": read, "labels": number}
            cells.add(own, domain.fine_tune, by, read and reader, number, seed)
    found = cells.content["cells"]
    if any("pearson" in cell and cell["by"] == HERE for cell in found):
        with open(arguments.picture, "w", encoding="utf-8") as writer:
            writer.write(charts.svg(lambda figure: draw(figure, found)))
    print(f"{losses_table(found)}\n\n{scores_table(found)}")


if __name__ == "__main__":
    main()
