"""The scripts as a table, for the tests that all of them have to pass."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import forked
import numpy as np
import pytest
from tiny_run import (
    bert_config,
    classifier_flags,
    copy_records,
    pairs,
    pretraining_flags,
    questions,
    squad_flags,
    tagging_flags,
    words,
    write_pairs,
    write_questions,
    write_records,
    write_tagged,
)

import run_classifier
import run_pretraining
import run_squad
from bert_estimator.bert_config import BertConfig
from bert_estimator.tokenization import SPECIAL_TOKENS, write_vocab
from input_pipelines.records.order import record_order

BATCH = 8
SEED = 12345  # the default of --random_seed


def examples_of_step(step, number):
    """Numbers of the examples, of so many, that training step `step` (from 1) reads."""
    return record_order(np.arange((step - 1) * BATCH, step * BATCH), number, SEED)


# Pretraining's data: 79 records.


def write_pretraining_data(path):
    write_records(path, "train.tfrecord", words(40))
    (path / "bert_config.json").write_text(json.dumps(bert_config(40)))


def huge_weight(path):
    """Copies the records to a file without manifest; a loss of step 7 is beyond float32."""

    def change(features):
        features["masked_lm_weights"].float_list.value[0] = 3e38

    changes = {int(examples_of_step(7, 79)[3]): change}
    copy_records(path / "train.tfrecord", path / "huge.tfrecord", changes)
    return {"input_file": path / "huge.tfrecord"}


# Fine-tuning's: 64 rows, 8 steps an epoch.


def write_classifier_data(path):
    write_vocab([*SPECIAL_TOKENS, *words(30)], str(path / "vocab.txt"))
    (path / "bert_config.json").write_text(json.dumps(bert_config(30)))
    for name, number, seed in (("train", 64, 1), ("dev", 21, 2)):
        write_pairs(path / f"{name}.tsv", pairs(number, seed))
        write_tagged(path / f"{name}.conll", number, seed)
    write_short_tagged(path / "short.conll", 1)


def write_short_tagged(path, seed, huge=None):
    """Writes 64 sentences of five words as CoNLL; the sentence number `huge` has the only w28."""
    generator = np.random.default_rng(seed)
    lines = []
    for number in range(64):
        chosen = generator.integers(28, size=5)
        chosen[2] = 28 if number == huge else chosen[2]
        lines += [f"w{word} NN {'B-LOW' if word < 8 else 'O'}\n" for word in chosen] + ["\n"]
    path.write_text("".join(lines))


def short_tagging_flags(data, output_dir, **changes):
    files = {"train_file": data / "short.conll", "eval_file": data / "short.conll"}
    return tagging_flags(data, output_dir, **{**files, **changes})


def huge_label(path):
    """Numbers as labels; the square of one of step 7 is beyond float32."""
    huge = examples_of_step(7, 64)[3]
    rows = [(a, b, "3e38" if i == huge else "1") for i, (a, b, _) in enumerate(pairs(64, 1))]
    write_pairs(path / "huge.tsv", rows)
    return {"train_file": path / "huge.tsv", "task_kind": "regression"}


# Question answering's: 64 questions, each with one window, 8 steps an epoch.


def write_squad_data(path):
    write_vocab([*SPECIAL_TOKENS, *words(29), "what"], str(path / "vocab.txt"))
    (path / "bert_config.json").write_text(json.dumps(bert_config(30)))
    for name, number, seed in (("train", 64, 1), ("dev", 21, 2)):
        write_questions(path / f"{name}.json", questions(number, seed))


def huge_question(path):
    """A question of step 7 has w28, whose embedding is huge; the others do not have it."""
    asked = questions(64, 1)
    asked[examples_of_step(7, 64)[3]][1]["question"] = "w28 what"
    write_questions(path / "huge.json", asked)
    return {"train_file": path / "huge.json", "init_checkpoint": huge_embedding(path)}


def huge_sentence(path):
    """A sentence of step 7 has w28, whose embedding is huge; the others do not have it."""
    write_short_tagged(path / "huge.conll", 1, huge=examples_of_step(7, 64)[3])
    return {"train_file": path / "huge.conll", "init_checkpoint": huge_embedding(path)}


def huge_embedding(path):
    """Writes weights of which the embedding of w28 is beyond float32 when it is summed."""
    import fixtures

    config = BertConfig.from_json_file(str(path / "bert_config.json"))
    weights = fixtures.random_weights(config, scale=0.02)
    weights["bert/embeddings/word_embeddings"][len(SPECIAL_TOKENS) + 28] = 3e38
    if not (path / "huge").exists():
        (path / "huge").mkdir()
        fixtures.write_tf1(path / "huge", config, weights)
    return path / "huge"


@dataclasses.dataclass(frozen=True, eq=False)
class Script:
    """What the tests have to know of a script; `spoil` writes data whose loss is bad at step 7."""

    module: ModuleType
    write_data: Callable
    flags: Callable
    steps: Callable
    spoil: Callable
    data_flag: str
    reads: str
    others: dict
    bad_loss: str
    change_data: Callable

    @property
    def name(self):
        return self.module.__name__ + ".py"

    def main(self, flags):
        """Runs it in this process."""
        return self.module.main([self.name, *flags])


PRETRAINING = Script(
    run_pretraining,
    write_pretraining_data,
    pretraining_flags,
    lambda number: {"num_train_steps": number},
    huge_weight,
    "input_file",
    "RecordFiles.read_all",
    {"learning_rate": 0.5, "precision": "bfloat16", "random_seed": 1, "max_seq_length": 12},
    "inf",
    lambda path: write_records(path, "train.tfrecord", words(40), num_sentences=6),
)
CLASSIFIER = Script(
    run_classifier,
    write_classifier_data,
    classifier_flags,
    lambda number: {"num_train_epochs": number / 8},
    huge_label,
    "train_file",
    "Features.batch",
    {"learning_rate": 0.5, "precision": "bfloat16", "random_seed": 1, "max_seq_length": 9},
    "inf",
    lambda path: write_pairs(path / "train.tsv", pairs(64, 4)),
)
# The same script with another kind of task, whose labels are not numbers that could be too large.
TAGGER = dataclasses.replace(CLASSIFIER, flags=tagging_flags)
SQUAD = Script(
    run_squad,
    write_squad_data,
    squad_flags,
    lambda number: {"num_train_epochs": number / 8},
    huge_question,
    "train_file",
    "Windows.batch",
    {
        "learning_rate": 0.5, "precision": "bfloat16", "random_seed": 1, "max_seq_length": 15,
        "doc_stride": 3,
    },
    "nan",
    lambda path: write_questions(path / "train.json", questions(64, 4)),
)  # fmt: skip
# The tagger for stopped runs, with eight steps an epoch as the other scripts have.
SHORT_TAGGER = dataclasses.replace(
    TAGGER,
    flags=short_tagging_flags,
    spoil=huge_sentence,
    reads="TagFeatures.batch",
    bad_loss="nan",
    change_data=lambda path: write_short_tagged(path / "short.conll", 4),
)
SCRIPTS = {script.module.__name__: script for script in (PRETRAINING, CLASSIFIER, SQUAD)}


def with_slow(*slow):
    """Returns the names of the scripts as parameters of tests, some of them slow."""
    return [
        pytest.param(name, marks=pytest.mark.slow if script in slow else ())
        for name, script in SCRIPTS.items()
    ]


def write_data(tmp_path_factory):
    """Returns a directory with data for each script, by its name."""
    made = {}
    for script in SCRIPTS.values():
        made[script.name] = tmp_path_factory.mktemp("data")
        script.write_data(made[script.name])
    return made


# The scripts as processes

# Does something when a step has been logged, on the way through main().
WITH_ACTION = """
import os, signal, sys
import {module} as script
from bert_estimator.command_line import console
from bert_estimator.command_line.run_directory import RunDirectory
from input_pipelines.tasks.features import Features
from input_pipelines.records.record_reader import RecordFiles
from input_pipelines.tasks.features import TagFeatures
from input_pipelines.tasks.windows import Windows

