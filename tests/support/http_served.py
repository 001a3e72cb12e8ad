"""A server in this process whose models are functions, and requests to it over HTTP."""

import contextlib
import http.client
import json
import socket
import threading

import numpy as np

from bert_estimator.serving.server import app, models
from bert_estimator.serving.server.models import Inputs, Opened

LABELS = ("low", "high")


def label_of(text):
    """Answers a text as a classifier does; its length decides."""
    share = len("".join(text)) % 11 / 10
    return {
        "label": LABELS[share > 0.5],
        "labels": list(LABELS),
        "probabilities": [1 - share, share],
        "logits": [0.0, share],
    }


def opened(kind="classification", answer=label_of, inputs=("text_a",), num_needed=None, **changes):
    """Returns an `Opened` model, whose `answer` is a function of one text."""
    outputs = tuple(answer(inputs if len(inputs) > 1 else inputs[0]))
    values = {
        "kind": kind,
        "inputs": Inputs(inputs, num_needed or len(inputs)),
        "outputs": outputs,
        "labels": LABELS,
        "max_seq_length": 16,
        "directory": "/exports/7",
        "answer": lambda texts: list(map(answer, texts)),
        "num_cut": lambda: 0,
        "close": lambda: None,
        **changes,
    }
    return Opened(**values)


def vector_of(text):
    return {"vector": np.float32([len(text), isinstance(text, tuple), 0.5])}


def filled(asked):
    """Answers (text, top) as a network does, with the words of LABELS."""
    words = [{"word": LABELS[1], "probability": 0.75}, {"word": LABELS[0], "probability": 0.25}]
    return [{"masks": [words[:top]] * "".join(text).count("[MASK]")} for text, top in asked]


# Every kind of model, by name.
MODELS = {
    "classes": opened(),
    "pairs": opened(inputs=("text_a", "text_b")),
    "several": opened("multi_label", lambda text: {
        name: value for name, value in label_of(text).items() if name != "label"}),
    "numbers": opened("regression", lambda text: {
        "number": float(len(text)), "logits": [float(len(text))]}),
    "tags": opened("tagging", lambda text: {
        "words": text.split(), "tags": ["low" for _ in text.split()], "labels": list(LABELS),
        "probabilities": [[0.75, 0.25] for _ in text.split()],
    }),
    "questions": opened("question_answering", lambda text: {
        "answer": text[1][:3], "start": 0, "end": 3, "probability": 0.5}, ("question", "context")),
    "vectors": opened("vectors", vector_of, ("text_a", "text_b"), 1, fill=filled),
}  # fmt: skip


class Client:
    """Sends requests to a server."""

    def __init__(self, port, server, service):
        self.port, self.server, self.service = port, server, service

    def __call__(self, method, path, body=None, headers=None):
        """Returns (status, JSON of the answer or its text, headers)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            data = json.dumps(body) if isinstance(body, dict | list) else body
            connection.request(method, path, data, headers or {})
            answer = connection.getresponse()
            content = answer.read()
        if content and answer.headers.get("content-type") == "application/json":
            return answer.status, json.loads(content), answer.headers
        return answer.status, content, answer.headers

    def post(self, path, body, **headers):
        """Returns (status, JSON of the answer)."""
        return self("POST", path, body, headers)[:2]


class _Model(models.ServedModel):
    async def look(self):
        """Does nothing: the directory of the model is not there."""


@contextlib.contextmanager
def server(opened_models=None, batch_size=4, queue_size=8, **options):
    """Runs a server of models, name -> `Opened`; yields its `Client`."""
    opened_models = opened_models or MODELS

    def open_models(report):
        return [
            _Model(
                name,
                name,
                opened_models.__getitem__,
                batch_size,
                queue_size,
                lambda batch, name=name: report(name, batch),
            )
            for name in opened_models
        ]

    service = app.Service(open_models, **options)
    running = app.Server(service)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Client(port, running, service)
        finally:
            running.should_exit = True
            thread.join()
