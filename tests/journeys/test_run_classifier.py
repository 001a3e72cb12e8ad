"""Fine-tuning from its command line: flags, whole runs, predictions in order."""

import contextlib
import functools
import io
import json
import math
import os
import pathlib
import re
import shutil
import sysconfig

import fixtures
import numpy as np
import pytest
from tiny_run import (
    bert_config,
    pairs,
    reports_of,
    variables_of,
    words,
    write_pairs,
)
from tiny_run import classifier_flags as command

import run_classifier
from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line import flags
from bert_estimator.interchange import __main__ as interchange
from bert_estimator.interchange import network_variables, open_source
from bert_estimator.jobs.fine_tuning import classification_config, fine_tune, opened_network
from bert_estimator.tokenization import SPECIAL_TOKENS, FullTokenizer, write_vocab
from input_pipelines.embedded import embedded_corpus
from input_pipelines.tasks.examples import Example
from input_pipelines.tasks.features import Features
from tests.jobs.fine_tuning.test_text_exports import answers_of

WORDS = words(30)
BERT_CONFIG = bert_config(
    len(WORDS),
    initializer_range=0.1,
    # In so short a training dropout's masks would decide what is learnt.
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Makes a directory with a network's configuration, its vocabulary and files of examples."""
    path = tmp_path_factory.mktemp("data")
    write_vocab([*SPECIAL_TOKENS, *WORDS], str(path / "vocab.txt"))
    (path / "bert_config.json").write_text(json.dumps(BERT_CONFIG))
    for name, number, seed in (("train", 96, 1), ("dev", 21, 2)):
        write_pairs(path / f"{name}.tsv", pairs(number, seed))
    lines = ["sentence1,sentence2", *(f'"{a}",{b}' for a, b, _ in pairs(13, 3))]
    (path / "test.csv").write_text("\n".join(lines) + "\n")
    return path


def main(arguments):
    """Runs the script in this process."""
    return run_classifier.main(["run_classifier.py", *arguments])


def test_the_embedded_task_checks_the_casing_of_its_vocabulary(tmp_path, capsys):
    vocab_file = str(tmp_path / "cased.txt")
    write_vocab([*SPECIAL_TOKENS, *(word.title() for word in words(1900))], vocab_file)
    flags = [f"--vocab_file={vocab_file}", f"--output_dir={tmp_path}/run", "--do_lower_case"]
    assert run_classifier.main(["run_classifier.py", "--task_name=word_order", *flags]) == 2
    assert "To keep capitals, give --nodo_lower_case." in capsys.readouterr().err


def test_a_wrong_vocabulary_stands_in_nobodys_way(tmp_path, capsys, monkeypatch):
    """The same command runs with the right vocabulary. The task's text is a part of what it is."""
    (tmp_path / "library").mkdir()
    for source in sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))[:80]:
        shutil.copy(source, tmp_path / "library")
    monkeypatch.setattr(
        embedded_corpus, "load", functools.partial(embedded_corpus.load, f"{tmp_path}/library")
    )
    for number, message in ((2100, "has 2105 tokens, but the network only 2000"), (10, None)):
        vocab_file = str(tmp_path / f"{number}.txt")
        write_vocab([*SPECIAL_TOKENS, *words(number)], vocab_file)
        flags = [f"--vocab_file={vocab_file}", f"--output_dir={tmp_path}/run", "--nodo_train"]
        assert run_classifier.main(["run_classifier.py", "--task_name=word_order", *flags]) == 2
        printed = capsys.readouterr().err
        if message:
            assert f"--vocab_file: {vocab_file}: {message}" in printed
    assert "does not hold a checkpoint of a fine-tuned network" in printed
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize("name", ["vocab.txt", "vocab.model", "30k-clean.model"])
def test_the_vocabulary_beside_a_checkpoint_belongs_to_it(tmp_path, name):
    folder, path = tmp_path / "other", tmp_path / "other" / "bert_model.ckpt"
    folder.mkdir()
    fixtures.write_tf1(folder, BertConfig(**BERT_CONFIG), {"w": np.zeros(2, np.float32)})

    def resolve(*arguments):
        (config,) = classification_config.resolve(["run_classifier.py", *arguments])
        return opened_network.completed(config)

    message = f"--vocab_file: is needed: there is no vocabulary beside {path}"
    with pytest.raises(flags.FlagError, match=message):
        resolve(f"--init_checkpoint={path}")
    (folder / name).write_text("")
    for checkpoint in (folder, path):
        assert resolve(f"--init_checkpoint={checkpoint}").data.vocab_file == f"{folder}/{name}"


