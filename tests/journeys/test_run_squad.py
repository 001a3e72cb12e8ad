"""Question answering from its command line: flags, whole runs, the files of answers."""

import json

import numpy as np
import pytest
from scripts import SQUAD
from tiny_run import bert_config, metrics_of, questions, squad_flags, write_questions

import run_squad
from bert_estimator.jobs.fine_tuning import question_answering_config, question_answering_data
from input_pipelines.tasks import squad_files, squad_metrics


def main(arguments):
    """Runs the script in this process."""
    return run_squad.main(["run_squad.py", *arguments])


def resolve(tmp_path, *arguments):
    path = tmp_path / "a_file"
    path.write_text("{}")
    own = [f"--{name}={path}" for name in ("train_file", "vocab_file", "bert_config_file")]
    argv = ["run_squad.py", "--do_train", f"--output_dir={tmp_path}/run", *own, *arguments]
    (config,) = question_answering_config.resolve(argv)
    return config


def test_a_stride_that_nobody_asked_for_fits(tmp_path):
    config = resolve(tmp_path, "--max_seq_length=128")
    assert config.data.doc_stride == 30  # half of the 61 tokens beside the longest question
    assert str(config.sources["doc_stride"]) == "default, scaled from 128"
    config = resolve(tmp_path, "--max_seq_length=68")
    assert config.data.doc_stride == 1


def test_defaults_are_those_of_google_research_bert(tmp_path):
    config = resolve(tmp_path)
    expected = {
        "max_seq_length": 384, "doc_stride": 128, "max_query_length": 64, "n_best_size": 20,
        "max_answer_length": 30, "version_2_with_negative": False, "num_train_epochs": 3.0,
        "null_score_diff_threshold": 0.0, "train_batch_size": 32, "predict_batch_size": 8,
        "learning_rate": 5e-5, "warmup_proportion": 0.1, "do_lower_case": None,
    }  # fmt: skip
    assert {name: config.settings()[name] for name in expected} == expected
    assert not config.embedded and config.training.optimizer == "adamw"


def test_what_is_exported_may_stay_in_a_config_whose_export_is_turned_off(tmp_path):
    config = resolve(tmp_path, "--do_export", "--export_inputs=ids")
    config.open_directory().write_config(config.settings(), config.sources, "", [])
    argv = [f"--config={tmp_path}/run/config.json", f"--output_dir={tmp_path}/again"]
    (again,) = question_answering_config.resolve(["run_squad.py", *argv, "--nodo_export"])
    assert again.evaluation.export_inputs == "ids" and not again.do_export


