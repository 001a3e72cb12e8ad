import os
import sys
import types

import pytest

from input_pipelines import create_pretraining_data
from input_pipelines.creation import pools, stages
from input_pipelines.creation.pools import BeamPool, WorkerError, WorkerPool
from input_pipelines.creation.pretraining_records import write_pretraining_records
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.text.documents import split_files


def act(task):
    """Does what the task says; it runs in a worker, so it is a function of the module."""
    kind, value = task
    if kind == "raise":
        raise value
    if kind == "raise unsendable":
        raise UnsendableError(value, "which pickle gets wrong")
    if kind == "end":
        os._exit(value)
    return value + 1, os.getpid(), "tensorflow" in sys.modules


def describe(task):
    return f"doing {task[0]}"


class UnsendableError(ValueError):
    def __init__(self, a, b):
        super().__init__(a)


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(2) as pool:
        yield pool


def test_results_of_workers(pool):
    results = dict(pool.run(act, [("add", number) for number in range(20)], describe))
    assert sorted(results) == list(range(20))
    assert [results[number][0] for number in range(20)] == list(range(1, 21))
    pids = {pid for _, pid, _ in results.values()}
    assert 1 <= len(pids) <= 2 and os.getpid() not in pids
    assert not any(has_tensorflow for *_, has_tensorflow in results.values())


def test_one_worker_has_a_process_of_its_own():
    with WorkerPool(1) as pool:
        ((_, (_, pid, has_tensorflow)),) = pool.run(act, [("add", 1)], describe)
    assert pid != os.getpid() and not has_tensorflow


def test_without_workers_this_process_works():
    with WorkerPool(0) as pool:
        assert [r[1] for _, r in pool.run(act, [("add", 1)] * 3, describe)] == [os.getpid()] * 3
        with pytest.raises(KeyError):
            list(pool.run(act, [("raise", KeyError("x"))] * 3, describe))


@pytest.mark.parametrize(
    ("task", "error", "message"),
    [
        (("raise", ValueError("a.txt: is not text")), ValueError, r"^a\.txt: is not text$"),
        (("raise", OSError(28, "No space left", "b")), OSError, r"\[Errno 28\] No space left: 'b'"),
        (("raise", KeyError("x")), WorkerError, "^the worker that was doing raise failed:\nTrace"),
        (("raise unsendable", "x"), WorkerError, "(?s)was doing raise .*UnsendableError: x"),
        (("end", 9), WorkerError, r"that was doing end has ended \(exit code 9\)\. If it was kill"),
    ],
)
def test_errors_of_workers(task, error, message):
    with WorkerPool(2) as pool:
        with pytest.raises(error, match=message):
            list(pool.run(act, [("add", 1), task, ("add", 2)], describe))
        processes = list(pool._workers.values())
    assert len(processes) == 2 and not any(process.is_alive() for process in processes)


def test_available_cores(monkeypatch):
    assert 1 <= pools.available_cores() <= os.cpu_count()
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert pools.available_cores() == os.cpu_count()


MULTI_PROCESSING = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")


@pytest.fixture
def write(tmp_path, documents, tokenizer, vocab_file):
    text_file = tmp_path / "text.txt"
    text_file.write_text("\n\n".join("\n".join(document) for document in documents * 4))

    def write(name, pool, masking="static"):
        (tmp_path / name).mkdir()
        files = [str(tmp_path / name / f"{number}.tfrecord") for number in range(2)]
        settings = CreationSettings(max_seq_length=16, max_predictions_per_seq=4, dupe_factor=2)
        write_pretraining_records(
            split_files([str(text_file)], part_bytes=200),
            tokenizer,
            vocab_file,
            files,
            settings,
            masking=masking,
            pool=pool,
        )
        return {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}

    return write


def fail(task):
    """Fails as the task says; it runs in a worker, so it is a function of the module."""
    raise task


@pytest.mark.slow
@pytest.mark.parametrize("masking", ["static", "dynamic"])
@pytest.mark.parametrize("options", [(), MULTI_PROCESSING], ids=["direct", "multi_processing"])
def test_beam_writes_what_this_process_writes(tmp_path, write, monkeypatch, options, masking):
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
    monkeypatch.setattr(stages, "_BUCKET_TOKENS", 200)
    pool = BeamPool("DirectRunner", options, str(tmp_path))
    assert write("beam", pool, masking) == write("here", None, masking)
    assert sorted(os.listdir(tmp_path)) == ["beam", "here", "text.txt"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("a.txt: is not text"), ValueError, r"^a\.txt: is not text$"),
        (KeyError("x"), WorkerError, r"^reading with DirectRunner: .*KeyError"),
    ],
)
def test_errors_of_tasks(tmp_path, error, kind, message):
    pytest.importorskip("apache_beam", reason="Apache Beam is not installed")
    pool = BeamPool("DirectRunner", (), str(tmp_path))
    with pytest.raises(kind, match=message):
        list(pool.run(fail, [error], lambda _: "reading"))
    assert os.listdir(tmp_path) == []


def test_machines_that_do_not_see_the_directory(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", types.ModuleType("apache_beam"))
    for name in ("options", "options.pipeline_options"):
        monkeypatch.setitem(sys.modules, f"apache_beam.{name}", types.ModuleType(name))
    monkeypatch.setattr(BeamPool, "_run_pipeline", lambda *_: None)
    pool = BeamPool("FlinkRunner", (), str(tmp_path))
    with pytest.raises(WorkerError, match=r"the machines of FlinkRunner do not see .*: write to"):
        list(pool.run(fail, [1], lambda _: "reading"))


def test_without_beam(monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(ValueError, match=r"--runner: Apache Beam is not installed\. Install it: p"):
        pools.import_beam()


def test_workers_are_the_runners_own(tmp_path):
    values = types.SimpleNamespace(runner="DirectRunner", num_workers=2, beam_options="")
    with pytest.raises(ValueError, match=r"^--num_workers=2: --runner has an option of its own"):
        create_pretraining_data._pool(values, 10, str(tmp_path / "a"))
