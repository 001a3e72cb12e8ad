"""How fast a CPU fine-tunes a classifier and predicts with it, next to Hugging Face on torch.

    python -m benchmarks.fine_tuning_speed

For each precision this runs `run_classifier.py` on sentences of the embedded corpus, with and
without --use_tpu, in packed rows, and with a row for each text; and if TRANSFORMERS_PYTHON names a
Python with torch and transformers, the same network there, in bfloat16 by autocast and with weights
and optimizer state in bfloat16, too. There, batches are as long as their longest text. Their texts
are chosen at random, or grouped: the Trainer has texts of like length in a batch if it is told to,
which changes the order of the examples.
Each runs in a process of its own. Rates of training leave out the first steps. The script's rates
of predictions come from the times of two runs, with all texts and with a quarter of them, and so
include tokenizing and writing; torch gets ids, and its start is left out. The best of the rounds
counts. Everything is written to results/fine_tuning_speed.json. With --trainable, this project is
compared with itself for values of the flag, with --use_tpu, in training alone. To try it:

    python -m benchmarks.fine_tuning_speed --network=tiny --steps=2 --texts=128 --rounds=1 \\
        --results=/tmp/fine_tuning_speed.json
"""

import argparse
import functools
import itertools
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import csv_rows, machine_memory, main_job, torch_bert, torch_classifier
from benchmarks.training_speed import Process
from bert_estimator.bert_config import PRESETS, BertConfig
from bert_estimator.command_line.choices import PRECISIONS

RESULTS = os.path.join(main_job.ROOT, "benchmarks", "results", "fine_tuning_speed.json")
_VOCAB_SIZE = 30522
_WARMUP = 8  # steps that are not timed; a new length is compiled in the step that has it first


class Work:
    """Writes the data of all sides into a directory for this alone: a vocabulary, a network,
    labelled texts, whose mean length counts the special tokens; so many steps are timed, and so
    many texts are predicted."""

    def __init__(
        self, directory: str, network: str, length: int, batch: int, steps: int, texts: int
    ):
        self._directory, self._batch, self._steps, self._texts = directory, batch, steps, texts
        self._network = network
        sizes = BertConfig.preset(network, _VOCAB_SIZE).to_dict()
        with open(self._path("bert_config.json"), "w", encoding="utf-8") as writer:
            json.dump(sizes, writer)
        # TensorFlow's threads and memory are in a process that has ended when others are timed.
        code = (
            "import sys; from benchmarks import fine_tuning_speed as speed; "
            "print(speed.write_data(sys.argv[1], *map(int, sys.argv[2:])))"
        )
        numbers = map(str, (length, (_WARMUP + steps) * batch, texts, batch))
        written = Process([sys.executable, "-c", code, directory, *numbers])
        self.mean_length = float(written.output.splitlines()[-1])
        self._flags = [
            f"--vocab_file={self._path('vocab.txt')}", f"--max_seq_length={length}",
            f"--bert_config_file={self._path('bert_config.json')}",
            f"--train_file={self._path('train.tsv')}", f"--train_batch_size={batch}",
            f"--predict_batch_size={batch}", "--num_train_epochs=1", "--iterations_per_loop=1",
        ]  # fmt: skip

    def ours(self, precision: str, flags: Sequence[str] = ()) -> dict[str, float]:
        """Returns what the script takes: `train_secs` of a step, `predict_rate`, `peak_gib`; and
        `token_share`, which share of the positions of the training are tokens, if it packs."""
        is_alone = any(flag.startswith("--trainable") for flag in flags)
        if is_alone:  # what is not trained must come from somewhere
            model = self._path("model")
            if not os.path.exists(model):
                machine_memory.write_model(model, self._network, self._path("vocab.txt"))
            flags = [*flags, f"--init_checkpoint={model}"]
        with tempfile.TemporaryDirectory(dir=self._directory) as run:
            command = [
                sys.executable, os.path.join(main_job.ROOT, "run_classifier.py"), *self._flags,
                f"--precision={precision}", f"--output_dir={run}", *flags,
            ]  # fmt: skip
            training = Process([*command, "--do_train"])
            pattern = r"([\d.]+)% of the computed positions are tokens"
            token_share = re.search(pattern, training.output)
            with open(os.path.join(run, "metrics.jsonl"), encoding="utf-8") as reader:
                records = [json.loads(line) for line in reader]
            assert len(records) == _WARMUP + self._steps
            secs = [
                self._predict([*command, f"--predict_file={self._path(name)}"])
                for name in ("quarter.tsv", "all.tsv")
                if not is_alone
            ]
        num_texts = self._texts - self._texts // 4
        train_secs = sum(1 / record["steps_per_sec"] for record in records[_WARMUP:])
        return {
            "train_secs": train_secs / self._steps,
            "peak_gib": training.peak_gib,
            **({} if is_alone else {"predict_rate": num_texts / (secs[1] - secs[0])}),
            **({"token_share": float(token_share[1]) / 100} if token_share else {}),
        }

    def torch(self, python: str, precision: str, order: str) -> dict[str, float]:
        """Returns the same figures of torch."""
        numbers = map(str, (self._steps, _WARMUP, self._batch))
        module = "benchmarks.torch_classifier"
        process = Process([python, "-m", module, self._directory, precision, order, *numbers])
        return {**json.loads(process.output.splitlines()[-1]), "peak_gib": process.peak_gib}

    def _predict(self, command):
        start = time.perf_counter()
        Process([*command, "--do_predict"])
        return time.perf_counter() - start

    def _path(self, name):
        return os.path.join(self._directory, name)


