"""Exported models of run_squad.py answer questions in Python as the run's predictions do."""

import json
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from fixtures import DATA
from kills import Killed, kill_before
from tensorflow.core.protobuf import saved_model_pb2
from tiny_run import bert_config, questions, squad_flags, words, write_questions

import run_squad
from bert_estimator.serving import predictor
from bert_estimator.serving.answer_predictor import AnswerPredictor
from bert_estimator.serving.exported_model import find
from bert_estimator.serving.predictor import Predictor
from bert_estimator.tokenization import SPECIAL_TOKENS, open_tokenizer, write_vocab

GOLDENS = pathlib.Path(__file__).parent.parent / "tokenization" / "goldens"
CONTEXTS = [
    "",
    " \n\u3000",
    "w5",
    "\U0001f600 Caf\u00e9 w3, w4!  Cafe\u0301\u200b w5\tw6. \u6771\u4eac W7 ``w8'' \ufb01n \u0130x "
    * 6,
    "w1 w2 w3. " * 40,
    "\u00a0".join(f"w{number % 28}" for number in range(100)),
]
ASKED = ["", "w3 what", "\u3000", "w5 w6 w7 w8 w9", "\U0001f600"]

# Runs whose export computes what prediction computed, and runs whose export rounds otherwise.
RUNS = {
    "2.0": {"version_2_with_negative": True},
    "1.1": {},
    "2.0, unigram": {
        "vocabulary": "unigram",
        "do_lower_case": False,
        "strip_accents": False,
        "version_2_with_negative": True,
        "null_score_diff_threshold": 1.0,
    },
    "1.1, byte pairs": {"vocabulary": "bpe", "do_lower_case": False, "strip_accents": False},
}
FORMATS = {"ids": [], "onnx": ["--export_format=onnx"]}


def write_data(path, vocabulary, version_2):
    """Writes questions, a vocabulary and a network; returns the flags that name them."""
    vocab_file = path / "vocab.txt"
    if vocabulary != "wordpiece":
        vocab_file = path / f"{vocabulary}.model"
        shutil.copy(GOLDENS / vocab_file.name, vocab_file)
    else:
        tokens = [*words(30), *"cafeinx,.!`'", *(f"##{c}" for c in "cafeinx"), "\u6771", "\u00e9"]
        write_vocab([*SPECIAL_TOKENS, *tokens], str(vocab_file))
    size = open_tokenizer(str(vocab_file), None).vocab_size
    config = {**bert_config(0), "vocab_size": size, "initializer_range": 0.3}
    (path / "bert_config.json").write_text(json.dumps(config))
    for name, seed in (("train", 1), ("dev", 2)):
        write_questions(path / f"{name}.json", questions(16, seed, impossible=5 * version_2))
    pairs = [(context, question) for context in CONTEXTS for question in ASKED]
    strange = [
        (context, {"id": f"s{number}", "question": question, "answers": []})
        for number, (context, question) in enumerate(pairs)
    ]
    write_questions(path / "test.json", [*questions(8, 3), *strange])
    return {"vocab_file": vocab_file, "predict_file": path / "test.json"}


def flags_of(path, changes):
    changes = {"vocabulary": "wordpiece", "max_answer_length": 6, "n_best_size": 4, **changes}
    files = write_data(path, changes.pop("vocabulary"), "version_2_with_negative" in changes)
    verbs = dict.fromkeys(["do_train", "do_eval", "do_predict", "do_export"], True)
    return squad_flags(path, path / "run", **{**files, **verbs, **changes})


def main(flags):
    tf.summary.FileWriterCache.clear()
    assert run_squad.main(["run_squad.py", *flags]) == 0
    tf.summary.FileWriterCache.clear()


@pytest.fixture(
    scope="module",
    params=["2.0", *(pytest.param(name, marks=pytest.mark.slow) for name in list(RUNS)[1:])],
)
def run(request, tmp_path_factory):
    """Returns the directory of the data and of a run, and the run's flags."""
    path = tmp_path_factory.mktemp("answers")
    flags = flags_of(path, RUNS[request.param])
    main([*flags, "--nodo_export"])
    return path, flags