def fail(*args):
    raise RuntimeError("the disk has gone")

def add_metrics(self, record, add_metrics=RunDirectory.add_metrics):
    add_metrics(self, record)
    if record["step"] == {step}:
        {action}

RunDirectory.add_metrics = add_metrics
console.leave(script.main(["{module}.py", *sys.argv[1:]]))
"""


def start(script, flags, step=None, action="pass", environment=()):
    """Starts a script; `action`, a line of Python, is executed when `step` has been logged."""
    root, program = os.path.dirname(script.module.__file__), [script.module.__file__]
    if step is not None:
        name = script.module.__name__
        program = ["-c", WITH_ACTION.format(module=name, step=step, action=action)]
    return forked.start(
        [sys.executable, *program, *flags],
        env={**os.environ, "PYTHONPATH": root, **dict(environment)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process, timeout_secs=240):
    """Waits for a process; returns (exit code, what it printed on stderr)."""
    try:
        _, err = process.communicate(timeout=timeout_secs)
    finally:
        process.kill()
    return process.returncode, err


# How a batch of 8 examples may be computed -> flags.
WAYS = {
    "session": {"use_tpu": False},
    "TPU rules": {"use_tpu": True},
    "micro-batches": {"use_tpu": True, "micro_batch_size": 2},
    "micro-batches without TPU rules": {"use_tpu": False, "micro_batch_size": 4},
    "recompute": {"use_tpu": True, "recompute": True},
    "2 cores": {"use_tpu": True, "tpu_name": "rehearse:2"},
    "4 cores, micro-batches": {"use_tpu": True, "tpu_name": "rehearse:4", "micro_batch_size": 1},
}