def write_data(directory: str, length: int, num_train: int, num_texts: int, batch: int) -> float:
    """Writes the vocabulary and the texts of `Work`; returns the mean length in tokens.

    torch gets more texts to train on, from which it can make groups as large as in a long training.
    """
    import numpy as np

    from bert_estimator import tokenization
    from input_pipelines.embedded import default_data, embedded_corpus
    from input_pipelines.tasks.examples import Example
    from input_pipelines.tasks.features import Features

    def path(name):
        return os.path.join(directory, name)

    documents = embedded_corpus.load().train
    sentences = [" ".join(line.split()) for document in documents for line in document]
    num_grouped = max(num_train, torch_classifier.GROUP * batch)
    chosen = np.random.default_rng(1).choice(sentences, num_texts + num_grouped, replace=False)
    texts, train = chosen[:num_texts], chosen[num_texts:]
    labels = np.arange(num_grouped) % 2
    rows = [f"{text}\t{label}" for text, label in zip(train[:num_train], labels, strict=False)]
    for name, header, lines in (
        ("train.tsv", "text\tlabel", rows),
        ("all.tsv", "text", texts),
        ("quarter.tsv", "text", texts[: num_texts // 4]),
    ):
        with open(path(name), "w", encoding="utf-8") as writer:
            writer.write("\n".join([header, *lines, ""]))
    default_data.write_vocabulary(path("vocab.txt"), 2000)
    tokenizer = tokenization.open_tokenizer(path("vocab.txt"), True)
    arrays, lengths = {"train_labels": labels}, []
    for name, part in (("train_ids", train), ("predict_ids", texts)):
        features = Features([Example(text, None, None) for text in part], tokenizer, length)
        arrays[name] = features.batch(np.arange(len(part)))["input_ids"]
        lengths.extend(features.lengths)
    np.savez(path("texts.npz"), **arrays)
    return float(np.mean(lengths))


def sides(work: Work, precision: str, trainable: Sequence[str] = ()) -> dict[str, Any]:
    """Returns a dict of a side's name -> the function that measures it; for values of --trainable,
    the sides are these."""
    found = {}
    values = [["--use_tpu", f"--trainable={value}"] for value in trainable]
    for flags in values or ([], ["--nopack"], ["--use_tpu"]):
        found[", ".join(["this project", *flags])] = functools.partial(work.ours, precision, flags)
    if not trainable and (python := os.environ.get("TRANSFORMERS_PYTHON")):
        variants = torch_bert.VARIANTS[precision]
        for given in itertools.product(variants, torch_classifier.ORDERS):
            torch = functools.partial(work.torch, python, *given)
            found[", ".join(["Hugging Face", *given])] = torch
    return found


def table(rows: Sequence[dict[str, Any]], batch: int) -> str:
    """Returns a table with a line for each side and precision, of the best of the rounds."""
    table_rows = []
    for key, own in csv_rows.by_keys(rows, "side", "precision").items():
        cells = (
            batch / min(row["train_secs"] for row in own),
            max(row.get("predict_rate", 0) for row in own),
            min(row["peak_gib"] for row in own),
        )
        share = f"{own[0]['token_share']:.0%}" if "token_share" in own[0] else ""
        table_rows.append([*key, *(f"{cell:.3g}" for cell in cells), share])
    return csv_rows.markdown(
        "side | precision | texts/s: training | predictions | GiB | positions that are tokens",
        table_rows,
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="base", choices=PRESETS, help="train this network")
    parser.add_argument("--length", type=int, default=128, help="cut texts to so many tokens")
    parser.add_argument("--batch", type=int, default=32, help="take batches of so many texts")
    parser.add_argument("--steps", type=int, default=12, help="time so many steps")
    parser.add_argument("--texts", type=int, default=640, help="predict so many texts")
    parser.add_argument("--rounds", type=int, default=2, help="measure every side this often")
    parser.add_argument("--trainable", nargs="*", default=(), help="compare values of the flag")
    parser.add_argument("--precisions", nargs="*", default=PRECISIONS, help="compute in these")
    parser.add_argument("--results", default=RESULTS, help="write this JSON file")
    arguments = parser.parse_args(argv)
    settings = {name: getattr(arguments, name) for name in ("network", "length", "batch")}
    with tempfile.TemporaryDirectory() as directory:
        work = Work(directory, **settings, steps=arguments.steps, texts=arguments.texts)
        rows = []
        for number in range(1, arguments.rounds + 1):
            for precision in arguments.precisions:
                for side, measured in sides(work, precision, arguments.trainable).items():
                    rows.append({"side": side, "precision": precision, "round": number})
                    rows[-1] |= {name: float(f"{v:.4g}") for name, v in measured().items()}
                    print(rows[-1], flush=True)
    result = {**settings, "machine": main_job.machine(), "mean_length": round(work.mean_length, 1)}
    with open(arguments.results, "w", encoding="utf-8") as writer:
        json.dump({**result, "rows": rows}, writer, indent=1)
        writer.write("\n")
    print(table(rows, arguments.batch))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
