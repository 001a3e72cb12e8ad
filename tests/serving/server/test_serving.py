"""`bert-serve` as a process, with real models: answers, signals, ports, newer exports."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import forked
import numpy as np
import pytest
import task_runs
from fixtures import DATA

from bert_estimator.serving.client import BertClient
from bert_estimator.serving.embedder import Embedder
from bert_estimator.serving.exported_model import find
from bert_estimator.serving.predictor import Predictor
from bert_estimator.serving.server import __main__ as serve
from bert_estimator.serving.server import models

ENCODER = DATA / "hf_encoder"
COMMAND = [sys.executable, "-m", "bert_estimator.serving.server"]
TEXTS = [("w1 w2", "w3"), ("w20 w21", "w3 w4")]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Makes a run for classification of pairs, with an exported model."""
    path = tmp_path_factory.mktemp("run")
    task_runs.write_data(path)
    task_runs.train(path, path / "mrpc", "classification", "--do_export")
    return path / "mrpc"


def is_said(line):
    """Returns whether a line of standard error is not TensorFlow's chatter."""
    return not re.match(r"[IWE]\d{4} |WARNING: All log messages", line)


class Running:
    """Runs a server in a process of its own."""

    def __init__(self, *arguments, start=forked.start, **options):
        self.process = start(
            [*COMMAND, *map(str, arguments), "--port=0"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
        )  # fmt: skip
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            if match := re.match(r"Serving on http://127.0.0.1:(\d+)/ until Ctrl-C", line):
                self.port = int(match[1])
                return
        raise AssertionError(self.process.communicate()[1])

    def post(self, path, body):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def status(self, name):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models/{name}") as answer:
            return json.load(answer)["model_version_status"][0]

    def stop(self, number=signal.SIGTERM):
        """Sends a signal; returns (exit code, what it said on standard error)."""
        self.process.send_signal(number)
        code = self.process.wait(60)
        return code, "".join(filter(is_said, self.process.stderr))


def starting(program):
    """Returns a function for `Running` that runs a program in place of the command."""

    def start(command, **options):
        return forked.start([sys.executable, "-c", program, *command[3:]], **options)

    return start


@contextlib.contextmanager
def running(*arguments, **options):
    server = Running(*arguments, **options)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
        server.process.stdout.close()
        server.process.stderr.close()


def test_it_answers_as_the_models_do(run):
    with running(run, f"encoder={ENCODER}") as server:
        assert server.lines[0] == f"mrpc: classification, from {find(str(run))}\n"
        instances = [{"text_a": a, "text_b": b} for a, b in TEXTS]
        predictions = server.post("/v1/models/mrpc:predict", {"instances": instances})
        for answer, expected in zip(
            predictions["predictions"], Predictor(str(run))(TEXTS), strict=True
        ):
            assert answer["label"] == expected["label"]
            probabilities = dict(zip(answer["labels"], answer["probabilities"], strict=True))
            assert probabilities == pytest.approx(expected["probabilities"], abs=1e-6)
        vectors = BertClient(port=server.port).encode(["hello", "a b"])
        np.testing.assert_allclose(vectors, Embedder(str(ENCODER))(["hello", "a b"]), atol=1e-5)
        code, err = server.stop()
        assert code == 143
        assert err == (
            "\nSIGTERM: the server answers what it has accepted, and ends. Send it again to exit "
            "at once.\n"
        )


@pytest.mark.slow
def test_ctrl_c_is_130():
    with running(ENCODER) as server:
        code, err = server.stop(signal.SIGINT)
        assert code == 130 and err.endswith("serve: stopped.\n"), err


def test_a_signal_under_load_loses_nothing_that_was_accepted():
    program = (
        "import sys, prometheus_client; "
        "from bert_estimator.serving.server import app, __main__; "
        "services, make = [], app.Service; "
        "app.Service = lambda *args: services.append(make(*args)) or services[0]; "
        "code = __main__.main(sys.argv); "
        "metrics = prometheus_client.generate_latest(services[0]._metrics.registry); "
        "print(metrics.decode()); sys.exit(code)"
    )
    with running(ENCODER, "--batch_size=2", start=starting(program)) as server:
        outcomes = []

        def ask():
            while True:
                try:
                    server.post("/embed", {"texts": ["a b c", "d"]})
                    outcomes.append(200)
                except urllib.error.HTTPError as error:
                    outcomes.append(error.code)
                    error.close()
                except OSError as error:  # the server does not listen any more
                    outcomes.append(getattr(error, "reason", error))
                    return

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        while outcomes.count(200) < 50:
            time.sleep(0.01)
        code, err = server.stop()
        for thread in threads:
            thread.join()
        assert (code, err.count("\n")) == (143, 2), err
        computed = re.search(r"texts_total{.*} (\d+)", server.process.stdout.read())
    # Every text that was computed has reached its client.
    assert 2 * outcomes.count(200) == int(computed[1])
    others = {outcome for outcome in outcomes if outcome not in (200, 503)}
    assert all(isinstance(error, ConnectionError) for error in others), others


@pytest.mark.slow
def test_two_servers_and_a_port_that_is_taken(capsys):
    with running(ENCODER) as first, running(ENCODER) as second:
        assert first.port != second.port
        assert serve.main(["bert-serve", str(ENCODER), f"--port={first.port}"]) == 2
        assert capsys.readouterr().err == (
            f"serve: --port={first.port}: Address already in use, on 127.0.0.1; choose another "
            "port, or --port=0 for any free port\n"
        )


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once():
    program = (
        "import sys, threading; from bert_estimator.serving.server import app, __main__, models; "
        "opening = models.open_model; "
        "waits = lambda texts: threading.Event().wait(100); "
        "models.open_model = lambda *a, **b: opening(*a, **b)._replace(answer=waits); "
        "sys.exit(__main__.main(sys.argv))"
    )
    with running(ENCODER, start=starting(program)) as server:
        asking = threading.Thread(target=ask_for_nothing, args=[server])
        asking.start()
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/ready") as answer:
            assert answer.status == 200
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        said = filter(is_said, server.process.stderr)
        assert next(said) == "\n" and next(said).startswith("SIGTERM: the server answers what")
        time.sleep(0.2)
        assert server.process.poll() is None
        assert server.stop()[0] == 143
        asking.join()


def ask_for_nothing(server):
    with contextlib.suppress(OSError):
        server.post("/embed", {"texts": ["never"]})


def test_names():
    assert models.name_of("/a/runs/mrpc/") == "mrpc"
    assert models.name_of("/a/runs/mrpc/export/1795362936") == "mrpc"
    assert models.name_of("gs://bucket/mrpc/export/") == "mrpc"
    assert models.name_of("/a/my model.ckpt-7") == "my_model.ckpt-7"
    assert serve._named(["a/b", "c=a/b=d"]) == {"b": "a/b", "c": "a/b=d"}


def test_tokens(tmp_path, monkeypatch):
    monkeypatch.delenv("BERT_SERVE_TOKEN", raising=False)
    assert serve._token(None) == ""
    monkeypatch.setenv("BERT_SERVE_TOKEN", "of-the-environment")
    assert serve._token(None) == "of-the-environment"
    (tmp_path / "token").write_text("of-the-file\n")
    assert serve._token(str(tmp_path / "token")) == "of-the-file"
    for bad, message in (("", "is empty"), ("a b", "must be printable"), ("\xe9", "must be print")):
        (tmp_path / "token").write_text(bad)
        with pytest.raises(ValueError, match=message):
            serve._token(str(tmp_path / "token"))


def test_without_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "bert_estimator.serving.server.app", None)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    monkeypatch.delitem(sys.modules, "bert_estimator.serving.server.app")
    monkeypatch.delattr("bert_estimator.serving.server.app", raising=False)
    assert serve.main(["bert-serve", str(ENCODER), "--port=0"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("serve: the server needs fastapi, prometheus_client and uvicorn (")
    assert err.endswith("Install them: pip install 'bert-estimator[serve]'\n")