# Whole runs


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    SQUAD.write_data(path)
    network = bert_config(
        30, num_hidden_layers=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    (path / "bert_config.json").write_text(json.dumps(network))
    made = questions(40, 1, impossible=13)
    for name in ("train", "dev"):
        write_questions(path / f"{name}2.json", made)
    unlabelled = [(text, {**q, "answers": []}) for text, q in questions(13, 3)]
    write_questions(path / "test.json", unlabelled)
    return path


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    """Trains until the 40 questions are known by heart, some of them impossible."""
    output_dir = tmp_path_factory.mktemp("run") / "run"
    changes = {
        "train_file": data / "train2.json",
        "eval_file": data / "dev2.json",
        "predict_file": data / "dev2.json",
        "do_train": True,
        "do_eval": True,
        "do_predict": True,
        "do_export": True,
        "version_2_with_negative": True,
        "num_train_epochs": 80,
        "save_checkpoints_steps": 100,
        "iterations_per_loop": 50,
        "n_best_size": 5,
    }
    assert main(squad_flags(data, output_dir, **changes)) == 0
    return output_dir


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_a_run_learns_its_questions(trained):
    losses = [record["loss"] for record in metrics_of(trained) if "loss" in record]
    assert losses[-1] < 0.5 * losses[0]
    (results,) = (record for record in metrics_of(trained) if "eval_loss" in record)
    assert results["eval_f1"] > results["eval_no_answer_baseline"] + 20
    assert results["eval_best_f1"] >= results["eval_f1"] - 1e-4


def test_the_evaluation_scores_the_predictions(data, trained):
    """The metrics of the evaluation are the metrics of the files of the prediction."""
    (results,) = (record for record in metrics_of(trained) if "eval_loss" in record)
    asked = squad_files.read(str(data / "dev2.json"), True, True)
    golds = {question.id: question.golds() for question in asked}
    predictions = read(trained / "predictions.json")
    assert list(predictions) == list(golds)
    for name, value in squad_metrics.evaluate(predictions, golds, True).items():
        assert results[f"eval_{name}"] == pytest.approx(value, rel=1e-5)
    text = (trained / "eval_results.txt").read_text()
    assert f"f1 = {results['eval_f1']}"[:8] in text


def test_the_files_of_answers(data, trained):
    predictions, odds = read(trained / "predictions.json"), read(trained / "null_odds.json")
    n_best = read(trained / "nbest_predictions.json")
    contexts = {q.id: q.context for q in squad_files.read(str(data / "dev2.json"), True, True)}
    for name, rows in n_best.items():
        assert "" in [row["text"] for row in rows]
        assert all(row["text"] in contexts[name] for row in rows)
        assert sum(row["probability"] for row in rows) == pytest.approx(1)
        # The best starts may all lie in the question; then "no answer" is alone in the list.
        best = next((row["text"] for row in rows if row["text"]), "")
        assert predictions[name] == ("" if odds[name] > 0 else best)
    assert {bool(text) for text in predictions.values()} == {True, False}


def test_task_json_says_how_windows_are_made(trained):
    assert read(trained / "task.json") == {
        "kind": "question_answering", "vocab_file": "vocab.txt", "do_lower_case": True,
        "strip_accents": None, "max_seq_length": 16, "doc_stride": 4, "max_query_length": 3,
        "version_2_with_negative": True, "n_best_size": 5, "max_answer_length": 30,
        "null_score_diff_threshold": 0.0,
    }  # fmt: skip


def test_a_trained_network_answers_elsewhere(data, trained, tmp_path, capsys):
    """Without training, on cores, from --init_checkpoint, the answers are the same."""
    changes = {
        "train_file": None, "eval_file": None, "predict_file": data / "dev2.json",
        "do_predict": True, "version_2_with_negative": True, "n_best_size": 5, "use_tpu": False,
        "init_checkpoint": trained / "model.ckpt-400",  # the last
    }  # fmt: skip
    assert main(squad_flags(data, tmp_path / "run", **changes)) == 0
    assert read(tmp_path / "run" / "predictions.json") == read(trained / "predictions.json")
    changes["predict_file"] = data / "test.json"
    assert main(squad_flags(data, tmp_path / "run", **changes)) == 0
    assert len(read(tmp_path / "run" / "predictions.json")) == 13
    assert "(13 questions)" in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["train_file", "eval_file"])
def test_answers_are_looked_for_in_both_files(data, tmp_path, capsys, flag):
    """Training and evaluation have the same positions for an answer that is not at its start."""
    moved = questions(5, seed=3)
    expected = [question["answers"][0]["answer_start"] for _, question in moved]
    for _, question in moved:
        question["answers"][0]["answer_start"] += 1
    write_questions(tmp_path / "moved.json", moved)
    changes = {flag: tmp_path / "moved.json"}
    argv = squad_flags(data, tmp_path / "run", **changes, do_train=True, do_eval=True)
    (config,) = question_answering_config.resolve(["run_squad.py", *argv])
    loaded = question_answering_data.load(config)
    windows = {"train_file": loaded.train, "eval_file": loaded.evaluate}[flag]
    assert [question.answers[0].start for question in windows.questions] == expected
    positions = windows.batch(np.arange(len(windows)))["start_positions"]
    assert set(windows.owners[positions > 0]) == set(range(5))
    assert "of 5 of 5 questions is not at its answer_start" in capsys.readouterr().out


@pytest.mark.slow
def test_the_embedded_questions_are_learnt(tmp_path, monkeypatch, capsys):
    """The network is ahead of both baselines by far more than the seeds spread."""
    monkeypatch.chdir(tmp_path)
    assert main(["--use_tpu", "--precision=bfloat16"]) == 0
    (results,) = (r for r in metrics_of(tmp_path / "runs" / "squad") if "eval_loss" in r)
    for baseline in ("no_answer", "nearest_sentence"):
        assert results["eval_f1"] > results[f"eval_{baseline}_baseline"] + 20
    assert "f1 of nearest sentence: " in capsys.readouterr().out
