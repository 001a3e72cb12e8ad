"""Large batches without tuning: held-out loss against batch for LAMB, AdamW and LARS.

    python -m benchmarks.batch_scaling

This repeats the experiment of "Training BERT in 76 minutes" (You et al., 2020, section 4) at a size
for two CPU cores: a network of two layers on the embedded corpus, with a fixed number of examples.
Each optimizer gets one learning rate, which is tuned at the smallest batch with one seed and a
quarter of the examples. For the other batches the rate is proportional to the square root of the
batch, and the number of warm-up steps stays the same, which at the largest batch is a fifth of all
steps (section 4.1 of the paper).

The vocabulary of 300 pieces (letters and short parts of words) and the 500 steps at the largest
batch were chosen by trials. With 2000 pieces and 100 steps, at batches of 512 and above, the
optimizers only learned the frequencies of the pieces, so there was nothing to compare.

A last part has the paper's two stages: 9/10 of the examples at a short length and 1/10 at a longer
length. The second stage runs with and without a warm-up.

Each run is a process of `run_pretraining.py` on one core of the XLA runtime (`pip install -e
'.[tpu]'`). When it ends it adds a row to results/batch_scaling.csv; runs with a row are skipped. As
many runs as the machine has cores go at the same time. The benchmark writes docs/batch_scaling.svg
and prints docs/results.md's table.
"""

import argparse
import functools
import json
import math
import os
import re
import statistics
import sys
import tempfile
import threading
from typing import Any

from benchmarks import cores, csv_rows
from bert_estimator.command_line import charts
from input_pipelines.embedded import default_data

RESULTS = os.path.join(cores.ROOT, "benchmarks", "results", "batch_scaling.csv")
PICTURE = os.path.join(cores.ROOT, "docs", "batch_scaling.svg")
COLUMNS = [
    "part", "optimizer", "batch", "learning_rate", "warmup_steps", "steps", "seed",
    "masked_lm_loss", "masked_lm_accuracy", "train_secs",
]  # fmt: skip
KEY = COLUMNS[:7]

