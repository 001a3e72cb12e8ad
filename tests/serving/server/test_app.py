"""What the server answers over HTTP: TensorFlow Serving's shapes, limits, the token, faults."""

import base64
import contextlib
import functools
import http.client
import io
import re
import socket
import threading

import http_served as served
import numpy as np
import pytest
from toy import wait_until

from bert_estimator.serving import commands
from bert_estimator.serving.server import app, bodies

until = functools.partial(wait_until, secs=20)
OF_A_TEXT = served.label_of("a text")
B64 = {"b64": base64.b64encode(b"a text").decode()}
PAIR = {"text_a": "a", "text_b": "pair"}


@pytest.fixture(scope="module")
def client():
    with served.server() as client:
        yield client


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("classes:predict", {"instances": ["a text"]}, {"predictions": [OF_A_TEXT]}),
        ("classes:predict", {"instances": [{"text_a": "a text"}]}, {"predictions": [OF_A_TEXT]}),
        ("classes:predict", {"instances": [B64, {"text_a": B64}]},
         {"predictions": [OF_A_TEXT] * 2}),
        ("classes:predict", {"instances": []}, {"predictions": []}),
        ("classes:predict", {"instances": ["a"] * 9}, {"predictions": [served.label_of("a")] * 9}),
        ("classes/versions/7:predict", {"instances": ["a text"]}, {"predictions": [OF_A_TEXT]}),
        ("classes:predict", {"signature_name": "serving_default", "inputs": ["a text"]},
         {"outputs": {name: [value] for name, value in OF_A_TEXT.items()}}),
        ("classes:predict", {"inputs": {"text_a": ["a text"] * 2}},
         {"outputs": {name: [value] * 2 for name, value in OF_A_TEXT.items()}}),
        ("classes:predict", {"inputs": []}, {"outputs": {}}),
        ("classes:classify", {"examples": [{"text_a": "a text"}, {"text_a": ["a text"]}]},
         {"results": [[["low", 0.4], ["high", 0.6]]] * 2}),
        ("pairs:predict", {"instances": [PAIR]}, {"predictions": [served.label_of(("a", "pair"))]}),
        ("pairs:classify", {"signature_name": "classify", "context": {"text_b": "pair"},
                            "examples": [{"text_a": "a"}]},
         {"results": [[["low", 0.5], ["high", 0.5]]]}),
        ("several:classify", {"examples": [{"text_a": "a text"}]},
         {"results": [[["low", 0.4], ["high", 0.6]]]}),
        ("numbers:predict", {"instances": ["four"]},
         {"predictions": [{"number": 4, "logits": [4]}]}),
        ("numbers:regress", {"signature_name": "tensorflow/serving/regress",
                             "examples": [{"text_a": "four"}]}, {"results": [4]}),
        ("tags:predict", {"instances": ["two words"]}, {"predictions": [{
            "words": ["two", "words"], "tags": ["low"] * 2, "labels": ["low", "high"],
            "probabilities": [[0.75, 0.25]] * 2}]}),
        ("questions:predict", {"instances": [{"question": "who", "context": "Ada did"}]},
         {"predictions": [{"answer": "Ada", "start": 0, "end": 3, "probability": 0.5}]}),
        ("vectors:predict", {"instances": ["four", PAIR]},
         {"predictions": [[4, 0, 0.5], [2, 1, 0.5]]}),
        ("vectors:predict", {"inputs": ["four"]}, {"outputs": [[4, 0, 0.5]]}),
        ("vectors:fill", {"instances": ["a [MASK]", PAIR], "top": 1}, {"predictions": [
            {"masks": [[{"word": "high", "probability": 0.75}]]}, {"masks": []}]}),
        ("vectors/versions/7:fill", {"instances": [{"text_a": "a", "text_b": "[MASK] [MASK]"}]},
         {"predictions": [served.filled([("[MASK] [MASK]", 5)])[0]]}),
        ("vectors:fill", {"instances": []}, {"predictions": []}),
    ],
)  # fmt: skip
def test_answers_have_the_shapes_of_tensorflow_serving(client, path, body, answer):
    status, values = client.post(f"/v1/models/{path}", body)
    assert (status, rounded(values)) == (200, rounded(answer))


