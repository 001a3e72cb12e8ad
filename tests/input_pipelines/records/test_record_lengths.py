import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tiny_run import copy_records

from input_pipelines.creation.pretraining_records import write_pretraining_records
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.records import manifest as manifests
from input_pipelines.records import record_lengths
from input_pipelines.records.pretraining_features import PretrainingFeatures
from input_pipelines.records.record_reader import RecordError, RecordFiles

EXPECTED = PretrainingFeatures(16, 4).kinds


@pytest.fixture
def sets(tmp_path, documents, tokenizer, vocab_file):
    """Returns a dict of a kind -> the two files of a set of records."""
    settings = CreationSettings(max_seq_length=16, max_predictions_per_seq=4, dupe_factor=2)
    files = {}
    for kind in ("static", "dynamic", "foreign"):
        (tmp_path / kind).mkdir()
        files[kind] = [str(tmp_path / kind / f"train-{i}.tfrecord") for i in range(2)]
    for masking in ("static", "dynamic"):
        write_pretraining_records(
            documents, tokenizer, vocab_file, files[masking], settings, masking=masking
        )
    for source, target in zip(files["static"], files["foreign"], strict=True):
        copy_records(source, target, {})
    return files


def counted(files):
    """Returns the lengths and the numbers of masked words, by the features of the records."""
    lengths, words = [], []
    records = RecordFiles(files)
    for number in range(records.num_records):
        features = tf.train.Example.FromString(records.read(number)).features.feature
        if "segment_lengths" in features:
            lengths.append(sum(features["segment_lengths"].int64_list.value) + 3)
            words.append(0)
        else:
            lengths.append(sum(features["input_mask"].int64_list.value))
            words.append(sum(features["masked_lm_weights"].float_list.value))
    return np.array(lengths), np.array(words)


@pytest.mark.parametrize("kind", ["static", "dynamic", "foreign"])
@pytest.mark.parametrize("has_lengths", [True, False])
def test_the_lengths_of_records(kind, has_lengths, sets, tmp_path):
    if not has_lengths:  # as in records of earlier versions
        for manifest_file in (tmp_path / kind).glob("manifest*"):
            manifest = manifests.read_manifest(str(manifest_file))
            del manifest.corpus["record_lengths"]
            manifests.write_manifest(manifest, str(manifest_file))
    for files in (sets[kind], sets[kind][1:], sets[kind][::-1]):
        expected, words = counted(files)
        lengths = record_lengths.read(RecordFiles(files), EXPECTED)
        np.testing.assert_array_equal(lengths.tokens, expected)
        assert lengths.tokens.dtype == np.uint16
        assert lengths.token_share == pytest.approx(expected.mean() / 16)
        assert (words <= lengths.predictions(expected)).all()
        assert lengths.most_predictions.max() <= 4 and len(lengths.most_predictions) == 17
        assert lengths.of(np.array([1, -1, 0])).tolist() == [expected[1], 0, expected[0]]


def test_sets_may_be_mixed(sets):
    files = [sets["static"][0], sets["foreign"][1]]
    lengths = record_lengths.read(RecordFiles(files), EXPECTED)
    np.testing.assert_array_equal(lengths.tokens, counted(files)[0])


def test_what_was_read_is_kept(sets, tmp_path, monkeypatch):
    kept_in = str(tmp_path / "kept.npz")
    expected = record_lengths.read(RecordFiles(sets["foreign"]), EXPECTED, kept_in)
    read = RecordFiles.read
    monkeypatch.setattr(RecordFiles, "read", None)
    kept = record_lengths.read(RecordFiles(sets["foreign"]), EXPECTED, kept_in)
    np.testing.assert_array_equal(kept.tokens, expected.tokens)
    np.testing.assert_array_equal(kept.most_predictions, expected.most_predictions)
    monkeypatch.setattr(RecordFiles, "read", read)
    # Other records, and a damaged file, are read.
    os.remove(sets["foreign"][0])
    for content in (None, b"PK\x03\x04", b""):
        if content is not None:
            (tmp_path / "kept.npz").write_bytes(content)
        other = record_lengths.read(RecordFiles(sets["foreign"][1:]), EXPECTED, kept_in)
        np.testing.assert_array_equal(other.tokens, counted(sets["foreign"][1:])[0])


def test_each_file_of_lengths_is_read_once(sets, tmp_path, monkeypatch):
    names, sha256_of_file = [], manifests.sha256_of_file
    monkeypatch.setattr(
        manifests, "sha256_of_file", lambda path: names.append(path) or sha256_of_file(path)
    )
    (tmp_path / "linked").mkdir()
    os.symlink(sets["static"][1], tmp_path / "linked" / "other.tfrecord")
    files = [*sets["static"], str(tmp_path / "linked" / "other.tfrecord")]
    lengths = record_lengths.read(RecordFiles(files), EXPECTED)
    np.testing.assert_array_equal(lengths.tokens, counted(files)[0])
    assert names == [manifests.lengths_path(sets["static"][0])]


def test_lengths_that_have_changed_are_an_error(sets):
    path = manifests.lengths_path(sets["dynamic"][0])
    np.save(path, np.load(path) - 1)
    with pytest.raises(ValueError, match="has changed since the records were made"):
        record_lengths.read(RecordFiles(sets["dynamic"]), EXPECTED)
    os.remove(path)
    with pytest.raises(ValueError, match=r"token_counts\.train-0\.tfrecord\.lengths\.npy: is miss"):
        record_lengths.read(RecordFiles(sets["dynamic"]), EXPECTED)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [(0, 7, "input_mask holds 7"), (0, 0, "input_mask must be ones and then zeros to be packed")],
)
def test_a_bad_record_is_an_error_or_is_left_out(sets, tmp_path, place, value, message):
    def spoil(features):
        features["input_mask"].int64_list.value[place] = value

    copy_records(sets["static"][0], sets["foreign"][0], {2: spoil})
    records, kept_in = RecordFiles(sets["foreign"]), str(tmp_path / "kept.npz")
    expected = counted(sets["static"])[0]
    expected[2] = 0
    lengths = record_lengths.read(records, EXPECTED, kept_in, max_bad_records=1)
    np.testing.assert_array_equal(lengths.tokens, expected)
    # It is an error for whoever does not leave it out, also in the same directory.
    with pytest.raises(RecordError, match=rf"record 2 \(byte \d+\): {message}"):
        record_lengths.read(records, EXPECTED, kept_in)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.9, 1.0])
def test_lengths_that_are_spread_evenly(share):
    lengths = record_lengths.evenly_spread(share, 512, 77)
    assert lengths.token_share == pytest.approx(share, abs=1 / 512)
    assert lengths.tokens.min() > 0 and lengths.tokens.max() <= 512
    assert lengths.predictions(np.array([512, 10])).tolist() == [77, 2]
