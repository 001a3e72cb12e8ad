import itertools
import os
import shutil

import kills
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_estimator.tokenization import open_tokenizer
from input_pipelines.creation import pretraining_records, stages
from input_pipelines.creation.pools import WorkerPool
from input_pipelines.creation.pretraining_records import write_pretraining_records
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.records import manifest as manifests
from input_pipelines.records.record_reader import RecordFiles, find_record_files
from input_pipelines.text.documents import split_files

LENGTHS = {"max_seq_length": 16, "max_predictions_per_seq": 4}
SETTINGS = CreationSettings(**LENGTHS, dupe_factor=3, random_seed=9)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Makes groups and buckets so small that a short text has several of each."""
    monkeypatch.setattr(stages, "_GROUP_TOKENS", 40)
    monkeypatch.setattr(stages, "_BUCKET_TOKENS", 60)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # it takes longer than everything else


@pytest.fixture
def documents(documents):
    return documents * 2


@pytest.fixture
def create(text_file, tokenizer, vocab_file):
    def create(directory, files=2, settings=SETTINGS, masking="static", num_workers=0, part=200):
        os.makedirs(directory, exist_ok=True)
        paths = [str(directory / f"{number}.tfrecord") for number in range(files)]
        write_pretraining_records(
            split_files([text_file], part_bytes=part),
            tokenizer,
            vocab_file,
            paths,
            settings,
            masking=masking,
            pool=WorkerPool(num_workers),
        )
        return {name: (directory / name).read_bytes() for name in os.listdir(directory)}

    return create


def records_of(directory):
    records = RecordFiles(sorted(str(path) for path in directory.glob("*.tfrecord")))
    return sorted(records.read_all(np.arange(records.num_records)))


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_bytes_do_not_depend_on_workers(tmp_path, create, masking):
    one = create(tmp_path / "one", masking=masking)
    assert create(tmp_path / "two", masking=masking, num_workers=2) == one
    assert sorted(one)[:2] == ["0.tfrecord", "1.tfrecord"]
    assert not any("work" in name or "temporary" in name for name in one)


def test_several_groups_and_pieces(tmp_path, create, monkeypatch):
    calls = []
    for name in ("write_pairs", "write_piece", "join_pieces", "tokenize"):
        function = getattr(stages, name)
        monkeypatch.setattr(
            stages, name, lambda task, f=function, n=name: (calls.append(n), f(task))[1]
        )
    create(tmp_path / "a")
    # 240 tokens: 6 groups, each with 3 passes; 720 tokens of all passes: 6 pieces of each file.
    numbers = {name: calls.count(name) for name in calls}
    assert numbers.pop("tokenize") > 2
    assert numbers == {"write_pairs": 18, "write_piece": 12, "join_pieces": 2}
    monkeypatch.setattr(stages, "_MANY_GROUPS", 6)
    calls.clear()
    whole = create(tmp_path / "b")
    assert calls.count("write_pairs") == 6
    assert whole == create(tmp_path / "a")


def test_the_records_do_not_depend_on_files_and_parts(tmp_path, create):
    create(tmp_path / "a")
    create(tmp_path / "b", files=5)
    create(tmp_path / "c", part=10**6)
    assert records_of(tmp_path / "a") == records_of(tmp_path / "b") == records_of(tmp_path / "c")


def test_each_document_is_drawn_into_a_group():
    chosen = stages.group_of(np.arange(10_000), seed=1, num_groups=7)
    assert set(chosen.tolist()) == set(range(7))
    assert abs(np.bincount(chosen) - 10_000 / 7).max() < 200
    assert (stages.group_of(np.arange(10_000), 2, 7) != chosen).mean() > 0.8
    # A text of one group is one group whatever the seed.
    assert not stages.group_of(np.arange(10), 3, 1).any()


class Calls:
    """Counts the calls that give a file its name; ends the process, as it were, at one of them."""

    def __init__(self, monkeypatch):
        self.number, self.killed_at = 0, None
        for module in (os, tf.io.gfile):
            name = "replace" if module is os else "rename"
            original = getattr(module, name)
            monkeypatch.setattr(module, name, lambda *a, f=original, **k: self._call(f, *a, **k))

    def _call(self, function, *args, **kwargs):
        self.number += 1
        if self.number == self.killed_at:
            raise kills.Killed
        return function(*args, **kwargs)


def assert_resumes(tmp_path, create, files, every):
    """Kills creations before a file gets its name, and compares what the same call then makes."""
    expected = create(tmp_path / "whole", files=files)
    with pytest.MonkeyPatch.context() as patch:
        calls = Calls(patch)
        create(tmp_path / "counted", files=files)
        total = calls.number
    for number in [*range(1, total - 5, every), *range(total - 5, total + 1)]:
        directory = tmp_path / f"{number}"
        with pytest.MonkeyPatch.context() as patch:
            calls = Calls(patch)
            calls.killed_at = number
            with pytest.raises(kills.Killed):
                create(directory, files=files)
            assert not (directory / "manifest.0.tfrecord.json").exists()
            calls.killed_at, calls.number = None, 0
            assert create(directory, files=files) == expected
        # What was done is not done again, but for the list of files, the vocabulary, the counts
        # and the manifest.
        assert calls.number <= total - number + 5


def test_a_killed_creation_resumes_to_the_same_bytes(tmp_path, create):
    assert_resumes(tmp_path, create, files=2, every=17)


@pytest.mark.parametrize("kept", [".pairs", ".ids", ".npz", ".json"])
def test_a_kill_while_the_finished_work_is_removed(tmp_path, create, monkeypatch, kept):
    """The files of the work are removed in any order. The same command makes the same records."""

    def kill(*args, **kwargs):
        raise kills.Killed

    expected = create(tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(kills.Killed):
        patch.setattr(stages.shutil, "rmtree", kill)
        create(tmp_path / "killed")
    files = [path for path in (tmp_path / "killed" / ".0.tfrecord.work").rglob("*.*")]
    removed = [path for path in files if path.suffix != kept]
    assert 0 < len(removed) < len(files)
    for path in removed:
        path.unlink()
    assert create(tmp_path / "killed") == expected


@pytest.mark.slow
@pytest.mark.parametrize(("files", "bucket_tokens"), [(1, 60), (2, 60), (1, 720), (2, 360)])
def test_every_kill_resumes_to_the_same_bytes(tmp_path, create, monkeypatch, files, bucket_tokens):
    monkeypatch.setattr(stages, "_BUCKET_TOKENS", bucket_tokens)
    assert_resumes(tmp_path, create, files, every=1)


def test_another_creation_does_not_take_what_was_left(tmp_path, create, monkeypatch, text_file):
    expected = create(tmp_path / "other", settings=CreationSettings(**LENGTHS, dupe_factor=2))
    dynamic = create(tmp_path / "dynamic", masking="dynamic")
    with monkeypatch.context() as patch:
        calls = Calls(patch)
        calls.killed_at = 60
        with pytest.raises(kills.Killed):
            create(tmp_path / "x")
    left = [name for name in os.listdir(tmp_path / "x") if name.endswith(".work")]
    assert left == [".0.tfrecord.work"]
    again = create(tmp_path / "x", settings=CreationSettings(**LENGTHS, dupe_factor=2))
    assert again == expected
    assert create(tmp_path / "x", masking="dynamic") == dynamic
    # Nor is a text taken for the text that it was before.
    with monkeypatch.context() as patch:
        calls = Calls(patch)
        calls.killed_at = 60
        with pytest.raises(kills.Killed):
            create(tmp_path / "y")
    with open(text_file, "a") as file:
        file.write("\n\nw1 w2 w3 w4\nw5 w6 w7 w8\n")
    assert create(tmp_path / "y") == create(tmp_path / "z")


@pytest.mark.parametrize("from_files", [True, False])
def test_a_vocabulary_that_was_changed_is_read_again(
    tmp_path, documents, vocab_file, from_files, text_file, monkeypatch
):
    """The file has the same name; workers keep a tokenizer, and a killed creation its pairs."""
    path = shutil.copy(vocab_file, tmp_path / "changing.txt")

    def create(directory):
        directory.mkdir(exist_ok=True)
        source = split_files([text_file]) if from_files else documents
        tokenizer = open_tokenizer(str(path))
        output = str(directory / "x.tfrecord")
        write_pretraining_records(
            source, tokenizer, str(path), [output], SETTINGS, masking="static"
        )
        return (directory / "x.tfrecord").read_bytes()

    before = create(tmp_path / "before")
    with monkeypatch.context() as patch, pytest.raises(kills.Killed):
        kills.kill_before(patch, stages, "write_piece", lambda *_: True)
        create(tmp_path / "killed")
    lines = path.read_text().split()
    path.write_text("\n".join([*lines[:5], *reversed(lines[5:])]) + "\n")
    after = create(tmp_path / "after")
    assert after != before
    assert create(tmp_path / "killed") == after


def test_records_cannot_be_read_before_all_are_there(tmp_path, create, monkeypatch):
    create(tmp_path / "x", settings=CreationSettings(**LENGTHS, dupe_factor=2))
    earlier = find_record_files(str(tmp_path / "x"))
    for stage, is_complete in (
        ("write_pairs", True),  # the earlier records
        ("write_piece", False),
        ("join_pieces", False),
    ):
        with monkeypatch.context() as patch, pytest.raises(kills.Killed):
            # The second task of a stage, so that one of two files may be new already.
            tasks = itertools.count()
            kills.kill_before(patch, stages, stage, lambda *_, n=tasks: next(n) == 1)
            create(tmp_path / "x", masking="dynamic")
        if is_complete:
            assert find_record_files(str(tmp_path / "x")) == earlier
            continue
        with pytest.raises(ValueError, match=r"0\.tfrecord: belongs to .* not ended\. Give"):
            find_record_files(str(tmp_path / "x"))
        with pytest.raises(ValueError, match=r"or remove .*/\.0\.tfrecord\.work and the records"):
            find_record_files(str(tmp_path / "x" / "1.*"))
    create(tmp_path / "x", masking="dynamic")
    assert find_record_files(str(tmp_path / "x")) == earlier
    # A kill after the manifest leaves complete records.
    with monkeypatch.context() as patch, pytest.raises(kills.Killed):
        kills.kill_before(patch, shutil, "rmtree", lambda *_, **__: True)
        create(tmp_path / "x")
    assert os.path.isdir(tmp_path / "x" / ".0.tfrecord.work")
    assert find_record_files(str(tmp_path / "x")) == earlier


def test_a_record_file_that_was_changed_is_made_again(tmp_path, create, monkeypatch):
    expected = create(tmp_path / "x")
    with monkeypatch.context() as patch, pytest.raises(kills.Killed):
        kills.kill_before(patch, pretraining_records, "_manifest", lambda *_: True)
        create(tmp_path / "x")
    (tmp_path / "x" / "1.tfrecord").write_bytes(b"other")
    os.remove(tmp_path / "x" / "0.tfrecord")
    with pytest.raises(FileNotFoundError):
        manifests.read_manifest(str(tmp_path / "x" / "manifest.0.tfrecord.json"))
    assert create(tmp_path / "x") == expected


def test_an_error_names_the_file_and_leaves_finished_work(tmp_path, create, text_file):
    with open(text_file, "ab") as file:
        file.write(b"\n\nw1 \xff\n")
    for num_workers in (0, 1, 2):
        with pytest.raises(ValueError, match=r"text\.txt: byte \d+ is not UTF-8"):
            create(tmp_path / "x", num_workers=num_workers)
    assert os.listdir(tmp_path / "x") == [".0.tfrecord.work"]