# Dropout is off, because in so short a training it would only add noise.
BERT_CONFIG = dict(
    vocab_size=300,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=128,
    max_position_embeddings=64,
    initializer_range=0.05,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
LENGTH, LONG_LENGTH = 16, 64
PREDICTIONS = {LENGTH: 3, LONG_LENGTH: 10}
BATCHES = (32, 128, 512, 2048, 4096)
EXAMPLES = 500 * BATCHES[-1]
WARMUP_STEPS = 100
SEEDS = (1, 2, 3)
# The search for an optimizer's rate at the smallest batch begins here.
FIRST_RATES = {"lamb": 2e-3, "adamw": 5e-4, "lars": 3.2e-2}
# The tokens of an example, the batch and the examples of both stages.
STAGES = ((LENGTH, 2048, EXAMPLES * 9 // 10), (LONG_LENGTH, 1024, EXAMPLES // 10))
STAGE_2_WARMUPS = (0, 26)  # of 200 steps, as NVIDIA's stage 2 has 200 of 1563
MICRO_BATCH = 512
DIVERGED = "diverged"


class Study:
    """Holds the table of finished runs, and makes further runs, whose files are in a directory
    while they last; several threads may use it."""

    def __init__(self, path: str, directory: str):
        self.results = csv_rows.Results(path, COLUMNS, len(KEY))
        self.rows = self.results.rows
        self._directory = directory
        self._lock = threading.Lock()

    def row(self, **run: Any) -> dict[str, str]:
        """Returns the row of a run, and makes the run if it is not in the table."""

        def measure(*_):
            with tempfile.TemporaryDirectory(dir=self._directory) as output_dir:
                return self.train(output_dir, LENGTH, None, **run)

        return self.results.row([run[name] for name in KEY], measure)

    def train(
        self, output_dir: str, length: int, init_checkpoint: str | None, **run: Any
    ) -> dict[str, Any]:
        """Runs the script once; returns the columns of its results, and the `baseline`."""
        data, config_file = self._inputs(length)
        flags = {
            "tpu_name": "rehearse:1",
            "input_file": ",".join(data.train_files),
            "eval_input_file": ",".join(data.held_out_files),
            "bert_config_file": config_file,
            "output_dir": output_dir,
            "max_seq_length": length,
            "max_predictions_per_seq": PREDICTIONS[length],
            "optimizer": run["optimizer"],
            "learning_rate": run["learning_rate"],
            "train_batch_size": run["batch"],
            "micro_batch_size": min(run["batch"], MICRO_BATCH),
            "num_warmup_steps": run["warmup_steps"],
            "num_train_steps": run["steps"],
            "random_seed": run["seed"],
            "eval_batch_size": 256,
            "max_eval_steps": 1000,
            "save_checkpoints_steps": run["steps"],
            "iterations_per_loop": 100,
        }
        if init_checkpoint:
            flags["init_checkpoint"] = init_checkpoint
        command = [sys.executable, os.path.join(cores.ROOT, "run_pretraining.py"), "--use_tpu"]
        command += [f"--{name}={value}" for name, value in flags.items()]
        done = cores.run(command)
        if done.returncode == 1 and re.search("NaN|not finite", done.stderr):
            return {"masked_lm_loss": DIVERGED, "masked_lm_accuracy": "", "train_secs": ""}
        if done.returncode:
            sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr}")
        with open(os.path.join(output_dir, "metrics.jsonl"), encoding="utf-8") as reader:
            last = [json.loads(line) for line in reader][-1]
        return {
            "masked_lm_loss": round(last["eval_masked_lm_loss"], 4),
            "masked_lm_accuracy": round(last["eval_masked_lm_accuracy"], 4),
            "train_secs": re.search(r"Training took (\d+) s", done.stdout).group(1),
            "baseline": round(last["eval_unigram_baseline"], 3),
        }

    def unigram_baseline(self) -> float:
        """Returns the loss in nats of predicting masked tokens by their frequencies."""

        def measure(*_):
            run = run_of("", "lamb", BATCHES[0], BATCHES[0], 1e-3, seed=1, warmup_steps=0)
            with tempfile.TemporaryDirectory(dir=self._directory) as output_dir:
                baseline = self.train(output_dir, LENGTH, None, **run)["baseline"]
            return {"masked_lm_loss": baseline, "masked_lm_accuracy": "", "train_secs": ""}

        # It has a row, since it belongs to the records that the runs of the other rows had.
        return loss(self.results.row(["unigram baseline", *[""] * (len(KEY) - 1)], measure))

    def _inputs(self, length):
        """Makes the script's inputs once; returns (the data, the configuration's file)."""
        with self._lock:
            data = default_data.make(
                os.path.join(self._directory, f"length_{length}"), BERT_CONFIG["vocab_size"],
                length, PREDICTIONS[length], dupe_factor=5, seed=1, masking="static",
            )  # fmt: skip
            config_file = os.path.join(self._directory, "bert_config.json")
            with open(config_file, "w", encoding="utf-8") as writer:
                json.dump(BERT_CONFIG, writer)
        return data, config_file


def loss(row: dict[str, str]) -> float:
    """Returns the held-out masked-LM loss of a row in nats; infinite if the run diverged."""
    return math.inf if row["masked_lm_loss"] == DIVERGED else float(row["masked_lm_loss"])


def run_of(
    part: str,
    optimizer: str,
    batch: int,
    examples: int,
    base: float,
    seed: int,
    warmup_steps: int = WARMUP_STEPS,
) -> dict[str, Any]:
    """Returns the key of a run; its rate is `base` at the smallest batch, and goes by the
    square-root rule: a batch four times as large has twice the rate."""
    rate = f"{base * math.sqrt(batch / BATCHES[0]):.6g}"
    values = (part, optimizer, batch, rate, warmup_steps, examples // batch, seed)
    return dict(zip(KEY, values, strict=True))


def tuned_rate(study: Study, optimizer: str) -> float:
    """Returns the best rate at the smallest batch, among powers of two times the first rate.

    The search begins with three rates and extends the range until the best rate is inside it.
    """
    first, losses, best = FIRST_RATES[optimizer], {}, 0
    while not {best - 1, best, best + 1} <= set(losses):
        for power in sorted({best - 1, best, best + 1} - set(losses)):
            rate = first * 2.0**power
            run = run_of("tune", optimizer, BATCHES[0], EXAMPLES // 4, rate, SEEDS[0])
            losses[power] = loss(study.row(**run))
        best = min(losses, key=losses.get)
    return first * 2.0**best


def scaling_runs(optimizer: str, seed: int, base: float) -> list[dict[str, Any]]:
    """Returns the runs of one optimizer at all batches, with one seed."""
    return [run_of("scale", optimizer, batch, EXAMPLES, base, seed) for batch in BATCHES]


def run_stages(study: Study, directory: str, seed: int, base: float) -> None:
    """Runs LAMB's two stages with one seed; stage 2 has a row with and a row without warm-up."""
    (first_length, *first), (second_length, *second) = STAGES
    seconds = [run_of("stage 2", "lamb", *second, base, seed, steps) for steps in STAGE_2_WARMUPS]
    missing = [run for run in seconds if not study.results.find(*run.values())]
    if not missing:
        return
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        run = run_of("stage 1", "lamb", *first, base, seed)
        study.train(os.path.join(folder, "1"), first_length, None, **run)
        checkpoint = os.path.join(folder, "1", f"model.ckpt-{run['steps']}")
        for number, run in enumerate(missing):
            output_dir = os.path.join(folder, f"2_{number}")
            results = study.train(output_dir, second_length, checkpoint, **run)
            study.results.row([*run.values()], lambda *_, results=results: results)


def core_hours(rows: list[dict[str, str]]) -> float:
    """Returns the hours of training of all rows, each on one core (without rows of stage 1)."""
    return sum(int(row["train_secs"]) for row in rows if row["train_secs"]) / 3600


def losses_by_batch(rows: list[dict[str, str]], optimizer: str) -> dict[int, list[float]]:
    """Returns batch -> losses of the seeds, for the batches that were run."""
    groups = csv_rows.by_keys(rows, "part", "optimizer", "batch")
    keys = {batch: ("scale", optimizer, str(batch)) for batch in BATCHES}
    return {n: [*map(loss, groups[key])] for n, key in keys.items() if key in groups}


def table(rows: list[dict[str, str]]) -> str:
    """Returns docs/results.md's table: loss by batch and optimizer, and the two second stages."""
    by_optimizer = [losses_by_batch(rows, name) for name in FIRST_RATES]
    by_batch = csv_rows.markdown(
        f"batch | steps | {' | '.join(FIRST_RATES)}",
        ([n, EXAMPLES // n, *(_cell(losses[n]) for losses in by_optimizer)] for n in BATCHES),
    )
    stages = csv_rows.by_keys(rows, "part", "warmup_steps")
    cells = [_cell([*map(loss, stages["stage 2", f"{n}"])]) for n in STAGE_2_WARMUPS]
    names = ("no warm-up", f"{STAGE_2_WARMUPS[1]} steps of warm-up")
    rows = zip(names, cells, strict=True)
    return f"{by_batch}\n\n{csv_rows.markdown('stage 2 | held-out masked-LM loss', rows)}"


def draw(figure: Any, rows: list[dict[str, str]], baseline: float) -> None:
    """Draws the losses by batch: the medians as a line, and a dot for each run that ended."""
    figure.set_figheight(4)
    axes = figure.subplots()
    for number, (name, colour) in enumerate(zip(FIRST_RATES, charts.COLOURS, strict=False)):
        beside = 0.07 * (number - 1)  # so that the dots of two optimizers do not hide each other
        medians = {}
        for batch, losses in losses_by_batch(rows, name).items():
            finite = [value for value in losses if math.isfinite(value)]
            place = BATCHES.index(batch) + beside
            axes.plot([place] * len(finite), finite, "o", color=colour)
            if finite:
                medians[place] = statistics.median(finite)
        axes.plot(list(medians), list(medians.values()), color=colour, label=name)
    axes.set_xlim(-0.5, len(BATCHES) - 0.5)
    axes.set_xticks(range(len(BATCHES)), BATCHES)
    axes.set_xlabel("batch")
    charts.draw_levels(axes, {"unigram baseline": baseline})
    charts.finish_panel(axes, "held-out masked-LM loss (nats), equal numbers of examples")


def _cell(losses):
    """Returns the median with the extremes, and the number of runs that diverged."""
    finite = [value for value in losses if math.isfinite(value)]
    parts = [csv_rows.spread(finite)] if finite else []
    if len(finite) < len(losses):
        parts.append(f"{len(losses) - len(finite)} of {len(losses)} diverged")
    return "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", default=RESULTS, help="keep the rows in this CSV file")
    parser.add_argument("--picture", default=PICTURE, help="draw the chart into this SVG file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        study = Study(arguments.results, directory)
        tuned = cores.side_by_side(
            [functools.partial(tuned_rate, study, name) for name in FIRST_RATES]
        )
        rates = dict(zip(FIRST_RATES, tuned, strict=True))
        jobs = []
        for seed in SEEDS:
            jobs.append(functools.partial(run_stages, study, directory, seed, rates["lamb"]))
            for optimizer, rate in rates.items():
                runs = scaling_runs(optimizer, seed, rate)
                jobs += [functools.partial(study.row, **run) for run in runs]
        cores.side_by_side(jobs)
        baseline = study.unigram_baseline()
    with open(arguments.picture, "w", encoding="utf-8") as writer:
        writer.write(charts.svg(lambda figure: draw(figure, study.rows, baseline)))
    print(f"learning rates at batch {BATCHES[0]}: {rates}; unigram baseline: {baseline:.3f}")
    print(f"{len(study.rows) - 1} runs, {core_hours(study.rows):.1f} core hours of training")
    print(table(study.rows))


if __name__ == "__main__":
    main()