# Whole runs


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """Trains 144 steps, evaluates, predicts and exports; returns the directory and the output."""
    output_dir = tmp_path_factory.mktemp("trained") / "run"
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([*trained_flags(data, output_dir), *VERBS]) == 0
    return output_dir, out.getvalue()


VERBS = ["--do_train", "--do_eval", "--do_predict", "--do_export", "--export_inputs=ids"]


def trained_flags(data, output_dir):
    """Returns the flags of `trained`, without its verbs."""
    return command(data, output_dir, predict_file=data / "test.csv", num_train_epochs=12)


@pytest.fixture
def copied(trained, tmp_path):
    """Copies the trained run for a test that changes it."""
    return shutil.copytree(trained[0], tmp_path / "run")


def test_train_evaluate_and_predict(trained):
    output_dir, out = trained
    lines = (output_dir / "test_results.tsv").read_text().splitlines()
    probabilities = np.array([[float(cell) for cell in line.split("\t")] for line in lines])
    assert probabilities.shape == (13, 2)  # 13 is not a multiple of the batch
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-5)
    truth = [row[2] for row in pairs(13, 3)]
    # The task is easy enough to tell a right order of the lines from a wrong one.
    assert np.mean(np.array(["high", "low"])[probabilities.argmax(axis=1)] == truth) > 0.7
    assert "Predictions: " in out and "(13 lines: probabilities of high, low)" in out
    results = dict(
        line.split(" = ") for line in (output_dir / "eval_results.txt").read_text().splitlines()
    )
    assert set(results) == {"accuracy", "macro_f1", "mean_loss", "loss", "global_step"}
    assert f"Evaluation at step 144: accuracy {float(results['accuracy']):.4f}" in out
    majority = re.search(r"accuracy of majority class: ([\d.]+)", out)
    dev = [row[2] for row in pairs(21, 2)]
    assert float(majority[1]) == pytest.approx(max(map(dev.count, dev)) / 21, abs=1e-4)
    assert float(results["accuracy"]) > float(majority[1]) + 0.1
    config = json.loads((output_dir / "config.json").read_text())
    assert config["flags"]["learning_rate"] == {"value": 0.01, "from": "flag"}
    check_report(output_dir, results, dev)


@pytest.mark.parametrize(
    ("encoding", "name"), [("utf-16", "test.csv"), ("cp1252", "test.tsv"), ("utf-8", "test.jsonl")]
)
def test_other_files_get_the_same_predictions(trained, tmp_path, encoding, name):
    rows = [("sentence1", "sentence2"), *((a, b) for a, b, _ in pairs(13, 3))]
    lines = ["\t".join(row) if name == "test.tsv" else ",".join(row) for row in rows]
    if name == "test.jsonl":
        lines = [json.dumps(dict(zip(rows[0], row, strict=True))) for row in rows[1:]]
    (tmp_path / name).write_bytes("\r\n".join(lines).encode(encoding))
    flags = [f"--init_checkpoint={trained[0]}", f"--predict_file={tmp_path / name}"]
    flags += [f"--encoding={encoding}", "--max_seq_length=16", f"--output_dir={tmp_path}/run"]
    assert main([*flags, "--do_predict"]) == 0
    # That run had --use_tpu, and so packed rows, which are the same up to rounding.
    expected, found = (
        np.loadtxt(folder / "test_results.tsv") for folder in (trained[0], tmp_path / "run")
    )
    assert found.shape == (13, 2)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_text_that_the_vocabulary_does_not_know_is_warned_of(trained, tmp_path, capsys):
    known = "\t".join(["w1 w2"] * 2)
    (tmp_path / "a.tsv").write_text(f"sentence1\tsentence2\n{known}\nx y\t{'z ' * 9}\n")
    flags = [f"--init_checkpoint={trained[0]}", f"--predict_file={tmp_path}/a.tsv"]
    flags += ["--max_seq_length=16", f"--output_dir={tmp_path}/run", "--do_predict"]
    assert main(flags) == 0
    said = "WARNING: 52 % of the tokens for prediction are [UNK], of which nothing can be learnt."
    assert said in capsys.readouterr().out


