import pytest

from input_pipelines.records import manifest as manifests
from input_pipelines.text import record_names
from input_pipelines.text.record_names import shard_names


def test_names_of_what_lies_beside_records():
    beside = [
        manifests.manifest_path("d/a.tfrecord"),
        manifests.token_counts_path("d/a.tfrecord"),
        f"d/{record_names.vocabulary_name('0a' * 32, is_model=False)}",
        f"d/{record_names.vocabulary_name('0a' * 32, is_model=True)}",
        "d/temporary.a.tfrecord.part",
    ]
    for path in beside:
        assert record_names.is_companion(path) and not record_names.is_text(path), path
    for path in ("manifest.d/a.tfrecord", "d/vocab.records.txt"):
        assert not record_names.is_companion(path)
    assert record_names.is_manifest(beside[0]) and not record_names.is_manifest("d/manifest.txt")


def test_text_may_have_the_name_of_held_out_records():
    assert record_names.is_companion("d/heldout.a.tfrecord")
    assert not record_names.is_text("d/heldout.a.tfrecord")
    assert record_names.is_companion("d/heldout.txt") and record_names.is_text("d/heldout.txt")
    assert record_names.is_text("d.tfrecord/vocab.txt")


def test_names_and_sets():
    paths = shard_names("a/b.c.tfrecord", 3)
    assert paths[1] == "a/b.c-00001-of-00003.tfrecord" and len(paths) == 3
    assert {record_names.set_of(path) for path in paths} == {("a/b.c.tfrecord", 3)}
    assert record_names.set_of("a/b.c.tfrecord") == ("a/b.c.tfrecord", 0)
    assert record_names.set_of("b-1-of-3") == ("b-1-of-3", 0)
    assert record_names.set_of("b-00000-of-00001") == ("b", 1)


def test_files_of_one_set():
    record_names.check_one_set([])
    record_names.check_one_set([*shard_names("a/b", 3), *shard_names("a/c", 2), "a/d"])
    for others in (shard_names("a/b", 2), ["a/b"]):
        with pytest.raises(ValueError, match=r"^a/b-00000-of-00003 and a/b.* belong to sets of di"):
            record_names.check_one_set([*shard_names("a/b", 3), *others])


def test_other_sets(tmp_path):
    for name in (
        *shard_names("b.x", 2),
        "b.x",
        "b.y",
        ".b-00000-of-00004.x.work",
        "manifest.b.x",
    ):
        (tmp_path / name).write_text("")
    path = str(tmp_path / "b.x")
    others = [".b-00000-of-00004.x.work", "b-00000-of-00002.x", "b-00001-of-00002.x"]
    assert record_names.other_sets([path]) == [str(tmp_path / name) for name in others]
    assert record_names.other_sets(shard_names(path, 2)) == [
        str(tmp_path / others[0]),
        path,
    ]
    assert record_names.other_sets(shard_names(str(tmp_path / "c.x"), 2)) == []


def test_unfinished_files(tmp_path):
    work = record_names.work_directory(str(tmp_path / "a"))
    (tmp_path / ".a.work").mkdir()
    assert record_names.unfinished_files(str(tmp_path)) == {}
    record_names.list_files(work, [str(tmp_path / "a"), str(tmp_path / "b")])
    assert record_names.unfinished_files(str(tmp_path)) == {
        str(tmp_path / "a"): work,
        str(tmp_path / "b"): work,
    }
