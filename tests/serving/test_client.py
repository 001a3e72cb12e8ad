"""The client for former users of bert-as-service: its shapes, and the server's sentences."""

import http_served
import numpy as np
import pytest

from bert_estimator.serving.client import BertClient


@pytest.fixture(scope="module")
def port():
    vectors = {"vectors": http_served.MODELS["vectors"], "classes": http_served.MODELS["classes"]}
    with http_served.server(vectors) as client:
        yield client.port


def test_its_arrays_are_the_texts_vectors(port):
    client = BertClient(port=port)
    vectors = client.encode(["First do it", "then do it right", "a ||| b"])
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[11, 0, 0.5], [16, 0, 0.5], [2, 1, 0.5]]
    many = ["a" * (number % 7) for number in range(600)]
    expected = [[len(text), 0, 0.5] for text in many]
    assert client.encode(many).tolist() == expected
    assert client.encode(tuple(many[:5])).tolist() == expected[:5]
    assert client.encode([]).shape[0] == 0
    assert BertClient("127.0.0.1", port, 20_000, model="vectors").encode(["a"]).shape == (1, 3)


@pytest.mark.parametrize(
    ("options", "texts", "message"),
    [
        ({}, "a text", "texts is a single string; give a list of texts"),
        ({}, ["a|||b|||c"], r"texts\[0\]: a list must have the two texts of a pair"),
        (
            {"model": "classes"},
            ["a"],
            "the model 'classes', for vectors, is not served; served for vector",
        ),
    ],
)
def test_what_is_refused(port, options, texts, message):
    with pytest.raises(ValueError, match=message):
        BertClient(port=port, **options).encode(texts)


def test_a_token_and_a_server_that_is_not_there():
    with http_served.server({"vectors": http_served.MODELS["vectors"]}, token="t") as running:
        with pytest.raises(ValueError, match="this server wants its token"):
            BertClient(port=running.port).encode(["a"])
        assert BertClient(port=running.port, token="t").encode(["a"]).shape == (1, 3)
    with pytest.raises(OSError, match="refused"):
        BertClient(port=running.port).encode(["a"])
