import os
import sys
import types

import pytest
from commands import MAINS

from bert_estimator.tokenization import SPECIAL_TOKENS, write_vocab
from input_pipelines import create_pretraining_data
from input_pipelines.creation import stages
from input_pipelines.creation.pools import BeamPool, WorkerError
from input_pipelines.creation.pretraining_records import write_pretraining_records
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.text.documents import split_files

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


def test_the_command_without_beam(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    (tmp_path / "text.txt").write_text("a b\nb a\n")
    write_vocab([*SPECIAL_TOKENS, "a", "b"], str(tmp_path / "vocab.txt"))
    monkeypatch.chdir(tmp_path)
    flags = ["--input_file=text.txt", "--vocab_file=vocab.txt", "--output_file=a.tfrecord"]
    assert MAINS["records"](["records", *flags, "--runner=DirectRunner"]) == 2
    assert "--runner: Apache Beam is not installed. Install it:" in capsys.readouterr().err


def test_workers_are_the_runners_own(tmp_path):
    values = types.SimpleNamespace(runner="DirectRunner", num_workers=2, beam_options="")
    with pytest.raises(ValueError, match=r"^--num_workers=2: --runner has an option of its own"):
        create_pretraining_data._pool(values, 10, str(tmp_path / "a"))