def rounded(value):
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return list(map(rounded, value))
    return round(value, 6) if isinstance(value, int | float) else value


def test_vectors(client):
    vectors = [[4, 0, 0.5], [2, 1, 0.5]]
    for body in (
        {"texts": ["four", ["a", "b"]]},
        {"texts": ["four", ["a", "b"]], "model": "vectors"},
    ):
        assert client.post("/embed", body) == (200, {"model": "vectors", "vectors": vectors})
    assert client.post("/embed", {"texts": []}) == (200, {"model": "vectors", "vectors": []})
    status, content, headers = client(
        "POST", "/embed", {"texts": ["four", ["a", "b"]]}, {"Accept": "application/x-npy"}
    )
    array = np.load(io.BytesIO(content))
    assert (status, headers["content-type"]) == (200, "application/x-npy")
    assert array.dtype == np.float32 and array.tolist() == vectors


def test_models_and_their_status(client):
    status, values, _ = client("GET", "/v1/models")
    assert status == 200 and [model["name"] for model in values["models"]] == list(served.MODELS)
    assert values["models"][1] == {
        "name": "pairs", "version": "7", "kind": "classification", "inputs": ["text_a", "text_b"],
        "inputs_needed": 2, "outputs": ["label", "labels", "probabilities", "logits"],
        "labels": ["low", "high"], "max_seq_length": 16, "fills": False,
    }  # fmt: skip
    assert [model["name"] for model in values["models"] if model["fills"]] == ["vectors"]
    state = {
        "version": "7",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    for path in ("classes", "classes/versions/7"):
        assert client("GET", f"/v1/models/{path}")[:2] == (200, {"model_version_status": [state]})
    assert client("GET", "/health")[:2] == (200, {"status": "ok"})
    assert client("GET", "/ready")[:2] == (200, {"status": "ready"})


CLASSES, PAIRS = "/v1/models/classes:predict", "/v1/models/pairs:predict"
EXAMPLES, FILL = "/v1/models/classes:classify", "/v1/models/vectors:fill"


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (CLASSES, b"", 400, "the body is empty; it must be an object in JSON"),
        (CLASSES, b"{", 400, "the body: is not JSON: Expecting property name"),
        (CLASSES, b'"a text"', 400, 'the body: must be an object, not "a text"'),
        (CLASSES, b"[" * 100_000, 400, "the body: is not JSON of at most 64 levels"),
        (CLASSES, {}, 400, "the body must have instances or inputs, and not both"),
        (CLASSES, {"instances": [], "inputs": []}, 400, "the body must have instances or inputs"),
        (CLASSES, {"instance": ["a"]}, 400, 'the key "instance" is not known; known are signature'),
        (CLASSES, {"instances": "a"}, 400, 'instances: Input should be a valid list, not "a"'),
        (CLASSES, {"instances": ["a", None]}, 400, "instances[1]: Input should be a valid diction"),
        (CLASSES, {"instances": [["a"]]}, 400, "instances[0].text_a: Input should be a valid stri"),
        (CLASSES, {"instances": [{}]}, 400, "instances[0]: lacks text_a; an instance has text_a"),
        (CLASSES, {"instances": [PAIR]}, 400, 'instances[0]: has "text_b"; an instance has text_a'),
        (CLASSES, {"instances": [{"text_a": 5}]}, 400, "instances[0].text_a: Input should be a va"),
        (CLASSES, {"instances": [{"b64": "?"}]}, 400, "instances[0].text_a: b64 must be UTF-8 in"),
        (CLASSES, {"instances": [{"b64": "/w=="}]}, 400, "instances[0].text_a: b64 must be UTF-8"),
        (CLASSES, {"inputs": "a"}, 400, 'inputs.text_a: Input should be a valid list, not "a"'),
        (CLASSES, {"inputs": {}}, 400, "inputs: lacks text_a; an instance has text_a"),
        (CLASSES, {"inputs": {"text_a": "a"}}, 400, "inputs.text_a: Input should be a valid li"),
        (CLASSES, {"signature_name": "ids:serving_default", "instances": []}, 400,
         "signature_name: Input should be '', 'serving_default' or 'tensorflow/serving/predict', "),
        (CLASSES, {"instances": [dict.fromkeys("abc")]}, 400, "instances[0]: has more than two in"),
        (PAIRS, {"instances": ["a"]}, 400, "instances[0]: lacks text_b; an instance has text_a an"),
        (PAIRS, {"inputs": ["a"]}, 400, "inputs: lacks text_b; an instance has text_a and text_b"),
        (PAIRS, {"inputs": {"text_a": ["a"], "text_b": []}}, 400, "inputs: the lists have differe"),
        (EXAMPLES, {}, 400, "examples: Field required"),
        (EXAMPLES, {"examples": ["a"]}, 400, "examples[0]: Input should be a valid dictionary, no"),
        (EXAMPLES, {"examples": [], "context": 5}, 400, "context: Input should be a valid di"),
        (EXAMPLES, {"examples": [{"text_a": ["a", "b"]}]}, 400, "examples[0].text_a: Input should"),
        (EXAMPLES, {"instances": ["a"]}, 400, 'the key "instances" is not known; known are contex'),
        ("/v1/models/numbers:classify", {"examples": []}, 400,
         "classify: is for models of classes, not of regression; use :predict"),
        ("/v1/models/classes:regress", {"examples": []}, 400, "regress: is for models of numbers,"),
        ("/embed", {}, 400, "texts: Field required"),
        ("/embed", {"texts": "a"}, 400, 'texts: Input should be a valid list, not "a"'),
        (CLASSES.replace("predict", "fill"), {"instances": ["[MASK]"]}, 400,
         "fill: is for models of masked words, not of classification; use :predict"),
        (FILL, {"instances": ["[MASK]"], "top": 0}, 400, "top: Input should be greater than or"),
        (FILL, {"instances": ["[MASK]"], "top": 101}, 400, "top: Input should be less than or"),
        (FILL, {"instances": ["[MASK]" * 2048, {"text_a": "[MASK]" * 2049, "text_b": ""}]}, 400,
         "instances: 4097 [MASK] are more than 4096; send fewer"),
        (FILL, {"top": 1}, 400, "instances: Field required"),
        (FILL, {"instances": [{"text": "[MASK]"}]}, 400, "instances[0]: lacks text_a"),
        (FILL, {"instances": ["[MASK]"] * 1025}, 413, "1025 texts are more than 1024; send fewer"),
        ("/embed", {"texts": [["a"]]}, 400, "texts[0]: a list must have the two texts of a pair"),
        ("/embed", {"texts": [["a", 5]]}, 400, "texts[0][1]: Input should be a valid string, not"),
        ("/embed", {"texts": [5]}, 400, "texts[0]: Input should be a valid string, not 5"),
        ("/embed", {"texts": [], "model": "classes"}, 404,
         "the model 'classes', for vectors, is not served; served for vectors: vectors"),
        ("/v1/models/other:predict", {}, 404, "the model 'other' is not served; served are cla"),
        ("/v1/models/classes/versions/6:predict", {}, 404, "classes: version '6' is not served, b"),
        ("/v1/models/classes:explain", {}, 404, "/v1/models/classes:explain is not here; GET"),
        ("/v1/models/classes", {}, 405, "POST is not for /v1/models/classes; use GET"),
        ("/v2/models", {}, 404, "/v2/models is not here; GET /openapi.json lists the paths"),
    ],
)  # fmt: skip
def test_a_wrong_request_gets_a_sentence(client, path, body, status, message):
    got, values = client.post(path, body)
    assert (got, list(values)) == (status, ["error"])
    assert values["error"].startswith(message)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
