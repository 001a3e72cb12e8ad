"""ONNX models answer texts as the networks that they were made from."""

import json
import shutil

import fixtures
import numpy as np
import pytest

from bert_estimator.command_line.choices import LONG_TEXTS
from bert_estimator.interchange import __main__ as interchange
from bert_estimator.serving import embed
from bert_estimator.serving.embedder import Embedder
from bert_estimator.serving.predictor import Predictor
from bert_estimator.serving.server import models

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

ENCODER = str(fixtures.DATA / "hf_encoder")
TEXTS = ["word1 word2", ("word5 word6", "word7"), "", " ".join(f"word{i % 35}" for i in range(40))]


def converted(folder, model):
    argv = ["interchange", str(fixtures.DATA / model), str(folder), "--to=onnx"]
    assert interchange.main(argv) == 0
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return str(converted(tmp_path_factory.mktemp("encoder") / "onnx", "hf_encoder"))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return converted(tmp_path_factory.mktemp("classifier") / "onnx", "hf_classifier")


@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "pooled"])
@pytest.mark.parametrize("layers", [(-1,), (2, -1)])
def test_vectors_are_those_of_the_weights(encoder, pooling, layers):
    embedder = Embedder(encoder, pooling, layers, batch_size=2)
    expected = Embedder(ENCODER, pooling, layers)
    vectors = embedder(TEXTS)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, expected(TEXTS), rtol=0, atol=1e-5)
    assert (embedder.width, embedder.num_cut) == (expected.width, expected.num_cut)
    embedder.close()


@pytest.mark.parametrize("long_texts", LONG_TEXTS)
def test_vectors_of_long_texts_are_those_of_the_weights_and_of_the_server(encoder, long_texts):
    options = {"long_texts": long_texts, "pooling": "max"}
    embedders = [Embedder(path, max_seq_length=12, **options) for path in (encoder, ENCODER)]
    found, expected = (embedder(TEXTS) for embedder in embedders)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert {embedder.num_cut for embedder in embedders} == {1}
    texts = [*TEXTS, "word1 " * 60]  # longer than the network's positions
    for path in (encoder, ENCODER):
        served = models.open_model(path, 32, **options)
        vectors = [answer["vector"] for answer in served.answer(texts)]
        np.testing.assert_array_equal(vectors, Embedder(path, **options)(texts))
        assert served.num_cut() == 2
        served.close()


def test_vectors_of_tokens_are_those_of_the_weights(encoder):
    answers = Embedder(encoder).tokens(TEXTS)
    for (tokens, vectors), (names, expected) in zip(
        answers, Embedder(ENCODER).tokens(TEXTS), strict=True
    ):
        assert tokens == names
        np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layers": (1,)}, "layers: .* is an ONNX model, which gives its last layer alone, -1 or "),
        ({"layers": (0, -1)}, "layers: .* is an ONNX model, which gives its last layer alone"),
        ({"checkpoint": "best"}, "is an ONNX model, not the directory of a run; leave --check"),
    ],
)
def test_what_the_model_does_not_have_is_refused(encoder, arguments, message):
    with pytest.raises(ValueError, match=message):
        Embedder(encoder, **arguments)


def test_the_command_embeds(encoder, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("word1 word2\nword5 word6\tword7\n")
    argv = ["bert-embed", encoder, str(tmp_path / "texts.txt"), "--format=jsonl"]
    assert embed.main(argv) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    _, expected = Embedder(ENCODER).tokens(["word1 word2"])[0]
    values = [feature["layers"][0]["values"] for feature in lines[0]["features"]]
    np.testing.assert_allclose(values, expected[0], rtol=0, atol=1e-5)


@pytest.fixture
def predictor_with(classifier, tmp_path):
    """Returns a function that opens a copy of the classifier with changes in its task.json."""

    def opened(**changes):
        copy = shutil.copytree(classifier, tmp_path / "copy")
        task = json.loads((copy / "task.json").read_text())
        (copy / "task.json").write_text(json.dumps({**task, **changes}))
        return Predictor(str(copy))

    return opened


@pytest.mark.parametrize("kind", ["multi_label", "classification"])
def test_probabilities_are_of_the_kind(predictor_with, kind):
    predictor = predictor_with(kind=kind, labels=["a", "b", "c"])
    outputs = predictor.predict(["word1 word2", "word3", "word1 " * 30])
    logits = outputs["logits"].astype(np.float64)
    assert logits.shape == (3, 3)
    powers = np.exp(logits)
    expected = {
        "multi_label": powers / (1 + powers),
        "classification": powers / powers.sum(axis=-1, keepdims=True),
    }[kind]
    np.testing.assert_allclose(outputs["probabilities"], expected, rtol=0, atol=1e-6)
    assert predictor.num_cut == 1


@pytest.mark.parametrize("changes", [{"labels": ["a", "b"]}, {"kind": "tagging"}])
def test_a_task_that_does_not_fit_is_refused(predictor_with, changes):
    message = r"logits has the shape \[None, 3\], which does not fit task.json"
    with pytest.raises(ValueError, match=message):
        predictor_with(**changes)
