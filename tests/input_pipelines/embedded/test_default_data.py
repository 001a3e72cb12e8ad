import contextlib
import json
import os
import re

import locked
import pytest

from bert_estimator.system import lock
from input_pipelines.embedded import default_data, embedded_corpus
from input_pipelines.records import manifest as manifests
from input_pipelines.records.pretraining_features import open_pretraining_records

NOUNS = ["spam", "egg", "ham", "bacon", "sausage", "bean"]


@pytest.fixture(autouse=True)
def small_corpus(monkeypatch):
    """Replaces the standard library's corpus by a few hundred words; counts its readings."""
    readings = []

    def load():
        readings.append(1)
        documents = [
            [f"the {a} and the {b} number {i} are here" for b in NOUNS] for i, a in enumerate(NOUNS)
        ]
        return embedded_corpus.Corpus(documents[1:], documents[:1], "ab", "3.0.0")

    monkeypatch.setattr(embedded_corpus, "load", load)
    monkeypatch.setattr(embedded_corpus, "fingerprint", lambda: "cd")
    return readings


def make(directory, **changes):
    settings = {
        "vocab_size": 70,
        "max_seq_length": 24,
        "max_predictions_per_seq": 4,
        "dupe_factor": 2,
        "seed": 1,
    }
    return default_data.make(str(directory), **{**settings, "masking": "static", **changes})


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_what_is_made(tmp_path, masking):
    data = make(tmp_path / "data", masking=masking)
    train = open_pretraining_records(data.train_files, 24, 4, 70)
    held_out = open_pretraining_records(data.held_out_files, 24, 4, 70)
    assert train.num_records > held_out.num_records > 0
    manifest = manifests.read_manifest(manifests.manifest_path(data.train_files[0]))
    assert manifest.corpus["documents"] == 5
    assert manifest.corpus["embedded_sha256"] == "ab"
    assert manifest.corpus["python_version"] == "3.0.0"
    assert manifest.creation["dupe_factor"] == 2
    assert manifest.is_dynamic == (masking == "dynamic")
    held_out_manifest = manifests.read_manifest(manifests.manifest_path(data.held_out_files[0]))
    assert held_out_manifest.creation["dupe_factor"] == 1
    assert held_out_manifest.is_dynamic == manifest.is_dynamic
    assert held_out_manifest.corpus["documents"] == 1
    counts = manifests.read_token_counts(manifests.token_counts_path(data.train_files[0]))
    assert counts.sum() == manifest.corpus["tokens"]
    with open(data.vocab_file, encoding="utf-8") as file:
        assert len(file.readlines()) == 70
    assert os.listdir(tmp_path) == ["data"]


def test_a_second_call_reuses_it(tmp_path, small_corpus):
    first = make(tmp_path / "data")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "data").iterdir()}
    assert make(tmp_path / "data") == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "data").iterdir()} == before
    assert len(small_corpus) == 1


def test_the_settings_of_pairs_are_described_as_before_there_were_objectives(tmp_path):
    """A run that began with the data of an earlier version goes on with it."""
    make(tmp_path / "data")
    described = json.loads((tmp_path / "data" / "default_data.json").read_text())
    assert "objective" not in described and "across_documents" not in described
    make(tmp_path / "data", objective="mlm_nsp", may_replace=False)


def test_the_same_settings_make_the_same_bytes(tmp_path):
    make(tmp_path / "a")
    make(tmp_path / "b")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab_size": 71},
        {"max_seq_length": 25},
        {"max_predictions_per_seq": 5},
        {"dupe_factor": 3},
        {"seed": 2},
        {"do_whole_word_mask": True},
        {"masking": "dynamic"},
        {"objective": "mlm"},
        {"objective": "mlm_sop"},
    ],
)
def test_other_settings_rebuild_it(tmp_path, small_corpus, changes):
    make(tmp_path / "data")
    make(tmp_path / "data", **changes)
    assert len(small_corpus) == 2
    make(tmp_path / "data", **changes)
    assert len(small_corpus) == 2


def test_another_corpus_rebuilds_it(tmp_path, small_corpus, monkeypatch):
    make(tmp_path / "data")
    monkeypatch.setattr(embedded_corpus, "fingerprint", lambda: "ef")
    make(tmp_path / "data")
    assert len(small_corpus) == 2


def test_a_training_goes_on_with_the_corpus_it_began_with(tmp_path, small_corpus, monkeypatch):
    first = make(tmp_path / "data")
    before = contents(tmp_path / "data")
    monkeypatch.setattr(embedded_corpus, "fingerprint", lambda: "ef")  # another Python or version
    assert make(tmp_path / "data", may_replace=False) == first
    assert contents(tmp_path / "data") == before and len(small_corpus) == 1
    with pytest.raises(ValueError, match="damaged, or was made with other settings"):
        make(tmp_path / "data", may_replace=False, vocab_size=71)
    (tmp_path / "data" / default_data.TRAIN_FILE).write_bytes(b"damaged")
    with pytest.raises(ValueError, match="damaged, or was made with other settings"):
        make(tmp_path / "data", may_replace=False)
    assert len(small_corpus) == 1


@pytest.mark.parametrize(
    "name",
    [
        default_data.VOCAB_FILE,
        default_data.TRAIN_FILE,
        default_data.HELD_OUT_FILE,
        f"manifest.{default_data.TRAIN_FILE}.json",
        f"token_counts.{default_data.TRAIN_FILE}.npy",
        f"token_counts.{default_data.TRAIN_FILE}.lengths.npy",
    ],
)
@pytest.mark.parametrize("damage", ["cut", "removed"])
def test_damaged_data_is_made_again(tmp_path, name, damage):
    make(tmp_path / "data")
    whole = contents(tmp_path / "data")
    path = tmp_path / "data" / name
    if damage == "cut":
        path.write_bytes(whole[name][:-3])
    else:
        path.unlink()
    make(tmp_path / "data")
    assert contents(tmp_path / "data") == whole


def test_a_build_that_fails_leaves_nothing_that_passes_for_whole(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(default_data, "write_pretraining_records", fail)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "data")
    assert not (tmp_path / "data").exists()
    make(tmp_path / "data")
    assert os.listdir(tmp_path) == ["data"]


def test_a_directory_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds files that .*Give an empty or a new directory"):
        make(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_an_empty_directory_is_fine(tmp_path):
    (tmp_path / "data").mkdir()
    assert os.path.isfile(make(tmp_path / "data").vocab_file)


def test_settings_are_checked_first(tmp_path, small_corpus):
    with pytest.raises(ValueError, match=r"^dupe_factor is 0"):
        make(tmp_path / "data", dupe_factor=0)
    assert not small_corpus


def test_it_is_made_by_one_process_and_used_by_any(tmp_path):
    with (
        locked.by_another(tmp_path / ".data.lock"),
        pytest.raises(lock.InUseError, match=re.escape(f"{tmp_path}/data {locked.WHO}")),
    ):
        make(tmp_path / "data")
    data = make(tmp_path / "data")
    assert sorted(os.listdir(tmp_path)) == ["data"]
    with locked.by_another(tmp_path / ".data.lock"):
        assert make(tmp_path / "data") == data


def test_what_another_process_has_just_made_is_used(tmp_path, monkeypatch, small_corpus):
    @contextlib.contextmanager
    def made_meanwhile(path, held_for=lock.held_for):
        monkeypatch.setattr(lock, "held_for", held_for)
        make(path)
        yield

    monkeypatch.setattr(lock, "held_for", made_meanwhile)
    make(tmp_path / "data")
    assert len(small_corpus) == 1