@pytest.mark.parametrize(
    "path", [CLASSES, EXAMPLES, "/v1/models/classes/versions/7:regress", "/embed"]
)
def test_a_wrong_method_is_told_the_right_one(client, method, path):
    status, values, headers = client(method, path)
    assert (status, headers["allow"]) == (405, "POST")
    if method != "HEAD":  # whose answer has no body
        assert values == {"error": f"{method} is not for {path}; use POST"}


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/metrics", "/v1/models/classes"])
def test_the_head_of_an_answer(client, path):
    assert client("HEAD", path)[0] == 200


@pytest.mark.parametrize("path", ["/v1/models/other", "/v1/models/classes/versions/6", "/nothing"])
def test_what_is_not_there(client, path):
    status, values, _ = client("GET", path)
    assert status == 404 and list(values) == ["error"]


def test_limits(client):
    texts = {"instances": ["a"] * 1025}
    assert client.post(CLASSES, texts) == (
        413, {"error": "1025 texts are more than 1024; send fewer"}
    )  # fmt: skip
    long = b" " * ((8 << 20) + 1)
    message = "the body is longer than 8388608 bytes; send less at a time"
    assert client.post(CLASSES, long) == (413, {"error": message})
    connection = http.client.HTTPConnection("127.0.0.1", client.port)
    with contextlib.closing(connection):  # the length is not known in advance
        connection.request("POST", CLASSES, iter([long[:1000], long]), encode_chunked=True)
        assert connection.getresponse().status == 413


