import dataclasses
import json
import os

import pytest

from input_pipelines.records import manifest as manifests

MANIFEST = manifests.Manifest(
    max_seq_length=8,
    max_predictions_per_seq=2,
    vocab_size=50,
    vocab_sha256="00",
    do_lower_case=False,
    num_records=3,
    files=(manifests.RecordFile("a.tfrecord", 3, 90, "11"),),
    token_counts="token_counts.a.tfrecord.npy",
    token_counts_sha256="33",
    corpus={"sha256": "22"},
    creation={"random_seed": 1},
)


def test_names_do_not_match_globs_over_the_records():
    assert manifests.manifest_path("d/a.tfrecord") == "d/manifest.a.tfrecord.json"
    assert manifests.token_counts_path("d/a.tfrecord") == "d/token_counts.a.tfrecord.npy"


def test_round_trip(tmp_path):
    path = str(tmp_path / "manifest.a.tfrecord.json")
    manifests.write_manifest(MANIFEST, path)
    assert manifests.read_manifest(path) == MANIFEST
    assert [entry.name for entry in tmp_path.iterdir()] == ["manifest.a.tfrecord.json"]


def test_manifests_are_found_for_the_files_that_they_list(tmp_path):
    path = str(tmp_path / "manifest.a.tfrecord.json")
    manifests.write_manifest(MANIFEST, path)
    a, b = str(tmp_path / "a.tfrecord"), str(tmp_path / "b.tfrecord")
    assert manifests.read_manifests_of([a, b]) == {a: (path, MANIFEST)}
    assert manifests.read_manifests_of([b]) == {}


def test_a_manifest_of_an_earlier_version_names_no_vocabulary(tmp_path):
    fields = dataclasses.asdict(MANIFEST)
    del fields["vocab_file"], fields["strip_accents"]
    (tmp_path / "manifest.a.tfrecord.json").write_text(json.dumps(fields))
    assert manifests.read_manifest(str(tmp_path / "manifest.a.tfrecord.json")) == MANIFEST
    files = [str(tmp_path / "a.tfrecord")]
    assert manifests.find_vocabulary(files) is None
    assert manifests.casings(files) == {(False, None)}
    assert manifests.casings([str(tmp_path / "b.tfrecord")]) == set()


@pytest.mark.parametrize("ending", [".txt", ".model"])
def test_the_vocabulary_is_kept_once_and_found(tmp_path, ending):
    data, own = tmp_path / "data", tmp_path / f"own{ending}"
    data.mkdir()
    own.write_bytes(b"words")
    name, sha256 = manifests.keep_vocabulary(str(own), str(data))
    assert name == f"vocab.{sha256}{ending}"
    (data / name).write_bytes(b"cut short")  # as by a program that ended
    assert manifests.keep_vocabulary(str(own), str(data)) == (name, sha256)
    assert [path.name for path in data.iterdir()] == [name]
    assert (data / name).read_bytes() == b"words"
    for record_file in ("a.tfrecord", "b.tfrecord"):
        manifest = dataclasses.replace(
            MANIFEST,
            files=(manifests.RecordFile(record_file, 3, 90, "11"),),
            vocab_file=name,
            vocab_sha256=sha256,
        )
        manifests.write_manifest(manifest, str(data / f"manifest.{record_file}.json"))
    files = [str(data / "a.tfrecord"), str(data / "b.tfrecord")]
    assert manifests.find_vocabulary(files) == str(data / name)
    (data / name).write_bytes(b"others")
    with pytest.raises(ValueError, match=rf"{name}: has changed since the records were made"):
        manifests.find_vocabulary(files)
    (data / name).unlink()
    message = rf"{name}: is missing, but .*manifest.a.tfrecord.json says that the records were"
    with pytest.raises(ValueError, match=message):
        manifests.find_vocabulary(files)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"format_version": 3}', r"\.json: the format version is 3, but this program reads 1 a"),
        (
            '{"format_version": 1, "fi',
            r"is not a complete manifest .*Create the data again",
        ),
        ('{"format_version": 1}', r"\.json: is not a complete manifest \(.*'files' is missing"),
        ("[]", r"\.json: is not a complete manifest"),
        (json.dumps({"format_version": 1, "files": [{"name": "x"}]}), "is not a complete manifest"),
        (json.dumps({"format_version": 1, "files": []}), "is not a complete manifest"),
    ],
)
def test_other_contents_are_refused(tmp_path, content, message):
    path = tmp_path / "manifest.a.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        manifests.read_manifest(str(path))


def test_a_path_may_be_spelled_differently(tmp_path):
    """A manifest that is overlooked would leave vocabulary and lengths unchecked."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.tfrecord").write_bytes(b"")
    manifests.write_manifest(MANIFEST, str(folder / "manifest.a.tfrecord.json"))
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "a.tfrecord").symlink_to(folder / "a.tfrecord")
    for name in ("data//a.tfrecord", "data/../data/a.tfrecord", "link/a.tfrecord", "a.tfrecord"):
        path = os.path.join(str(tmp_path), name)
        assert list(manifests.read_manifests_of([path])) == [path], name