def check_report(output_dir, results, truth):
    """Checks eval_report.tsv against the metrics; the arrays are in no file of metrics."""
    lines = (output_dir / "eval_report.tsv").read_text().splitlines()
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in lines[:4]}
    assert [int(rows[label][3]) for label in ("high", "low")] == [
        truth.count("high"), truth.count("low"),
    ]  # fmt: skip
    assert float(rows["mean of the labels"][2]) == pytest.approx(
        float(results["macro_f1"]), abs=1e-4
    )
    matrix = np.array([line.split("\t")[1:] for line in lines[6:8]], int)
    assert np.trace(matrix) / 21 == pytest.approx(float(results["accuracy"]), abs=1e-6)
    assert "confusion" not in (output_dir / "metrics.jsonl").read_text()


def check_pictures(eval_dir, confusions):
    """Checks what TensorBoard shows of one checkpoint, evaluated on one core and on eight."""
    (step, one), (same_step, eight) = reports_of(eval_dir)
    assert step == same_step and one.keys() == eight.keys()
    cells = [line.encode().split(b"\t") for line in confusions.split("\n")]
    for values in (one, eight):
        assert values["report/confusion"][1:].tolist() == cells[1:]
        # At threshold 0 everything is said; 21 examples of two labels.
        curves = np.array([values[f"precision_recall/{label}"] for label in ("high", "low")])
        assert curves[:, :2, 0].sum(axis=1).tolist() == [21, 21]
        assert curves[:, 0, 0].sum() == 21
        assert curves[0, 0, 100] == float(cells[1][1])  # said if at least as likely as not


@pytest.mark.usefixtures("xla_runtime")
def test_eight_cores_predict_what_one_does(data, copied):
    one = (copied / "test_results.tsv").read_text().splitlines()
    confusions = (copied / "eval_report.tsv").read_text().split("\n\n")[1]
    (copied / "test_results.tsv").unlink()
    (copied / "eval_report.tsv").unlink()
    cores = ["--tpu_name=rehearse:8", "--predict_batch_size=8", "--eval_batch_size=8"]
    assert main([*trained_flags(data, copied), *cores, "--do_predict", "--do_eval"]) == 0
    assert (copied / "eval_report.tsv").read_text().split("\n\n")[1] == confusions
    check_pictures(copied / "eval", confusions)
    eight = (copied / "test_results.tsv").read_text().splitlines()
    found, expected = (
        np.array([line.split("\t") for line in lines], float) for lines in (eight, one)
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_initial_weights_come_from_a_checkpoint(data, tmp_path):
    """The rate is so small that training leaves the weights as they were."""
    config = BertConfig(**BERT_CONFIG)
    weights = fixtures.random_weights(config, scale=0.1)
    (tmp_path / "start").mkdir()
    fixtures.write_tf1(tmp_path / "start", config, weights)
    start = dict(init_checkpoint=tmp_path / "start", learning_rate=1e-9, num_train_epochs=0.2)
    flags = command(data, tmp_path / "run", **start)
    assert main([*flags, "--do_train"]) == 0
    found = variables_of(tmp_path / "run", 2)
    for name, value in weights.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-7, err_msg=name)
    assert found["output_weights"].std() > 0.01
    assert np.abs(found["bert/pooler/dense/kernel/adam_m"]).max() > 0  # it was trained


