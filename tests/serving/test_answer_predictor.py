"""Exported models of run_squad.py answer questions in Python as the run's predictions do."""

import json
import shutil

import numpy as np
import pytest
from fixtures import DATA

from bert_estimator.serving import predictor
from bert_estimator.serving.answer_predictor import AnswerPredictor
from bert_estimator.serving.predictor import Predictor
from tests.serving.test_exported_answers import flags_of, main

FORMATS = {
    "text": ["--export_inputs=text"],
    "ids": ["--export_inputs=ids"],
    "onnx": ["--export_format=onnx"],
}


@pytest.fixture(scope="module", params=[pytest.param("1.1", marks=pytest.mark.slow), "2.0"])
def run(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("answers")
    changes = {"version_2_with_negative": True} if request.param == "2.0" else {}
    main([*flags_of(path, {"n_best_size": 4, **changes}), "--nodo_export"])
    return path


@pytest.fixture(
    scope="module", params=["text", pytest.param("ids", marks=pytest.mark.slow), "onnx"]
)
def export(request, run):
    """Returns the directory of the data, and of an exported model."""
    if request.param == "onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
    shutil.rmtree(run / "run" / "export", ignore_errors=True)
    argv = [*flags_of(run, {"n_best_size": 4}), "--nodo_train", "--nodo_eval", "--nodo_predict"]
    if (run / "run" / "null_odds.json").exists():
        argv.append("--version_2_with_negative")
    main([*argv, *FORMATS[request.param]])
    return run, str(run / "run")


def asked(path):
    """Returns the questions of the file to predict for, and their ids."""
    paragraphs = json.loads((path / "test.json").read_text())["data"][0]["paragraphs"]
    pairs = {(p["qas"][0]["question"], p["context"]): p["qas"][0]["id"] for p in paragraphs}
    return list(pairs), list(pairs.values())


def test_answers_are_the_predictions(export):
    path, model = export
    texts, names = asked(path)
    opened = AnswerPredictor(model, batch_size=5)
    assert (opened.kind, opened.is_pair, opened.max_seq_length) == ("question_answering", True, 16)
    answers = opened(texts)
    predictions = json.loads((path / "run" / "predictions.json").read_text())
    listed = json.loads((path / "run" / "nbest_predictions.json").read_text())
    odds_file = path / "run" / "null_odds.json"
    odds = json.loads(odds_file.read_text()) if odds_file.exists() else None
    for (_, context), name, answer in zip(texts, names, answers, strict=True):
        assert answer["answer"] == context[answer["start"] : answer["end"]] == predictions[name]
        assert [span["answer"] for span in answer["n_best"]] == [s["text"] for s in listed[name]]
        for span, expected in zip(answer["n_best"], listed[name], strict=True):
            assert span["answer"] == context[span["start"] : span["end"]]
            np.testing.assert_allclose(span["probability"], expected["probability"], atol=1e-5)
        shares = {span["answer"]: span["probability"] for span in answer["n_best"]}
        assert answer["probability"] == shares[answer["answer"]]
        assert ("null_odds" in answer) == (odds is not None)
        if odds is not None:
            np.testing.assert_allclose(answer["null_odds"], odds[name], rtol=0, atol=1e-4)
    assert opened([]) == []
    assert opened.num_cut == sum(len(question.split()) > 3 for question, _ in texts)
    opened.close()


def test_the_command_answers_lines(export, tmp_path, capsys):
    _, model = export
    texts = [("w3 what", "w1 w2 w3 w4 w5"), ("w9 what", "w1 w9 w2")]
    lines = ["\t".join(pair) for pair in texts]
    (tmp_path / "lines.tsv").write_text("\n".join([lines[0], "no tab", lines[1], ""]))
    capsys.readouterr()
    assert predictor.main(["bert-predict", model, str(tmp_path / "lines.tsv")]) == 1
    out, err = capsys.readouterr()
    first, error, last = (json.loads(line) for line in out.splitlines())
    opened = AnswerPredictor(model)
    for answer, expected in zip((first, last), opened(texts), strict=True):
        assert answer.keys() == expected.keys() and answer["answer"] == expected["answer"]
    assert error == {"error": "line 2: has 0 tabs, but the model's task is about pairs: two texts "
                     "per line, with one tab between"}  # fmt: skip
    assert err.endswith("1 line was answered with an error.\n")
    for texts, message in (
        (
            [("w3 what", "w1"), "w3"],
            r"texts\[1\] is 'w3'; it must be a pair of strings, a question",
        ),
        ("w3", "texts must be a list of pairs, not the one text 'w3'"),
        ([("\ud800", "w1")], r"texts\[0\] holds half of a character"),
    ):
        with pytest.raises(ValueError, match=message):
            opened(texts)
    with pytest.raises(ValueError, match=r"answers questions: open it as an AnswerPredictor"):
        Predictor(model)
    opened.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"doc_stride": 0}, "doc_stride, max_query_length, n_best_size and .* must be positive"),
        ({"max_query_length": 13}, "must have room for a question, 3 special tokens and a token"),
        ({"n_best_size": "3"}, "n_best_size: must be a whole number, not"),
        ({"null_score_diff_threshold": "a"}, "null_score_diff_threshold: must be a finite number"),
        ({"kind": "regression", "is_pair": True, "labels": []}, "is regression, and not to answer"),
        (
            {"kind": "pretraining"},
            "kind must be one of classification, .*, question_answering, not",
        ),
        (
            {"kind": None},
            "names no kind of a task, so that the model gives vectors alone: bert-emb",
        ),
    ],
)
def test_damaged_tasks_are_refused(tmp_path, changes, message):
    task = {
        "kind": "question_answering",
        "vocab_file": "vocab.txt",
        "do_lower_case": True,
        "max_seq_length": 16,
        "max_query_length": 3,
        **changes,
    }
    (tmp_path / "model.onnx").write_bytes(b"")
    (tmp_path / "task.json").write_text(json.dumps(task))
    shutil.copy(DATA / "hf_encoder" / "vocab.txt", tmp_path / "vocab.txt")
    with pytest.raises(ValueError, match=message):
        AnswerPredictor(str(tmp_path))
