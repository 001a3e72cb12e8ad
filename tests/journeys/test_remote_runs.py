"""Runs in remote storage: killed, stopped and resumed on a machine that has nothing of them."""

import contextlib
import functools
import json
import os
import random
import shutil
import signal
import socket
import tempfile

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from bucket import Bucket
from kills import Killed, kill_at_transfer
from scripts import CLASSIFIER, PRETRAINING, SQUAD, TAGGER, end, start
from tiny_run import metrics_of, sorted_metrics

from bert_estimator.interchange import __main__ as convert
from bert_estimator.serving.embedder import Embedder
from bert_estimator.serving.predictor import Predictor
from bert_estimator.storage import remote

SCRIPTS = {"pretraining": PRETRAINING, "labels": CLASSIFIER, "tags": TAGGER, "answers": SQUAD}


@pytest.fixture(scope="module")
def data_of(tmp_path_factory):
    """Makes the data of a script, and a run in a local directory that was not stopped, once."""
    made = {}

    def of(name, last=8):
        if (name, last) not in made:
            made[name, last] = path = tmp_path_factory.mktemp(name)
            SCRIPTS[name].write_data(path)
            assert run(name, flags(name, path, path / "whole", last)) == 0
        return made[name, last]

    return of


@pytest.fixture(autouse=True)
def local(tmp_path, monkeypatch):
    """Returns the directory of local copies."""
    os.makedirs(tmp_path / "local")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "local"))
    return tmp_path / "local"


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("the stand-in for Google Cloud Storage needs openssl")
    made = Bucket(tmp_path_factory.mktemp("certificate"))
    yield made
    made.close()


def flags(name, data, output_dir, last=8, **changes):
    script = SCRIPTS[name]
    # LARS has the smallest graph.
    own = {"optimizer": "lars"} if script is PRETRAINING else {"do_export": True}
    is_long = last > 4  # A short run is for quick tests: most of its time would go to evaluations.
    own |= {"do_train": True, "do_eval": is_long, "keep_best_checkpoint": is_long}
    return script.flags(
        data, output_dir, **script.steps(last), **{"save_checkpoints_steps": 2, **own, **changes}
    )


def run(name, flags):
    tf.summary.FileWriterCache.clear()
    code = SCRIPTS[name].main(flags)
    tf.summary.FileWriterCache.clear()
    return code


def check_same(folder, whole):
    """Checks that two directories hold the same run."""
    assert checkpoints(folder) == checkpoints(whole)
    assert best_of(folder) == best_of(whole)
    newest = max(checkpoints(whole), key=lambda name: int(name.split("-")[-1]))
    prefixes = [(prefix, prefix) for prefix in (newest, *best_of(whole))]
    # The time is a part of an exported model's path.
    prefixes += zip(exported(folder)[-1:], exported(whole), strict=True)
    for found, expected in prefixes:
        found, expected = (
            tf.train.load_checkpoint(str(p)) for p in (folder / found, whole / expected)
        )
        shapes = expected.get_variable_to_shape_map()
        assert found.get_variable_to_shape_map() == shapes
        for name in shapes:
            np.testing.assert_array_equal(found.get_tensor(name), expected.get_tensor(name), name)
    assert sorted_metrics(folder) == sorted_metrics(whole)
    for name in ("best/best.json", "bert_config.json", "task.json", "eval_results.txt"):
        if (whole / name).exists():
            assert (folder / name).read_text() == (whole / name).read_text()


def checkpoints(folder):
    names = [name for name in os.listdir(folder) if name.startswith("model.ckpt-")]
    return {name.rpartition(".")[0] for name in names if name.endswith(".index")}


def best_of(folder):
    names = checkpoints(folder / "best") if (folder / "best").exists() else ()
    return [f"best/{name}" for name in names]


def exported(folder):
    names = sorted(os.listdir(folder / "export")) if (folder / "export").exists() else []
    return [f"export/{number}/variables/variables" for number in names]


def copied(url, folder):
    for name in remote.files(url):
        remote.download(f"{url}/{name}", str(folder / name))
    return folder


@pytest.fixture(scope="module")
def num_writes(data_of):
    """Returns how many uploads and removals a run to step 8 has, by runs that are not killed."""
    counted = {}

    def of(name, tmp_path):
        if name not in counted:
            url = f"ram:/{tmp_path}/not_killed"
            with pytest.MonkeyPatch.context() as patched:
                calls = kill_at_transfer(patched)
                assert run(name, flags(name, data_of(name), url)) == 0
                counted[name] = len(calls)
            check_same(copied(url, tmp_path / "not_killed"), data_of(name) / "whole")
        return counted[name]

    return of