def test_the_exported_model_gives_the_same_with_tensorflow_alone(data, trained, tmp_path):
    output_dir, out = trained
    exported = re.search(r"SavedModel: (.*)", out)[1]
    assert sorted(os.listdir(f"{exported}/assets.extra")) == ["task.json", "vocab.txt"]
    tokenizer = FullTokenizer(str(data / "vocab.txt"))
    examples = [Example(a, b, None) for a, b, _ in pairs(13, 3)]
    batch = Features(examples, tokenizer, 10).batch(np.arange(13))
    names = ("input_ids", "input_mask", "segment_ids")
    found = answers_of(tmp_path, exported, {name: batch[name].tolist() for name in names})
    expected = np.loadtxt(output_dir / "test_results.tsv", delimiter="\t")
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["regression", "multi_label"])
def test_numbers_and_several_labels(data, tmp_path, kind):
    texts = [row[0] for row in pairs(40, 5)]
    lines = [
        json.dumps({"text": text, "label": len(text) if kind == "regression" else text.split()[:2]})
        for text in texts
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    flags = command(
        data,
        tmp_path / "run",
        task_kind=kind,
        num_train_epochs=0.4,
        **dict.fromkeys(("train_file", "eval_file", "predict_file"), tmp_path / "t.jsonl"),
    )
    assert main([*flags, "--do_train", "--do_eval", "--do_predict"]) == 0
    results = (tmp_path / "run" / "test_results.tsv").read_text().splitlines()
    labels = {word for text in texts for word in text.split()[:2]}
    assert {line.count("\t") + 1 for line in results} == {
        1 if kind == "regression" else len(labels)
    }
    found = (tmp_path / "run" / "eval_results.txt").read_text()
    assert ("pearson = " if kind == "regression" else "micro_f1 = ") in found
    report = tmp_path / "run" / "eval_report.tsv"
    assert report.exists() == (kind == "multi_label")
    curves = [tag for _, tags in reports_of(tmp_path / "run" / "eval") for tag in tags]
    curves = {tag for tag in curves if tag.startswith("precision_recall/")}
    assert curves == {f"precision_recall/{label}" for label in labels if report.exists()}


def test_a_task_of_glue_with_two_files_to_evaluate_on(data, tmp_path):
    header = "index\tsentence1\tsentence2\tgold_label\n"
    body = [f"{i}\t{a}\t{b}\tneutral\n" for i, (a, b, _) in enumerate(pairs(9, 6))]
    for name in ("train", "dev_matched", "dev_mismatched"):
        (tmp_path / f"{name}.tsv").write_text(header + "".join(body))
    own = dict.fromkeys(("train_file", "eval_file"))
    flags = command(data, tmp_path / "run", task_name="MNLI", data_dir=tmp_path, **own)
    assert main(flags) == 0
    found = (tmp_path / "run" / "eval_results.txt").read_text()
    assert "\naccuracy = " in "\n" + found and "\nmismatched_accuracy = " in found
    assert "mismatched_loss" not in found and "mismatched_global_step" not in found
    assert (tmp_path / "run" / "eval_matched").is_dir()
    for name in ("matched", "mismatched"):
        assert (tmp_path / "run" / f"eval_report_{name}.tsv").exists()
        assert len(reports_of(tmp_path / "run" / f"eval_{name}")) == 1


def test_an_evaluation_has_the_length_of_the_run_and_not_of_its_start(data, tmp_path):
    lengths = {"start": 8, "run": 16}
    flags = {
        name: [*command(data, tmp_path / name, num_train_epochs=0.4), f"--max_seq_length={length}"]
        for name, length in lengths.items()
    }
    start = f"--init_checkpoint={tmp_path / 'start'}"
    assert main([*flags["start"], "--do_train"]) == 0
    assert main([*flags["run"], start, "--do_train"]) == 0
    without = [flag for flag in flags["run"] if not flag.startswith("--max_seq_length")]
    assert main([*without, start, "--do_eval", "--do_export"]) == 0
    (export,) = (tmp_path / "run" / "export").iterdir()
    for task in (export / "assets.extra" / "task.json", tmp_path / "run" / "task.json"):
        assert json.loads(task.read_text())["max_seq_length"] == 16


@pytest.mark.parametrize(
    ("optimizer", "runs"),
    [("adamw", ["run", "run/best"]), ("adafactor", ["run"]), ("lars", ["run"])],
)
def test_a_runs_directory_converts_with_nothing_else(data, tmp_path, capsys, optimizer, runs):
    """The optimizers' slots are left out; the best checkpoint is in a directory of its own."""
    flags = command(data, tmp_path / "run", optimizer=optimizer, num_train_epochs=0.4)
    keep = ["--keep_best_checkpoint"] * ("run/best" in runs)
    assert main([*flags, *keep, "--do_train"]) == 0
    for run in runs:
        target = tmp_path / f"{run}-converted"
        assert interchange.main(["interchange", str(tmp_path / run), str(target)]) == 0
        assert "Weights read back bit for bit" in capsys.readouterr().out
        assert (target / "vocab.txt").read_text() == (data / "vocab.txt").read_text()
    source, target = (open_source(str(tmp_path / name)) for name in ("run", "run-converted"))
    assert source.config == target.config == BertConfig(**BERT_CONFIG)
    heads = network_variables.head_shapes(source.config, 2)[network_variables.CLASSIFIER]
    assert source.shapes == {**network_variables.encoder_shapes(source.config), **heads}
    assert "global_step" in source.left_out and len(source.left_out) > len(source.shapes)


def test_seeds_are_summarised(data, tmp_path, capsys):
    flags = command(data, tmp_path, num_train_epochs=0.2, num_seeds=2, random_seed=5)
    assert main(flags) == 0
    out = capsys.readouterr().out
    accuracies = [
        float(value) for value in re.findall(r"Evaluation at step 2: accuracy ([\d.]+)", out)
    ]
    low, high = sorted(accuracies)
    found = re.search(r"^accuracy of 2 seeds: median ([\d.]+) \(([\d.]+) to ([\d.]+)\)$", out, re.M)
    # The printed accuracies are rounded.
    expected = [(low + high) / 2, low, high]
    assert [float(value) for value in found.groups()] == pytest.approx(expected, abs=1e-4)
    assert sorted(os.listdir(tmp_path)) == ["seed-5", "seed-6"]
    # The configuration of a seed's run repeats this seed.
    (config,) = classification_config.resolve(
        ["", f"--config={tmp_path}/seed-6/config.json", "--output_dir=other"]
    )
    assert (config.training.random_seed, config.num_seeds) == (6, 1)


def test_seeds_without_a_number_do_not_change_the_median(capsys):
    """As Pearson's correlation of predictions that are all equal."""
    for scores, said in (
        ([0.3, 0.9, math.nan], "pearson of 3 seeds, 1 not a number: median 0.6000 (0.3000 to 0.9"),
        ([math.nan] * 2, "pearson of 2 seeds, 2 not a number: median nan (nan to nan)"),
    ):
        fine_tune.print_spread([{"pearson": score} for score in scores])
        assert said in capsys.readouterr().out


def test_several_hosts(data, tmp_path, monkeypatch, capsys):
    cluster = {"chief": ["a:1"], "worker": ["b:1"]}
    tf_config = {"cluster": cluster, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(tf_config))
    assert main([*command(data, tmp_path / "run"), "--do_train"]) == 2
    assert "TF_CONFIG names several hosts; this script runs on one" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
