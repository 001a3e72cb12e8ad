"""Served models give what their exported graphs give, for every kind; and what cannot be served."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from fixtures import DATA
from task_runs import ASKED, KINDS, SINGLE, train, write_data

from bert_estimator.command_line.choices import QUESTION_ANSWERING
from bert_estimator.serving.commands import TooManyWindowsError
from bert_estimator.serving.embedder import Embedder
from bert_estimator.serving.exported_model import find
from bert_estimator.serving.filler import Filler
from bert_estimator.serving.predictor import open_predictor
from bert_estimator.serving.server import models


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_data(path)
    return path


def export(data, kind, *flags):
    """Returns the directory of a run of a kind with an exported model."""
    return train(data, data / kind, kind, "--do_export", *flags)


@pytest.mark.slow  # test_serving.py has classification
@pytest.mark.parametrize("kind", ["classification", "multi_label", "regression"])
def test_answers_are_what_the_graph_gives(data, kind):
    texts, run = KINDS[kind][2], export(data, kind)
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


@pytest.mark.parametrize(
    ("kind", "long", "flags"),
    [
        pytest.param("classification", ("w1 " * 60, "w2"), ["--long_texts=windows"]),
        pytest.param("tagging", "w1 " * 60, [], marks=pytest.mark.slow),
        pytest.param(QUESTION_ANSWERING, ("w1", "w1 " * 60), [], marks=pytest.mark.slow),
        (models.VECTORS, "word1 " * 60, []),
    ],
)
def test_windows_are_counted_before_they_are_computed(data, kind, long, flags):
    if kind == models.VECTORS:
        model = models.open_model(str(DATA / "hf_encoder"), 2, 2, long_texts="windows")
    else:
        model = models.open_model(train(data, data / f"long {kind}", kind, *flags), 2, 2)
    short = ("w1", "w2") if isinstance(long, tuple) else "w1"
    assert len(model.answer([short] * 3)) == 3  # they may come from several requests
    with pytest.raises(
        TooManyWindowsError, match=r"are read in \d+ windows, which are more than 2"
    ):
        model.answer([short, long])
    model.close()


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
    texts, run = KINDS[kind][2], export(data, kind)
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


def test_a_network_gives_vectors():
    model = models.open_model(str(DATA / "hf_encoder"), batch_size=2)
    assert (model.kind, model.version, model.inputs.num_needed) == ("vectors", "1", 1)
    single, pair = model.answer(["a", ("a", "b")])
    assert single["vector"].dtype == np.float32 and not np.array_equal(
        *map(list, (single["vector"], pair["vector"]))
    )
    assert model.fill is None  # without the head
    model.close()


def test_a_network_with_the_head_fills_in_words_too():
    path, asked = str(DATA / "hf_masked_lm"), [("word1 [MASK]", 2), (("[MASK]", "[MASK] word2"), 3)]
    model = models.open_model(path, batch_size=2)
    assert (model.kind, model.outputs) == ("vectors", ("vector",))
    answers = model.fill(asked)
    assert json.loads(json.dumps(answers)) == answers
    assert [[len(words) for words in answer["masks"]] for answer in answers] == [[2], [3, 3]]
    for answer, (text, top) in zip(answers, asked, strict=True):
        (expected,) = Filler(path).fill([text], top)
        for words, others in zip(answer["masks"], expected["masks"], strict=True):
            assert [each["word"] for each in words] == [each["word"] for each in others]
            for word, other in zip(words, others, strict=True):
                assert word["probability"] == pytest.approx(other["probability"], abs=1e-6)
    vectors = [answer["vector"] for answer in model.answer(["word1"])]
    np.testing.assert_allclose(vectors, Embedder(path)(["word1"]), atol=1e-6)
    assert model.fill([]) == []
    with pytest.raises(ValueError, match=r"^texts\[1\] does not have \[MASK\]"):
        model.fill([("[MASK]", 1), ("word1", 1)])
    model.close()


def test_what_cannot_be_served(tmp_path):
    with pytest.raises(
        ValueError, match=r"no such checkpoint.*Nor does .*none hold an exported model"
    ):
        models.open_model(str(tmp_path / "none"), 2)
    shutil.copytree(DATA / "hf_encoder", tmp_path / "damaged")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        models.open_model(str(tmp_path / "damaged"), 2)
