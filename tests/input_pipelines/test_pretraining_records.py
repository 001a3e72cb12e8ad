import hashlib
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from input_pipelines import manifest as manifests
from input_pipelines.instances import CreationSettings, TrainingInstance
from input_pipelines.pretraining_records import (
    serialized_example,
    tokenize_documents,
    write_pretraining_records,
)
from input_pipelines.record_reader import RecordFiles

SETTINGS = CreationSettings(
    max_seq_length=16, max_predictions_per_seq=4, dupe_factor=3, random_seed=9
)


def features_of(record):
    features = tf.train.Example.FromString(record).features.feature
    return {
        name: list(getattr(feature, feature.WhichOneof("kind")).value)
        for name, feature in features.items()
    }


def write(documents, tokenizer, vocab_file, files, settings=SETTINGS):
    return write_pretraining_records(documents, tokenizer, vocab_file, files, settings)


def test_features_of_an_example():
    instance = TrainingInstance(
        input_ids=[2, 9, 4, 3, 11, 3],
        segment_ids=[0, 0, 0, 0, 1, 1],
        is_random_next=True,
        masked_lm_positions=[2, 4],
        masked_lm_ids=[10, 11],
    )
    features = features_of(serialized_example(instance, 8, 3))
    assert features == {
        "input_ids": [2, 9, 4, 3, 11, 3, 0, 0],
        "input_mask": [1, 1, 1, 1, 1, 1, 0, 0],
        "segment_ids": [0, 0, 0, 0, 1, 1, 0, 0],
        "masked_lm_positions": [2, 4, 0],
        "masked_lm_ids": [10, 11, 0],
        "masked_lm_weights": [1.0, 1.0, 0.0],
        "next_sentence_labels": [1],
    }


def test_kinds_of_the_features():
    instance = TrainingInstance([2, 5, 3, 6, 3], [0, 0, 0, 1, 1], False, [1], [5])
    features = tf.train.Example.FromString(serialized_example(instance, 8, 3)).features.feature
    kinds = {name: feature.WhichOneof("kind") for name, feature in features.items()}
    assert kinds.pop("masked_lm_weights") == "float_list"
    assert set(kinds.values()) == {"int64_list"}


def test_tokenize_documents(tokenizer):
    corpus = tokenize_documents([["w0 w1a", "\u0000"], ["\u200b"], ["w1 w1"]], tokenizer)
    assert [[list(s) for s in d] for d in corpus.documents] == [[[5, 6, 45]], [[6, 6]]]
    expected = np.zeros(50, np.int64)
    expected[[5, 6, 45]] = 1, 3, 1
    np.testing.assert_array_equal(corpus.token_counts, expected)
    text = "w0 w1a\n\u0000\n\n\u200b\n\nw1 w1\n\n"
    assert corpus.description == {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "documents": 2,
        "sentences": 2,
        "tokens": 5,
    }


def test_records_and_manifest(tmp_path, documents, tokenizer, vocab_file):
    files = [str(tmp_path / f"train-{i}.tfrecord") for i in range(2)]
    manifest = write(documents, tokenizer, vocab_file, files)
    assert sorted(os.listdir(tmp_path)) == [
        "manifest.train-0.tfrecord.json",
        "token_counts.train-0.tfrecord.npy",
        "train-0.tfrecord",
        "train-1.tfrecord",
        f"vocab.{manifest.vocab_sha256}.txt",
    ]
    assert manifest.vocab_file == f"vocab.{manifest.vocab_sha256}.txt"
    assert manifest == manifests.read_manifest(manifests.manifest_path(files[0]))
    assert (manifest.max_seq_length, manifest.max_predictions_per_seq) == (16, 4)
    assert (manifest.vocab_size, manifest.do_lower_case) == (50, True)
    with open(vocab_file, "rb") as file:
        assert manifest.vocab_sha256 == hashlib.sha256(file.read()).hexdigest()
    assert manifest.creation == {
        "masked_lm_prob": 0.15,
        "short_seq_prob": 0.1,
        "dupe_factor": 3,
        "do_whole_word_mask": False,
        "random_next_sentence": True,
        "random_seed": 9,
    }
    assert manifest.corpus["documents"] == 6
    for entry, path in zip(manifest.files, files, strict=True):
        with open(path, "rb") as file:
            content = file.read()
        assert entry.name == os.path.basename(path)
        assert entry.num_bytes == len(content)
        assert entry.sha256 == hashlib.sha256(content).hexdigest()
        assert entry.num_records == RecordFiles([path]).num_records
    counts = [entry.num_records for entry in manifest.files]
    assert sum(counts) == manifest.num_records and counts[0] - counts[1] in (0, 1)
    token_counts = manifests.read_token_counts(str(tmp_path / manifest.token_counts))
    assert token_counts.dtype == np.int64 and token_counts.shape == (50,)
    assert manifest.token_counts_sha256 == manifests.sha256_of_file(
        str(tmp_path / manifest.token_counts)
    )
    assert token_counts.sum() == manifest.corpus["tokens"] == 120


def test_same_arguments_same_bytes(tmp_path, documents, tokenizer, vocab_file):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(documents, tokenizer, vocab_file, [str(tmp_path / name / "x.tfrecord")])
    for name in os.listdir(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_shards_hold_the_same_shuffled_records(tmp_path, documents, tokenizer, vocab_file):
    one = [str(tmp_path / "one.tfrecord")]
    three = [str(tmp_path / f"three-{i}.tfrecord") for i in range(3)]
    write(documents, tokenizer, vocab_file, one)
    write(documents, tokenizer, vocab_file, three)
    whole = RecordFiles(one)
    records = [whole.read(i) for i in range(whole.num_records)]
    for shard, path in enumerate(three):
        part = RecordFiles([path])
        assert [part.read(i) for i in range(part.num_records)] == records[shard::3]
    # Shuffled: the first tokens of the documents do not come in the documents' order.
    firsts = [features_of(record)["input_ids"][1] for record in records]
    assert firsts != sorted(firsts)


def test_a_failure_leaves_no_manifest_that_vouches(
    tmp_path, documents, tokenizer, vocab_file, monkeypatch
):
    files = [str(tmp_path / f"{i}.tfrecord") for i in range(2)]
    write(documents, tokenizer, vocab_file, files)
    original = tf.io.gfile.rename

    def rename(source, target, overwrite=False):
        if target == files[1]:
            raise OSError("disk full")
        original(source, target, overwrite)

    monkeypatch.setattr(tf.io.gfile, "rename", rename)
    with pytest.raises(OSError, match="disk full"):
        write(documents[:3], tokenizer, vocab_file, files)
    assert not os.path.exists(manifests.manifest_path(files[0]))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a/x", "b/x"], r"output_files: .* lie in different directories"),
        (["a/x", "a/x"], r"output_files: .* name a file twice"),
    ],
)
def test_unfit_output_files(tmp_path, documents, tokenizer, vocab_file, names, message):
    with pytest.raises(ValueError, match=message):
        write(documents, tokenizer, vocab_file, [str(tmp_path / name) for name in names])


def test_no_instances_is_an_error(tmp_path, tokenizer, vocab_file):
    with pytest.raises(ValueError, match="1 documents with 1 tokens give 0 instances"):
        write([["w0"]], tokenizer, vocab_file, [str(tmp_path / "x.tfrecord")])
    assert os.listdir(tmp_path) == []
