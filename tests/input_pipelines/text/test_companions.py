from input_pipelines.records import manifest as manifests
from input_pipelines.text import companions


def test_names_of_what_lies_beside_records():
    beside = [
        manifests.manifest_path("d/a.tfrecord"),
        manifests.token_counts_path("d/a.tfrecord"),
        f"d/{companions.vocabulary_name('0a' * 32, is_model=False)}",
        f"d/{companions.vocabulary_name('0a' * 32, is_model=True)}",
        "d/temporary.a.tfrecord.part",
    ]
    for path in beside:
        assert companions.is_companion(path) and not companions.is_text(path), path
    for path in ("manifest.d/a.tfrecord", "d/vocab.records.txt"):
        assert not companions.is_companion(path)
    assert companions.is_manifest(beside[0]) and not companions.is_manifest("d/manifest.txt")


def test_text_may_have_the_name_of_held_out_records():
    assert companions.is_companion("d/heldout.a.tfrecord")
    assert not companions.is_text("d/heldout.a.tfrecord")
    assert companions.is_companion("d/heldout.txt") and companions.is_text("d/heldout.txt")
    assert companions.is_text("d.tfrecord/vocab.txt")