@pytest.fixture(scope="module", params=FORMATS)
def export(request, run):
    """Returns the directory of the data, and of an exported model."""
    if request.param == "onnx":
        pytest.importorskip("onnx")
        pytest.importorskip("onnxruntime")
    path, flags = run
    shutil.rmtree(path / "run" / "export", ignore_errors=True)
    main([*flags, "--nodo_train", "--nodo_eval", "--nodo_predict", *FORMATS[request.param]])
    return path, str(path / "run")


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
    pieces = [opened._tokenizer.tokenize(question) for question, _ in texts]
    assert opened.num_cut == sum(len(of_question) > 3 for of_question in pieces) > 0
    opened.close()


@pytest.mark.slow
def test_a_run_that_is_killed_in_its_export_exports_when_it_goes_on(tmp_path, monkeypatch):
    flags = flags_of(tmp_path, {"version_2_with_negative": True})
    builder = tf.saved_model.builder.SavedModelBuilder
    with monkeypatch.context() as patched, pytest.raises(Killed):
        kill_before(patched, builder, "save", lambda *_: True)
        main(flags)
    main(flags)
    texts, names = asked(tmp_path)
    predictions = json.loads((tmp_path / "run" / "predictions.json").read_text())
    answers = AnswerPredictor(find(str(tmp_path / "run")))(texts)
    assert [answer["answer"] for answer in answers] == [predictions[name] for name in names]


def test_a_model_that_an_earlier_version_exported_answers_by_its_ids(run, tmp_path):
    """Its `serving_default` took questions and contexts."""
    path, flags = run
    output_dir = tmp_path / "run"
    shutil.copytree(path / "run", output_dir)
    main([*flags, "--nodo_train", "--nodo_eval", "--nodo_predict", f"--output_dir={output_dir}"])
    texts, _ = asked(path)
    expected = AnswerPredictor(str(output_dir))(texts)
    graph = pathlib.Path(find(str(output_dir)), "saved_model.pb")
    model = saved_model_pb2.SavedModel.FromString(graph.read_bytes())
    signatures = model.meta_graphs[0].signature_def
    signatures["ids:windows"].CopyFrom(signatures["serving_default"])
    windows = signatures["ids:windows"]
    for tensor in (*windows.inputs.values(), *windows.outputs.values()):
        tensor.tensor_shape.dim[1].size = 16
    for name, fed in signatures["serving_default"].inputs.items():
        fed.name, fed.dtype = f"{name}_texts:0", tf.string.as_datatype_enum
    graph.write_bytes(model.SerializeToString())
    for answer, other in zip(AnswerPredictor(str(output_dir))(texts), expected, strict=True):
        assert answer["answer"] == other["answer"]
        np.testing.assert_allclose(answer["score"], other["score"], rtol=0, atol=1e-4)


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
        ("w3", "texts is a single string; give a list of texts"),
        ([("\ud800", "w1")], r"texts\[0\] holds half of a character"),
    ):
        with pytest.raises(ValueError, match=message):
            opened(texts)
    with pytest.raises(ValueError, match=r"which is not for Predictor; predictor\.open_pred"):
        Predictor(model)
    opened.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"doc_stride": 0}, "doc_stride, max_query_length, n_best_size and .* must be positive"),
        ({"max_query_length": 13}, "must have room for a question, 3 special tokens and a token"),
        ({"n_best_size": "3"}, "n_best_size: must be a whole number, not"),
        ({"null_score_diff_threshold": "a"}, "null_score_diff_threshold: must be a finite number"),
        (
            {"kind": "regression", "is_pair": True, "labels": []},
            "is regression, which is not for AnswerPredictor",
        ),
        ({"kind": "pretraining"}, "names no kind of a task, so that the model gives vectors alone"),
        ({"kind": "x"}, "kind must be one of classification, .*, question_answering, not 'x'"),
        ({"do_lower_case": None}, "the key 'do_lower_case' is missing. Export the model again"),
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