def test_the_windows_of_texts_are_limited_too():
    def answer(texts):
        sizes = [len(text) for text in texts]
        commands.check_windows(sum(sizes), len(texts), 4)
        return [served.label_of(text) for text in texts]

    with served.server({"classes": served.opened()._replace(answer=answer)}) as client:
        assert client.post(CLASSES, {"instances": ["ab", "c"]})[0] == 200
        assert client.post(CLASSES, {"instances": ["a"] * 5})[0] == 200
        message = "the texts are read in 5 windows, which are more than 4; send fewer or shorter te"
        status, body = client.post(CLASSES, {"instances": ["abcd", "e"]})
        assert status == 413 and body["error"].startswith(message)


def test_the_page(client):
    status, page, headers = client("GET", "/")
    assert status == 200 and headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in headers["content-security-policy"]
    # It is one file, which fetches nothing from elsewhere.
    assert not re.search(rb"(?:src|href)=(?![\"']?data:)|https?://|@import|url\(", page)


def test_the_description_of_all_requests(client):
    status, document, _ = client("GET", "/openapi.json")
    assert status == 200
    described = {
        (path, method): about
        for path, methods in document["paths"].items()
        for method, about in methods.items()
    }
    model = "/v1/models/{name}"
    version = model + "/versions/{version}"
    answered = {(path, "get") for path in ("/", "/health", "/ready", "/metrics", "/v1/models")}
    answered |= {(path, "get") for path in (model, version)}
    asked = {(f"{m}:{v}", "post") for m in (model, version) for v in bodies.BODIES if v != "embed"}
    asked |= {("/embed", "post")}
    assert set(described) == answered | asked
    for (path, method), about in described.items():
        assert about["summary"] and list(about["responses"]) == ["200", "default"]
        named = [parameter["name"] for parameter in about.get("parameters", ())]
        assert named == re.findall(r"{(\w+)}", path)
        assert about.get("requestBody", {}).get("required", False) == (method == "post")
    shape = described[f"{model}:predict", "post"]["requestBody"]["content"]["application/json"]
    assert list(shape["schema"]["properties"]) == ["signature_name", "instances", "inputs"]


def test_metrics(client):
    before = metrics_of(client)
    client.post(CLASSES, {"instances": ["a", "b"]})
    client.post(CLASSES, {})
    client.post("/v1/models/other:predict", {})
    after = metrics_of(client)
    counted = {name: value - before.get(name, 0) for name, value in after.items()}
    assert counted['requests_total{model="classes",status="200",verb="predict"}'] == 1
    assert counted['requests_total{model="classes",status="400",verb="predict"}'] == 1
    assert counted['requests_total{model="",status="404",verb="predict"}'] == 1
    assert counted['texts_total{model="classes"}'] == 2
    assert counted['batch_texts_bucket{le="1.0",model="classes"}'] == 0
    assert counted['batch_texts_bucket{le="2.0",model="classes"}'] == 1
    assert counted['batch_texts_bucket{le="+Inf",model="classes"}'] == 1
    assert counted['request_seconds_count{model="classes",verb="predict"}'] == 2
    assert after['model_info{kind="classification",model="classes",version="7"}'] == 1
    assert after['queue_texts{model="classes"}'] == 0


