"""Tiny runs of every kind of task, and texts to ask them."""

import json

from tiny_run import (
    bert_config,
    classifier_flags,
    pairs,
    questions,
    squad_flags,
    tagging_flags,
    words,
    write_pairs,
    write_questions,
    write_tagged,
)

import run_classifier
import run_squad
from bert_estimator.tokenization import SPECIAL_TOKENS, train_sentencepiece, write_vocab

SINGLE = ["w1 w2 w3", "w20", "", "w5 " * 40]
PAIRS = [("w1 w2", "w3"), ("w20 w21", ""), ("w5 " * 40, "w6 w7")]
ASKED = [("w3 what", "w1 w2 w3 w4 w5"), ("w9 what", "w1 w2 " * 30 + "w9 w4"), ("w3", "")]


def write_data(path):
    write_vocab([*SPECIAL_TOKENS, *words(30)], str(path / "vocab.txt"))
    train_sentencepiece([" ".join(words(30)[i:]) for i in range(30)] * 9, str(path / "p.model"), 18)
    (path / "bert_config.json").write_text(json.dumps(bert_config(30, initializer_range=0.3)))
    for name, seed in (("train", 1), ("dev", 2)):
        rows = list(pairs(16, seed))
        write_pairs(path / f"{name}.tsv", rows)
        write_tagged(path / f"{name}.conll", 16, seed)
        write_questions(path / f"{name}.json", questions(16, seed, impossible=4))
        lines = [
            {"text_a": a, "labels": ["a", "b"][: i % 3], "number": i}
            for i, (a, *_) in enumerate(rows)
        ]
        (path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _of_lines(data, output, **flags):
    files = {"train_file": data / "train.jsonl", "eval_file": data / "dev.jsonl"}
    return classifier_flags(data, output, **files, **flags)


# Kind -> (script, function of the data and the output that returns flags, texts).
KINDS = {
    "classification": (run_classifier, classifier_flags, PAIRS),
    "multi_label": (
        run_classifier,
        lambda *at: _of_lines(*at, task_kind="multi_label", label_column="labels"),
        SINGLE,
    ),
    "regression": (
        run_classifier,
        lambda *at: _of_lines(*at, task_kind="regression", label_column="number"),
        SINGLE,
    ),
    "tagging": (run_classifier, tagging_flags, SINGLE),
    "question_answering": (
        run_squad,
        lambda *at: squad_flags(*at, version_2_with_negative=True),
        ASKED,
    ),
}


def train(data, output, kind, *flags):
    """Trains on what `write_data` wrote; returns the run's directory."""
    script, flags_of, _ = KINDS[kind]
    argv = [script.__name__, *flags_of(data, output), "--do_train", *flags]
    assert script.main(argv) == 0
    return str(output)
