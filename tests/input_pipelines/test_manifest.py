import json

import pytest

from input_pipelines import manifest as manifests

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
    assert manifests.is_companion("d/manifest.a.tfrecord.json")
    assert manifests.is_companion("d/token_counts.a.tfrecord.npy")
    assert not manifests.is_companion("manifest.d/a.tfrecord")


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"format_version": 2}', r"\.json: the format version is 2, but this program reads 1"),
        (
            '{"format_version": 1, "fi',
            r"is not a complete manifest .*Create the data again",
        ),
        ('{"format_version": 1}', r"\.json: is not a complete manifest \('files'\)"),
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