def metrics_of(client):
    """Returns the metrics by name and labels, after a look at their format."""
    status, text, headers = client("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in text.decode().splitlines() if not line.startswith("# ")]
    matches = [
        re.fullmatch(r'bert_serve_(\w+(?:\{\w+="[^"]*"(?:,\w+="[^"]*")*\})?) (\S+)', line)
        for line in lines
    ]
    return {match[1]: float(match[2]) for match in matches}


def test_a_token():
    with served.server(token="secret") as client:
        for path in ("/", "/health", "/ready", "/openapi.json"):
            assert client("GET", path)[0] == 200
        for token in ("", "secret", "Bearer ", "Bearer wrong", "Bearer secretly", "Bearer \xe9"):
            headers = {"Authorization": token} if token else {}
            for method, path in (("GET", "/v1/models"), ("GET", "/metrics"), ("POST", CLASSES)):
                status, values, answer = client(method, path, None, headers)
                assert status == 401 and answer["www-authenticate"] == "Bearer"
                assert values["error"].startswith("this server wants its token, in the header Auth")
        right = {"Authorization": "Bearer secret"}
        assert client("GET", "/v1/models", None, right)[0] == 200
        assert client("POST", CLASSES, {"instances": ["a"]}, right)[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8501", 200),
        ("localhost", 200),
        ("LOCALHOST:80", 200),
        ("[::1]:8501", 200),
        ("[::1]", 200),
        ("evil.example:8501", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost:80:80", 403),
        ("", 403),
    ],
)
def test_a_page_of_a_stranger_cannot_ask(host, status):
    with served.server(names=("127.0.0.1", "localhost", "[::1]")) as client:
        for method, path in (("GET", "/v1/models"), ("GET", "/metrics"), ("POST", CLASSES)):
            body = {"instances": ["a"]} if method == "POST" else None
            code, values, _ = client(method, path, body, {"Host": host})
            assert code == status
            if status == 403:
                assert values["error"].startswith("this server is for programs on its machine, wh")
        assert client("GET", "/health", None, {"Host": host})[0] == 200


# Faults


class Gate:
    """Makes a model that answers when it is told to."""

    def __init__(self, answer=served.label_of):
        self.open, self.batches, self._answer = threading.Event(), [], answer
        self.model = served.opened(answer=answer)._replace(answer=self._answers)

    def _answers(self, texts):
        self.batches.append(list(texts))
        assert self.open.wait(30)
        return list(map(self._answer, texts))

    def wait(self, number=1):
        until(lambda: len(self.batches) >= number)


class Asking(threading.Thread):
    """Sends a text in a thread; has the answer as `answer` when it has ended."""

    def __init__(self, client, text):
        super().__init__()
        self._client, self._text = client, text
        self.start()

    def run(self):
        self.answer = self._client.post("/v1/models/slow:predict", {"instances": [self._text]})


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open.set()


def waiting(client):
    return client.service.models["slow"].batcher.num_waiting


def test_a_full_queue_is_429(gate):
    with served.server({"slow": gate.model}, queue_size=3) as client:
        asking = [Asking(client, "x")]
        gate.wait()
        asking += [Asking(client, text) for text in "abc"]
        until(lambda: waiting(client) == 3)
        status, values, headers = client("POST", "/v1/models/slow:predict", {"instances": ["d"]})
        assert (status, headers["retry-after"]) == (429, "1")
        assert values["error"] == "3 texts are waiting, and the queue holds 3; try again later"
        gate.open.set()
        for thread in asking:
            thread.join()
            assert thread.answer[0] == 200


def test_the_text_of_a_client_that_is_gone_is_not_computed(gate):
    with served.server({"slow": gate.model}) as client:
        first = Asking(client, "x")
        gate.wait()
        body = b'{"instances": ["gone"]}'
        head = "POST /v1/models/slow:predict HTTP/1.1\r\nHost: a\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", client.port)) as killed:
            killed.sendall(head.encode() + body)
            until(lambda: waiting(client) == 1)
        second = Asking(client, "y")
        until(lambda: waiting(client) == 2)
        until(lambda: 'status="499"' in client("GET", "/metrics")[1].decode())
        gate.open.set()
        for thread in (first, second):
            thread.join()
            assert thread.answer[0] == 200
        assert gate.batches == [["x"], ["y"]]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET",
        b"POST /v1/models/slow:predict HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET / HTTP/9\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST /embed HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /%ff%00 HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_garbage_and_silence_disturb_nobody(client, data, capfd):
    with socket.create_connection(("127.0.0.1", client.port)) as connection:
        connection.sendall(data)
        assert client.post(CLASSES, {"instances": ["a"]})[0] == 200
    assert client.post(CLASSES, {"instances": ["a"]})[0] == 200
    assert capfd.readouterr().err == ""


