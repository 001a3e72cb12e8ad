import pytest

from input_pipelines.records import shards


def test_names_and_sets():
    paths = shards.shard_names("a/b.c.tfrecord", 3)
    assert paths[1] == "a/b.c-00001-of-00003.tfrecord" and len(paths) == 3
    assert {shards.set_of(path) for path in paths} == {("a/b.c.tfrecord", 3)}
    assert shards.set_of("a/b.c.tfrecord") == ("a/b.c.tfrecord", 0)
    assert shards.set_of("b-1-of-3") == ("b-1-of-3", 0)
    assert shards.set_of("b-00000-of-00001") == ("b", 1)


def test_files_of_one_set():
    shards.check_one_set([])
    shards.check_one_set([*shards.shard_names("a/b", 3), *shards.shard_names("a/c", 2), "a/d"])
    for others in (shards.shard_names("a/b", 2), ["a/b"]):
        with pytest.raises(ValueError, match=r"^a/b-00000-of-00003 and a/b.* belong to sets of di"):
            shards.check_one_set([*shards.shard_names("a/b", 3), *others])


def test_other_sets(tmp_path):
    for name in (
        *shards.shard_names("b.x", 2),
        "b.x",
        "b.y",
        ".b-00000-of-00004.x.work",
        "manifest.b.x",
    ):
        (tmp_path / name).write_text("")
    path = str(tmp_path / "b.x")
    others = [".b-00000-of-00004.x.work", "b-00000-of-00002.x", "b-00001-of-00002.x"]
    assert shards.other_sets([path]) == [str(tmp_path / name) for name in others]
    assert shards.other_sets(shards.shard_names(path, 2)) == [str(tmp_path / others[0]), path]
    assert shards.other_sets(shards.shard_names(str(tmp_path / "c.x"), 2)) == []


def test_unfinished_files(tmp_path):
    work = shards.work_directory(str(tmp_path / "a"))
    (tmp_path / ".a.work").mkdir()
    assert shards.unfinished_files(str(tmp_path)) == {}
    shards.list_files(work, [str(tmp_path / "a"), str(tmp_path / "b")])
    assert shards.unfinished_files(str(tmp_path)) == {
        str(tmp_path / "a"): work,
        str(tmp_path / "b"): work,
    }