def test_a_run_that_was_killed_between_uploads_ends_as_a_whole_one(
    data_of, tmp_path, monkeypatch, capsys
):
    check_killed("pretraining", 4, 19, data_of, tmp_path, monkeypatch, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("percent", [3, 10, 17, 26, 38, 52, 66, 82, 98])
def test_a_run_that_was_killed_anywhere_ends_as_a_whole_one(
    data_of, num_writes, tmp_path, monkeypatch, capsys, name, percent
):
    """How many uploads a run has depends on how often another checkpoint becomes the best one."""
    number = num_writes(name, tmp_path) * percent // 100
    check_killed(name, 8, number, data_of, tmp_path, monkeypatch, capsys)


def check_killed(name, last, number, data_of, tmp_path, monkeypatch, capsys):
    """Kills a run at an upload of this number, and checks what becomes of it when it is resumed."""
    data, url = data_of(name, last), f"ram:/{tmp_path}/run"
    with monkeypatch.context() as patched:
        calls = kill_at_transfer(patched, number)
        with contextlib.suppress(Killed):
            run(name, flags(name, data, url, last))
        assert len(calls) > number
    # This process still runs, so owner.json names a process that another machine cannot ask about.
    capsys.readouterr()
    assert run(name, flags(name, data, url, last)) == 2
    assert "has ended, as after a crash of its machine, add --take_over" in capsys.readouterr().err
    assert run(name, flags(name, data, url, last, take_over=True)) == 0
    printed = capsys.readouterr()
    assert tempfile.gettempdir() not in printed.out + printed.err
    assert f"metrics: {url}/metrics.jsonl" in printed.out
    check_same(copied(url, tmp_path / "copy"), data / "whole")
    settings = json.loads(remote.read(f"{url}/config.json"))["flags"]
    assert settings["output_dir"]["value"] == url


def dumped(bucket, prefix, folder):
    """Writes the objects below a prefix into a directory."""
    for name in bucket.names(prefix):
        os.makedirs((folder / name).parent, exist_ok=True)
        (folder / name).write_bytes(bucket.objects[prefix + name])
    return folder


def start_on(bucket, name, flags, machine, step=None, action="pass", **environment):
    """Starts a script as on another machine, which is a directory of local copies."""
    os.makedirs(machine, exist_ok=True)
    environment = {**bucket.environment, "TMPDIR": str(machine), **environment}
    return start(SCRIPTS[name], flags, step, action, environment)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_that_is_killed_at_any_upload_resumes_on_a_fresh_machine(
    data_of, bucket, tmp_path, name, seed
):
    """Each of up to 5 processes is killed before or during one of its uploads, by `kill -9`."""
    data, generator = data_of(name), random.Random(f"{name} {seed}")
    prefix, codes = f"bucket/{name}-{seed}/", []
    for number in range(9):
        process = start_on(
            bucket, name, flags(name, data, f"gs://{prefix}"[:-1]), tmp_path / f"machine-{number}"
        )
        writes, last = [], generator.randrange(1, 25)

        def kill(written, process=process, writes=writes, last=last, is_on=number < 5):
            if written.startswith(prefix):
                writes.append(written)
            if is_on and len(writes) == last:
                os.kill(process.pid, signal.SIGKILL)

        bucket.before_write = kill
        code, error = end(process)
        codes.append(code)
        assert code in (0, -signal.SIGKILL), error
        if code == 0:
            break
    bucket.before_write = lambda name: None
    assert codes[-1] == 0 and len(codes) > 2
    assert os.listdir(tmp_path / f"machine-{len(codes) - 1}") == []
    assert "owner.json" not in bucket.names(prefix)
    check_same(dumped(bucket, prefix, tmp_path / "copy"), data / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pretraining", "labels"])
def test_a_signal_uploads_what_there_is_before_the_process_ends(data_of, bucket, tmp_path, name):
    data, prefix = data_of(name), f"bucket/signalled-{name}/"
    given = flags(name, data, f"gs://{prefix}", save_checkpoints_steps=100)
    action = "os.kill(os.getpid(), signal.SIGTERM)"
    process = start_on(bucket, name, given, tmp_path / "1", 4, action)
    code, error = end(process)
    assert code == 143, error
    names = bucket.names(prefix)
    assert "owner.json" not in names and {"checkpoint", "metrics.jsonl"} <= names
    (step,) = {n.split("-")[1].split(".")[0] for n in names if n.startswith("model.ckpt-4")}
    assert step == "4" and os.listdir(tmp_path / "1") == []
    code, error = end(start_on(bucket, name, flags(name, data, f"gs://{prefix}"), tmp_path / "2"))
    assert code == 0, error
    assert "Training from step 4 (restored from gs://bucket/signalled" in error


OF_HOSTS = {"tpu_name": "rehearse:2", "do_eval": True, "keep_best_checkpoint": False}


def tf_configs():
    """Returns task -> TF_CONFIG of two hosts, at ports that are free."""
    ports = []
    for _ in range(2):
        with socket.socket() as one:
            one.bind(("localhost", 0))
            ports.append(one.getsockname()[1])
    cluster = {"chief": [f"localhost:{ports[0]}"], "worker": [f"localhost:{ports[1]}"]}
    return {
        task: json.dumps({"cluster": cluster, "task": {"type": task, "index": 0}})
        for task in cluster
    }


def train_on_hosts(bucket, data, prefix, last, tmp_path, configs):
    """Trains until a step on two hosts, each with a machine's directory of its own."""
    given = flags("pretraining", data, f"gs://{prefix}", last, **OF_HOSTS)
    processes = [
        start_on(bucket, "pretraining", given, tmp_path / f"{task}-{last}", TF_CONFIG=config)
        for task, config in configs.items()
    ]
    ends = [end(process) for process in processes]
    assert [code for code, _ in ends] == [0, 0], ends


@pytest.mark.slow
@pytest.mark.usefixtures("xla_runtime")
def test_hosts_that_take_over_start_from_one_step(data_of, bucket, tmp_path):
    """The owner before uploads its step 6 when one host has copied its step 4."""
    data, prefix, configs, at = data_of("pretraining"), "bucket/taken/", tf_configs(), {}
    for last in (4, 6):
        train_on_hosts(bucket, data, prefix, last, tmp_path, configs)
        at[last] = {name: bucket.objects[prefix + name] for name in bucket.names(prefix)}

    def put(objects):
        for name in bucket.names(prefix) - set(objects):
            del bucket.objects[prefix + name]
        for name, content in objects.items():
            bucket.put(prefix + name, content)

    put({**at[4], "owner.json": b'{"pid": 12, "host": "lost", "token": "x"}'})
    given = [*flags("pretraining", data, f"gs://{prefix}", 8, **OF_HOSTS), "--take_over"]
    start_host = functools.partial(start_on, bucket, "pretraining", given)
    worker = start_host(tmp_path / "worker-8", TF_CONFIG=configs["worker"])
    # It asks for the chief when it has copied the run, and asks again if the connection ends.
    address = json.loads(configs["chief"])["cluster"]["chief"][0]
    with socket.create_server(("localhost", int(address.rpartition(":")[2]))) as chief:
        chief.settimeout(240)
        chief.accept()[0].close()
    put({**at[6], "owner.json": b'{"pid": 12, "host": "lost", "token": "x"}'})
    chief = start_host(tmp_path / "chief-8", TF_CONFIG=configs["chief"])
    for code, error in map(end, (chief, worker)):
        assert code == 0 and "Training from step 6 " in error, error
    assert "owner.json" not in bucket.names(prefix)
    steps = [record["step"] for record in metrics_of(dumped(bucket, prefix, tmp_path / "copy"))]
    assert sorted({*steps}) == [0, 1, 2, 4, 6, 8]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_results_beside_an_owner_that_may_have_ended(data_of, tmp_path, local, monkeypatch, name):
    """A machine was lost while it trained; its run is evaluated twice, and is then taken over."""
    data, url = data_of(name), f"ram:/{tmp_path}/run"
    for folder, _, files in os.walk(data / "whole"):
        for file in files:
            path = os.path.join(folder, file)
            remote.upload(path, f"{url}/{os.path.relpath(path, data / 'whole')}")
    owner = json.dumps({"pid": 12, "host": "lost", "token": "x"}).encode()
    remote.write(owner, f"{url}/owner.json")
    changes = {"do_train": False, "do_eval": True, "do_export": None, "keep_best_checkpoint": False}
    if name != "pretraining":
        ending = {"labels": "tsv", "tags": "conll", "answers": "json"}[name]
        changes |= {"do_predict": True, "predict_file": data / f"dev.{ending}"}
    expected = {
        "pretraining": set(),
        "labels": {"eval_results.txt", "eval_report.tsv", "test_results.tsv"},
        "tags": {"eval_results.txt", "eval_report.tsv", "test_results.conll"},
        "answers": {"eval_results.txt", "predictions.json", "nbest_predictions.json"},
    }
    for takes_over in (None, None, True):
        given = flags(name, data, url, **changes, take_over=takes_over)
        with monkeypatch.context() as patched:
            calls = kill_at_transfer(patched, names=["upload"])
            assert run(name, given) == 0
        uploaded = {to.removeprefix(f"{url}/") for _, to in calls}
        kept = {path.name for path in local.glob("bert_estimator_*/run/**/*") if path.is_file()}
        # The event files of evaluations in the same second have the same name.
        uploaded, kept = (
            {file for file in files if "events.out" not in file} for files in (uploaded, kept)
        )
        # The metrics of the step may be the same as before, and so may their picture.
        own = (uploaded | kept) & {"metrics.jsonl", "curves.svg"}
        assert uploaded == expected[name] | (own if takes_over else set())
        assert kept == (set() if takes_over else own)
        assert ("owner.json" in remote.files(url)) != bool(takes_over)
        shutil.rmtree(local)
        local.mkdir()


def test_a_remote_run_answers_and_is_converted(data_of, tmp_path):
    whole, url = data_of("labels", 4) / "whole", f"ram:/{tmp_path}/run"
    for path in whole.rglob("*"):
        if path.is_file():
            remote.upload(str(path), f"{url}/{path.relative_to(whole)}")
    assert Predictor(url)([["w1 w2", "w3"]]) == Predictor(str(whole))([["w1 w2", "w3"]])
    assert convert.main(["bert-convert", url, f"{tmp_path}/hf", "--to=hf"]) == 0
    expected = Embedder(str(whole))(["w1 w2"])
    for model in (url, f"{tmp_path}/hf"):
        np.testing.assert_allclose(Embedder(model)(["w1 w2"]), expected, atol=1e-6)
