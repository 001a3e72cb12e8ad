"""The mirror of a run in remote storage: what is uploaded, when, and by whom."""

import concurrent.futures
import contextlib
import errno
import itertools
import json
import os
import pathlib
import shutil
import signal
import socket
import tempfile
import threading

import numpy as np
import pytest

from bert_estimator.command_line.flags import FlagError
from bert_estimator.jobs import job_config
from bert_estimator.storage import mirror as mirror_lib
from bert_estimator.storage import remote
from bert_estimator.storage.mirror import FILE as OWNER
from bert_estimator.storage.mirror import Mirror
from bert_estimator.system import lock


@pytest.fixture(autouse=True)
def local(tmp_path, monkeypatch):
    """Returns the directory of local copies."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "local"))
    monkeypatch.setattr(remote.time, "sleep", lambda secs: None)
    os.makedirs(tmp_path / "local")
    return tmp_path / "local"


@pytest.fixture
def url(tmp_path):
    return f"ram:/{tmp_path}/run"


@pytest.fixture
def uploads(monkeypatch):
    """The names of the files that are uploaded, in order."""
    names, upload = [], remote.upload

    def noted(path, url):
        names.append(url.partition("/run/")[2])
        upload(path, url)

    monkeypatch.setattr(remote, "upload", noted)
    return names


def write(mirror, *names, text="a"):
    for name in names:
        path = os.path.join(mirror.path, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".new", "w") as writer:
            writer.write(text)
        os.replace(path + ".new", path)


def checkpoint(step, folder=""):
    ends = ("data-00000-of-00001", "index", "meta")
    return [f"{folder}model.ckpt-{step}.{end}" for end in ends]


def names_in(url):
    return set(remote.files(url))


def training(mirror):
    return mirror.followed(owns=True, takes_over=False)


def test_what_refers_to_a_file_is_uploaded_after_it(url, uploads):
    mirror = Mirror(url)
    with training(mirror):
        best = [*checkpoint(2, "best/"), "best/best.json", "best/task.json"]
        exported = ["export/1/saved_model.pb", "export/1/variables/variables.index"]
        write(mirror, "metrics.jsonl", "checkpoint", *checkpoint(2), *best, *exported)
        write(mirror, ".lock", "config.json.tmp", "export/temp-2/saved_model.pb")
        mirror.upload()
        mirror.wait()
        assert names_in(url) == {*uploads, OWNER}
    assert names_in(url) == set(uploads)
    assert not [name for name in uploads if "temp-" in name or "lock" in name or "tmp" in name]
    places = [
        ["metrics.jsonl", exported[1]],
        [best[0], best[2], "best/task.json"],
        [best[1]],
        ["best/best.json"],
        [checkpoint(2)[0], checkpoint(2)[2]],
        [checkpoint(2)[1]],
        ["checkpoint"],
        [exported[0]],
    ]
    order = iter(uploads)
    for place in places:
        assert sorted(itertools.islice(order, len(place))) == sorted(place)
    assert list(order) == []


def test_only_what_has_changed_is_uploaded_and_what_is_gone_is_removed(url, uploads, monkeypatch):
    """Files are removed between a checkpoint and the state file, which no longer lists them."""
    mirror, before, remove = Mirror(url), [], remote.remove

    def noted(url):
        before.append(set(uploads))
        remove(url)

    monkeypatch.setattr(remote, "remove", noted)
    with training(mirror):
        write(mirror, "config.json", "checkpoint", *checkpoint(2))
        mirror.upload()
        for name in checkpoint(2):
            os.remove(os.path.join(mirror.path, name))
        write(mirror, "checkpoint", *checkpoint(4), text="b")
        mirror.wait()
        uploads.clear()
        remote.write(b"mine", f"{url}/notes.txt")
        mirror.upload()
        mirror.wait()
        assert before == [set(checkpoint(4))] * len(checkpoint(2))
    assert sorted(uploads) == sorted(["checkpoint", *checkpoint(4)])
    assert names_in(url) == {"config.json", "checkpoint", *checkpoint(4), "notes.txt"}


def test_a_snapshot_is_of_one_instant(url, monkeypatch):
    mirror, upload = Mirror(url), remote.upload

    def later(path, url):
        write(mirror, "metrics.jsonl", text="later")
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(mirror.path, checkpoint(2)[0]))
        upload(path, url)

    with training(mirror):
        write(mirror, "metrics.jsonl", "checkpoint", *checkpoint(2), text="now")
        with monkeypatch.context() as patched:
            patched.setattr(remote, "upload", later)
            mirror.upload()
            mirror.wait()
        assert {remote.read(f"{url}/{name}") for name in names_in(url) - {OWNER}} == {b"now"}


def test_the_next_command_starts_from_what_was_uploaded(url, local):
    first = Mirror(url)
    events = ["events.out.tfevents.1", "eval/events.out.tfevents.2"]
    with first.followed(owns=True, takes_over=False):
        write(first, "metrics.jsonl", *checkpoint(2), *events, "export/1/saved_model.pb")
    assert os.listdir(local) == []
    second = Mirror(url + "/")
    copied = {
        os.path.relpath(os.path.join(folder, name), second.path)
        for folder, _, names in os.walk(second.path)
        for name in names
    }
    assert copied == {"metrics.jsonl", *checkpoint(2)}
    with second.followed(owns=True, takes_over=False):
        pass
    assert names_in(url) == {*copied, *events, "export/1/saved_model.pb"}


def test_a_directory_that_was_left_by_a_kill_is_removed(url, local):
    killed, kept = local / "killed", local / "kept"
    prefix = os.path.basename(Mirror(url)._local.path)[: -len("12345678")]
    for name, marker in ((killed, "run"), (kept, "kept")):
        os.makedirs(local / f"{prefix}{name.name}")
        (local / f"{prefix}{name.name}" / marker).write_text("")
    other = Mirror(url)
    assert os.path.isdir(other.path)
    left = sorted(name.removeprefix(prefix) for name in os.listdir(local))
    assert "kept" in left and "killed" not in left and len(left) == 3


def owner(url, **changes):
    described = json.loads(lock.description_of_this_process())
    remote.write(json.dumps({**described, "token": "x", **changes}).encode(), f"{url}/{OWNER}")


def test_one_process_trains_in_a_remote_directory(url, uploads):
    owner(url, host="another", pid=77, command="run_pretraining.py --a")
    refused = Mirror(url)
    with pytest.raises(lock.InUseError) as raised, refused.followed(True, False):
        pass
    message = str(raised.value)
    assert message.startswith(f"{url} is being written by process 77 on another since ")
    assert message.endswith(
        "(run_pretraining.py --a). One process writes there at a time: wait until it has ended, or "
        "write elsewhere. If that process has ended, as after a crash of its machine, add "
        "--take_over."
    )
    assert uploads == [] and json.loads(remote.read(f"{url}/{OWNER}"))["pid"] == 77
    with Mirror(url).followed(owns=True, takes_over=True):
        assert json.loads(remote.read(f"{url}/{OWNER}"))["pid"] == os.getpid()
    assert names_in(url) == set()


def test_an_owner_of_this_machine_that_has_ended_is_no_obstacle(url):
    owner(url, started=-1)  # Another process has its number now.
    with Mirror(url).followed(owns=True, takes_over=False):
        pass
    remote.write(b"not JSON", f"{url}/{OWNER}")
    with pytest.raises(lock.InUseError), Mirror(url).followed(True, False):
        pass


@pytest.mark.parametrize("is_removed", [False, True])
def test_whoever_was_taken_over_uploads_nothing_more(url, uploads, is_removed):
    mirror = Mirror(url)
    with (
        pytest.raises(lock.InUseError, match=r"was taken over by .*: this process does"),
        training(mirror),
    ):
        owner(url, host="another", command="stealing")
        if is_removed:
            remote.remove(f"{url}/{OWNER}")
        write(mirror, *checkpoint(2))
        mirror.upload()
        mirror.wait()
    assert uploads == []
    assert names_in(url) == (set() if is_removed else {OWNER})


RESULTS = (
    "eval_results.txt", "eval_report.tsv", "eval_report_mismatched.tsv", "test_results.tsv",
    "seed_2/test_results.conll", "predictions.json", "nbest_predictions.json", "null_odds.json",
)  # fmt: skip


def kept_in(local, name):
    """Returns what is kept of a run, in a directory of this name: file -> its text."""
    run = local / name / "run"
    return {
        os.path.relpath(os.path.join(folder, file), run): pathlib.Path(folder, file).read_text()
        for folder, _, files in os.walk(run)
        for file in files
    }


@pytest.mark.parametrize("is_there_before", [False, True])
@pytest.mark.parametrize("is_alive", [False, True])
def test_an_evaluation_uploads_its_results_and_keeps_what_the_owner_writes(
    url, uploads, caplog, local, is_alive, is_there_before
):
    """Nothing tells whether a process on another machine has ended."""
    with contextlib.ExitStack() as training:
        if is_alive:
            training.enter_context(Mirror(url).followed(owns=True, takes_over=False))
        else:
            owner(url, host="another", pid=12)
        for name in ("metrics.jsonl", "curves.svg", "checkpoint", *RESULTS[:: 1 + is_there_before]):
            remote.write(b"1", f"{url}/{name}")
        before = set(os.listdir(local))
        evaluation = Mirror(url)
        with evaluation.followed(owns=False, takes_over=False):
            write(evaluation, "metrics.jsonl", "curves.svg", *RESULTS, text="new")
        assert sorted(uploads) == sorted(RESULTS)
        assert all(remote.read(f"{url}/{name}") == b"new" for name in RESULTS)
        (kept,) = set(os.listdir(local)) - before
        assert kept_in(local, kept) == {"metrics.jsonl": "new", "curves.svg": "new"}
        assert remote.read(f"{url}/metrics.jsonl") == b"1"
        number, host = (os.getpid(), socket.gethostname()) if is_alive else (12, "another")
        assert f"curves.svg, metrics.jsonl: stays in {url} as it is. owner.json" in caplog.text
        assert f"owner.json names process {number} on {host} " in caplog.text
        assert "as the owner of the run. If that process has ended, add --take_over." in caplog.text
        assert (
            f"What was not uploaded is kept on this machine, below {local / kept}." in caplog.text
        )
        assert OWNER in names_in(url)


@pytest.mark.parametrize("of_owner", [None, "living", "lost"])
def test_an_evaluation_takes_a_run_over(url, uploads, caplog, local, of_owner):
    with contextlib.ExitStack() as stack:
        training = Mirror(url)
        if of_owner == "living":
            stack.enter_context(training.followed(owns=True, takes_over=False))
        elif of_owner == "lost":
            owner(url, host="another")
        for name in ("metrics.jsonl", "test_results.tsv"):
            remote.write(b"1", f"{url}/{name}")
        evaluation = Mirror(url)
        with evaluation.followed(owns=False, takes_over=True):
            # Without an owner there is nothing to take over, and a training may begin.
            assert (OWNER in names_in(url)) == (of_owner is not None)
            write(evaluation, "metrics.jsonl", "test_results.tsv", text="new")
        assert sorted(uploads) == ["metrics.jsonl", "test_results.tsv"]
        assert names_in(url) == set(uploads) and "kept" not in caplog.text
        uploads.clear()
        if of_owner == "living":
            write(training, "metrics.jsonl", text="older")
            with pytest.raises(lock.InUseError, match="was taken over by"):
                stack.close()
        assert not uploads and remote.read(f"{url}/metrics.jsonl") == b"new"


def test_an_evaluation_leaves_alone_what_a_training_has_written_since_it_began(
    url, uploads, caplog, local
):
    for name in ("metrics.jsonl", "eval_results.txt", "curves.svg", "removed"):
        remote.write(b"before", f"{url}/{name}")
    evaluation = Mirror(url)
    for name in ("metrics.jsonl", "eval_results.txt"):
        remote.write(b"a training that has ended", f"{url}/{name}")
    with evaluation.followed(owns=False, takes_over=False):
        write(evaluation, "metrics.jsonl", "eval_results.txt", "test_results.tsv", "curves.svg")
        os.remove(os.path.join(evaluation.path, "removed"))
    assert sorted(uploads) == ["curves.svg", "test_results.tsv"]
    assert remote.read(f"{url}/metrics.jsonl") == b"a training that has ended"
    assert names_in(url) == {"metrics.jsonl", "eval_results.txt", *uploads}
    said = f"eval_results.txt, metrics.jsonl: stays in {url} as it is. Another process has written"
    assert said in caplog.text
    (kept,) = os.listdir(local)
    assert kept_in(local, kept) == {"metrics.jsonl": "a", "eval_results.txt": "a"}


@pytest.mark.parametrize("takes_over", [False, True])
def test_a_run_goes_on_from_what_its_owner_wrote_after_the_command_began(url, takes_over):
    first = Mirror(url)
    with contextlib.ExitStack() as stack:
        stack.enter_context(first.followed(owns=True, takes_over=False))
        write(first, "metrics.jsonl", "checkpoint", "config.json", *checkpoint(2))
        first.upload()
        first.wait()
        second = Mirror(url)
        for name in checkpoint(2):
            os.remove(os.path.join(first.path, name))
        write(first, "metrics.jsonl", "checkpoint", *checkpoint(4), text="later")
        first.upload()
        first.wait()
        if not takes_over:
            stack.close()
        with second.followed(owns=True, takes_over=takes_over):
            names = {"metrics.jsonl", "checkpoint", *checkpoint(4)}
            assert set(os.listdir(second.path)) == {*names, "config.json"}
            for name in names:
                assert pathlib.Path(second.path, name).read_text() == "later"
            write(second, "checkpoint", *checkpoint(6))
            for name in checkpoint(4):
                os.remove(os.path.join(second.path, name))
        assert names_in(url) == {"metrics.jsonl", "checkpoint", "config.json", *checkpoint(6)}
        if takes_over:
            with pytest.raises(lock.InUseError):
                stack.close()


def test_a_copy_that_fails_after_the_claim_gives_the_run_free(url, monkeypatch):
    mirror = Mirror(url)
    remote.write(b"a", f"{url}/a")

    def fail(*_):
        raise remote.StorageError("no answer")

    monkeypatch.setattr(remote, "download", fail)
    with pytest.raises(remote.StorageError, match="no answer"), mirror.followed(True, False):
        pytest.fail("the block runs without a whole copy")
    assert names_in(url) == {"a"}


def test_what_changes_while_it_is_copied_is_copied_again(url, monkeypatch):
    """A training replaces its checkpoint while another command copies the run."""
    owner(url, host="another")
    for name in ("checkpoint", *checkpoint(2)):
        remote.write(b"2", f"{url}/{name}")
    download, copied = remote.download, []

    def replacing(source, path):
        if not copied:
            for name in checkpoint(2):
                remote.remove(f"{url}/{name}")
            for name in ("checkpoint", *checkpoint(4)):
                remote.write(b"44", f"{url}/{name}")
        copied.append(source)
        download(source, path)

    monkeypatch.setattr(remote, "download", replacing)
    evaluation = Mirror(url)
    assert set(os.listdir(evaluation.path)) == {"checkpoint", *checkpoint(4)}


def test_an_owner_that_changes_within_an_upload_ends_it_with_the_next_file(url, monkeypatch):
    mirror, upload, names = Mirror(url), remote.upload, []

    def stolen_after(path, target):
        upload(path, target)
        names.append(target)
        owner(url, host="another")

    monkeypatch.setattr(remote, "upload", stolen_after)
    with pytest.raises(lock.InUseError), training(mirror):
        write(mirror, "checkpoint", *checkpoint(2))
    assert names == [f"{url}/{checkpoint(2)[0]}"]


def fail_uploads(monkeypatch, times):
    upload, calls = remote.upload, []

    def failing(path, url):
        calls.append(url)
        if len(calls) <= times:
            raise remote.StorageError(f"{url}: gone")
        upload(path, url)

    monkeypatch.setattr(remote, "upload", failing)


def test_the_next_checkpoint_is_uploaded_with_what_failed_before(url, monkeypatch, caplog):
    mirror = Mirror(url)
    with training(mirror):
        fail_uploads(monkeypatch, 2)
        for step in (2, 4, 6):
            write(mirror, *checkpoint(step), "checkpoint")
            mirror.upload()
    assert caplog.text.count("The next checkpoint is uploaded with what is missing now.") == 2
    steps = (2, 4, 6)
    assert names_in(url) == {"checkpoint", *(n for step in steps for n in checkpoint(step))}


def test_uploads_that_keep_failing_end_the_training_and_lose_nothing(url, monkeypatch, local):
    mirror = Mirror(url)
    with pytest.raises(remote.StorageError, match="gone"), training(mirror):
        fail_uploads(monkeypatch, 99)
        for step in (2, 4, 6, 8):
            write(mirror, *checkpoint(step), "checkpoint")
            mirror.upload()
        pytest.fail("four uploads were possible")
    (kept,) = os.listdir(local)
    assert set(checkpoint(6)) <= set(os.listdir(local / kept / "run"))


def test_what_the_last_upload_leaves_is_kept_and_named(url, monkeypatch, local):
    mirror = Mirror(url)
    with pytest.raises(remote.StorageError) as raised, training(mirror):
        write(mirror, *checkpoint(2))
        fail_uploads(monkeypatch, 99)
    (kept,) = os.listdir(local)
    assert f"kept on this machine, below {local / kept}. Copy it" in str(raised.value)
    assert remote.shown(raised.value) == str(raised.value)
    monkeypatch.undo()


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_whatever_ends_the_last_upload_what_it_leaves_is_kept(
    url, monkeypatch, local, caplog, error
):
    def fail(*_):
        raise error

    mirror = Mirror(url)
    with pytest.raises(type(error)), training(mirror):
        write(mirror, "metrics.jsonl")
        monkeypatch.setattr(shutil, "copyfile", fail)
    mirror._local.remove()  # as at the end of the process
    assert f"What was not uploaded is kept on this machine, below {local}" in caplog.text
    (kept,) = os.listdir(local)
    assert (local / kept / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_process_that_starts_meanwhile_may_remove_the_empty_directory(
    url, local, monkeypatch, is_removed
):
    """It takes a directory without a lock for abandoned, and locks it before it removes it."""
    held, refused = lock.held, []

    def of_another(folder):
        if refused:
            return held(folder)
        refused.append(folder)
        if is_removed:
            os.rmdir(folder)
            raise FileNotFoundError(errno.ENOENT, "is gone", folder)
        raise lock.InUseError

    monkeypatch.setattr(lock, "held", of_another)
    mirror = Mirror(url)
    assert not mirror.path.startswith(refused[0]) and os.path.isdir(mirror.path)


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, SystemExit])
def test_after_an_error_too_it_uploads_what_there_is(url, error):
    mirror = Mirror(url)
    with pytest.raises(error), training(mirror):
        write(mirror, "metrics.jsonl")
        raise error
    assert names_in(url) == {"metrics.jsonl"}


def be_host(monkeypatch, task):
    cluster = {"chief": ["a:1"], "worker": ["b:1"]}
    config = {"cluster": cluster, "task": {"type": task, "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def test_sigterm_outside_of_training_uploads_what_there_is(url, local):
    before = signal.getsignal(signal.SIGTERM)
    mirror = Mirror(url)
    with pytest.raises(SystemExit) as exit_, training(mirror):
        write(mirror, "checkpoint", "eval_results.txt")
        os.kill(os.getpid(), signal.SIGTERM)
    assert exit_.value.code == 143
    assert names_in(url) == {"checkpoint", "eval_results.txt"}
    assert os.listdir(local) == []
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("num_signals", [1, 2])
def test_sigterm_in_the_last_upload(url, local, monkeypatch, capsys, num_signals):
    upload, signals = remote.upload, iter(range(num_signals))

    def signalled(path, to):
        if "metrics" in to:
            for _ in signals:
                os.kill(os.getpid(), signal.SIGTERM)
        upload(path, to)

    mirror = Mirror(url)
    with pytest.raises(SystemExit) as exit_, training(mirror):
        write(mirror, "checkpoint", "metrics.jsonl")
        monkeypatch.setattr(remote, "upload", signalled)
    assert exit_.value.code == 143
    assert "SIGTERM: uploading what there is before the command ends" in capsys.readouterr().err
    whole = num_signals == 1
    assert ("checkpoint" in names_in(url), local_is_left(local)) == (whole, not whole)


def local_is_left(local):
    return any("checkpoint" in names for _, _, names in os.walk(local))


def test_hosts_but_the_chief_upload_their_own_directory_alone(url, monkeypatch):
    be_host(monkeypatch, "worker")
    worker = Mirror(url)
    with worker.followed(owns=True, takes_over=False):
        write(worker, "metrics.jsonl", "host-1/metrics.jsonl", "stage_1/host-1/config.json")
        assert OWNER not in names_in(url)
    assert names_in(url) == {"host-1/metrics.jsonl", "stage_1/host-1/config.json"}


def test_hosts_share_what_the_chief_has_written(url, monkeypatch, uploads):
    mirrors = []
    for task in ("chief", "worker"):
        be_host(monkeypatch, task)
        mirrors.append(Mirror(url))
    chief, worker = mirrors
    monkeypatch.setattr(mirror_lib.hosts, "gather", lambda value: value)
    write(chief, "checkpoint", *checkpoint(2))
    chief.share()
    worker.share()
    assert set(os.listdir(worker.path)) == set(uploads) == {"checkpoint", *checkpoint(2)}
    write(chief, "checkpoint", *checkpoint(4))
    fail_uploads(monkeypatch, 1)
    with pytest.raises(remote.StorageError, match="gone"):
        chief.share()


@pytest.fixture
def two_hosts(url, monkeypatch):
    """Returns the mirrors of two hosts that wait for each other, and what calls one of each."""
    mirrors = []
    for task in ("worker", "chief"):
        be_host(monkeypatch, task)
        mirrors.insert(0, Mirror(url))
    barrier, values = threading.Barrier(2, timeout=60), {}

    def gather(value):
        values[threading.current_thread().name] = value
        barrier.wait()
        gathered = np.asarray([values["0"], values["1"]])
        barrier.wait()
        return gathered

    monkeypatch.setattr(mirror_lib.hosts, "gather", gather)

    def together(*functions):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:

            def named(number):
                threading.current_thread().name = str(number)
                functions[number]()

            for future in [pool.submit(named, number) for number in (0, 1)]:
                future.result()

    return mirrors, together


@pytest.mark.parametrize("owns", [False, True])
def test_hosts_start_from_the_same_files(url, two_hosts, owns):
    """The owner before, or a training meanwhile, writes between the copies of the two hosts."""
    (chief, worker), together = two_hosts
    remote.write(b"old", f"{url}/{checkpoint(2)[1]}")
    for mirror in (worker, chief):
        mirror._download()
    remote.remove(f"{url}/{checkpoint(2)[1]}")
    for name in (*checkpoint(4), "checkpoint"):
        remote.write(b"new", f"{url}/{name}")
    if not owns:
        chief._download()  # It may also be the chief that has copied later without a claim.
    with chief.followed(owns, takes_over=owns), worker.followed(owns, takes_over=owns):
        assert os.listdir(worker.path) == [checkpoint(2)[1]]
        together(chief.agree, worker.agree)
        for mirror in (chief, worker):
            assert set(os.listdir(mirror.path)) == {*checkpoint(4), "checkpoint"}
        # It is for the beginning: later, the chief's own files are newer.
        write(chief, "checkpoint", text="newer")
        together(chief.agree, worker.agree)
        assert pathlib.Path(chief.path, "checkpoint").read_text() == "newer"


def test_a_path_that_tensorflow_takes_for_a_pattern_is_refused():
    with pytest.raises(FlagError, match=r"--output_dir=ram://a\[b: has the character \["):
        job_config.find_output_dir("ram://a[b")