def test_a_body_that_does_not_arrive_is_408(monkeypatch):
    monkeypatch.setattr(app, "_BODY_SECS", 0.05)
    with (
        served.server() as client,
        socket.create_connection(("127.0.0.1", client.port)) as connection,
    ):
        head = f"POST {CLASSES} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{{"
        connection.sendall(head.encode())
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        assert b"the body did not arrive within" in answer.read()


def test_a_model_that_fails_is_500_and_goes_on(capfd):
    def answer(text):
        if text == "bad":
            raise RuntimeError("the graph is broken")
        return served.label_of(text)

    with served.server({"slow": served.opened(answer=answer)}) as client:
        path = "/v1/models/slow:predict"
        assert client.post(path, {"instances": ["bad"]}) == (
            500, {"error": "the model failed: the graph is broken"}
        )  # fmt: skip
        assert client.post(path, {"instances": ["good"]})[0] == 200
    assert "RuntimeError: the graph is broken" in capfd.readouterr().err


def test_the_end_answers_what_was_accepted(gate):
    with served.server({"slow": gate.model}, queue_size=100) as client:
        asking = [Asking(client, "x")]
        gate.wait()
        asking += [Asking(client, f"{number}") for number in range(10)]
        until(lambda: waiting(client) == 10)
        slow = socket.create_connection(("127.0.0.1", client.port))
        head = b"POST /v1/models/slow:predict HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\n{"
        slow.sendall(head)
        idle = socket.create_connection(("127.0.0.1", client.port))
        until(lambda: len(client.service._reading) == 1)
        client.server.should_exit = True
        until(lambda: client.service.is_closing)
        refused = 503, {"error": "the server is about to end; ask another one"}
        assert client.post("/v1/models/slow:predict", {"instances": ["late"]}) == refused
        status, _, headers = client("GET", "/ready")
        assert (status, headers["connection"]) == (503, "close")
        answer = http.client.HTTPResponse(slow)
        answer.begin()
        assert answer.status == 503
        gate.open.set()
        for thread in asking:
            thread.join()
            assert thread.answer[0] == 200
        assert idle.recv(10) == b""
        idle.close()
        slow.close()


def test_a_request_on_an_open_connection_is_refused_at_the_end():
    with served.server() as client:
        connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
        with contextlib.closing(connection):
            for status in (200, 503):
                connection.request("POST", CLASSES, b'{"instances": ["a"]}')
                answer = connection.getresponse()
                assert (answer.status, b"about to end" in answer.read()) == (status, status == 503)
                client.server.should_exit = True
                until(lambda: client.service.is_closing)


def test_a_client_that_does_not_read_does_not_hold_the_end(monkeypatch, capfd):
    monkeypatch.setattr(app, "_LAST_SECS", 0.2)
    vector = np.zeros(1 << 20, np.float32)
    model = served.opened("vectors", lambda text: {"vector": vector}, ("text_a", "text_b"), 1)
    with socket.socket() as slow, served.server({"vectors": model}) as client:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        slow.connect(("127.0.0.1", client.port))
        body = b'{"texts": ["a", "b", "c"]}'
        head = f"POST /embed HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        slow.sendall(head.encode() + body)
        assert slow.recv(12) == b"HTTP/1.1 200"
        # The server ends before the client.
    assert capfd.readouterr().err == ""
