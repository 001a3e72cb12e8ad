"""Served models give what their exported graphs give, for every kind; and what cannot be served."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from fixtures import DATA
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
from bert_estimator.interchange import __main__ as interchange
from bert_estimator.serving.exported_model import find
from bert_estimator.serving.predictor import open_predictor
from bert_estimator.serving.server import models
from bert_estimator.tokenization import SPECIAL_TOKENS, write_vocab

SINGLE = ["w1 w2 w3", "w20", "", "w5 " * 40]
PAIRS = [("w1 w2", "w3"), ("w20 w21", ""), ("w5 " * 40, "w6 w7")]
ASKED = [("w3 what", "w1 w2 w3 w4 w5"), ("w9 what", "w1 w2 " * 30 + "w9 w4"), ("w3", "")]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_vocab([*SPECIAL_TOKENS, *words(30)], str(path / "vocab.txt"))
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
    return path


def single(data, **changes):
    files = {"train_file": data / "train.jsonl", "eval_file": data / "dev.jsonl"}
    return run_classifier, classifier_flags(data, data / changes["task_kind"], **files, **changes)


def classes(data):
    return run_classifier, classifier_flags(data, data / "classification")


def tags(data):
    return run_classifier, tagging_flags(data, data / "tagging")


def answers(data):
    output = data / "question_answering"
    return run_squad, squad_flags(data, output, version_2_with_negative=True)


# Kind -> function of the data that returns its script and flags, and texts.
KINDS = {
    "classification": (classes, PAIRS),
    "multi_label": (lambda d: single(d, task_kind="multi_label", label_column="labels"), SINGLE),
    "regression": (lambda d: single(d, task_kind="regression", label_column="number"), SINGLE),
    "tagging": (tags, SINGLE),
    "question_answering": (answers, ASKED),
}


def export(data, kind, *flags):
    """Returns the directory of a run of a kind with an exported model."""
    script, argv = KINDS[kind][0](data)
    assert script.main([script.__name__, *argv, "--do_train", "--do_export", *flags]) == 0
    return str(data / kind)


@pytest.mark.slow  # test_serving.py has classification
@pytest.mark.parametrize("kind", ["classification", "multi_label", "regression"])
def test_answers_are_what_the_graph_gives(data, kind):
    texts, run = KINDS[kind][1], export(data, kind)
    model = models.open_model(run, batch_size=2)
    assert (model.kind, model.directory) == (kind, find(run))
    assert find(run).endswith(model.version)
    signature = tf.saved_model.load(find(run)).signatures["serving_default"]
    columns = list(zip(*texts, strict=True)) if isinstance(texts[0], tuple) else [texts]
    feeds = dict(zip(model.inputs.names, map(tf.constant, columns), strict=True))
    expected = {name: value.numpy() for name, value in signature(**feeds).items()}
    assert set(model.outputs) == expected.keys()
    for answers in (model.answer(texts), [model.answer([text])[0] for text in texts]):
        json.dumps(answers)
        for number, answer in enumerate(answers):
            assert list(answer) == list(model.outputs)
            for name, value in answer.items():
                check(value, expected[name][number], name)
    assert model.answer([]) == []
    model.close()


def check(value, expected, name):
    expected = np.asarray(expected)
    if expected.dtype.kind in "OS":
        texts = [text.decode() for text in np.atleast_1d(expected)]
        assert (value if isinstance(value, list) else [value]) == texts
    else:
        np.testing.assert_allclose(
            value, np.squeeze(expected) if name == "number" else expected, atol=1e-5
        )


@pytest.mark.slow
def test_tags_are_what_the_predictor_gives(data):
    run = export(data, "tagging")
    model, predictor = models.open_model(run, 2), open_predictor(run, 2)
    assert model.outputs == ("words", "tags", "labels", "probabilities")
    for answer, expected in zip(model.answer(SINGLE), predictor(SINGLE), strict=True):
        assert {name: answer[name] for name in ("words", "tags")} == {
            name: expected[name] for name in ("words", "tags")
        }
        assert answer["labels"] == list(predictor.labels)
        greatest = [max(row) for row in answer["probabilities"]]
        np.testing.assert_allclose(greatest, expected["probabilities"], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_answers_are_what_the_predictor_gives(data):
    run = export(data, "question_answering")
    model, predictor = models.open_model(run, 2), open_predictor(run, 2)
    empty = {"answer": "", "start": 0, "end": 0, "probability": 0.0}
    for answer, expected in zip(model.answer(ASKED), predictor(ASKED), strict=True):
        assert list(answer) == list(model.outputs)
        # There are --n_best_size answers, and "no answer".
        listed = [*expected.pop("n_best"), *[empty] * 21][:21]
        assert {name: answer[name] for name in expected} == pytest.approx(expected, abs=1e-5)
        for part, name in models._N_BEST.items():
            assert answer[name] == pytest.approx([span[part] for span in listed], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_onnx_models_answer_as_saved_models(data, kind):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    texts, run = KINDS[kind][1], export(data, kind)
    expected = models.open_model(run, batch_size=2)
    export(data, kind, "--export_format=onnx")
    model = models.open_model(run, batch_size=2)
    assert model.directory == find(run) and "/onnx/" in model.directory != expected.directory
    assert model[:4] == expected[:4]
    for answer, other in zip(model.answer(texts), expected.answer(texts), strict=True):
        assert answer.keys() == other.keys()
        for name, value in answer.items():
            if isinstance(value, str) or name in ("labels", "words", "tags", "n_best_answers"):
                assert value == other[name]
            elif name != "probabilities" or np.size(value):
                np.testing.assert_allclose(value, other[name], rtol=0, atol=1e-4)
    for each in (model, expected):
        each.close()


def test_an_onnx_model_gives_vectors(tmp_path):
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    argv = ["interchange", str(DATA / "hf_encoder"), str(tmp_path / "onnx"), "--to=onnx"]
    assert interchange.main(argv) == 0
    model = models.open_model(str(tmp_path / "onnx"), batch_size=2)
    expected = models.open_model(str(DATA / "hf_encoder"), batch_size=2)
    assert (model.kind, model.version) == ("vectors", "1")
    texts = ["a", ("a", "b")]
    for answer, other in zip(model.answer(texts), expected.answer(texts), strict=True):
        np.testing.assert_allclose(answer["vector"], other["vector"], rtol=0, atol=1e-5)


def test_a_network_gives_vectors():
    model = models.open_model(str(DATA / "hf_encoder"), batch_size=2)
    assert (model.kind, model.version, model.inputs.num_needed) == ("vectors", "1", 1)
    single, pair = model.answer(["a", ("a", "b")])
    assert single["vector"].dtype == np.float32 and not np.array_equal(
        *map(list, (single["vector"], pair["vector"]))
    )
    model.close()


@pytest.mark.slow
def test_an_export_that_takes_ids(data):
    run = export(data, "classification", "--export_inputs=ids")
    assert len(models.open_model(run, 2).answer(PAIRS)) == len(PAIRS)


def test_what_cannot_be_served(tmp_path):
    with pytest.raises(
        ValueError, match=r"no such checkpoint.*Nor does .*none hold an exported model"
    ):
        models.open_model(str(tmp_path / "none"), 2)
    shutil.copytree(DATA / "hf_encoder", tmp_path / "damaged")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        models.open_model(str(tmp_path / "damaged"), 2)
