from input_pipelines.records import manifest as manifests
from input_pipelines.records import record_names
from input_pipelines.records.record_names import shard_names


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
