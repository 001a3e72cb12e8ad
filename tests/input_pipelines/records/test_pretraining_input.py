import math
import pathlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from batches import batches, context
from tiny_run import copy_records

from input_pipelines.creation.pretraining_records import write_pretraining_records
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.records import manifest
from input_pipelines.records.order import record_order
from input_pipelines.records.pretraining_input import cast_features, input_fn_builder
from input_pipelines.records.record_reader import RecordFiles, record_offsets


@pytest.fixture
def record_files(tmp_path, documents, tokenizer, vocab_file):
    files = [str(tmp_path / f"set-{i}.tfrecord") for i in range(2)]
    settings = CreationSettings(max_seq_length=16, max_predictions_per_seq=4, dupe_factor=1)
    write_pretraining_records(documents, tokenizer, vocab_file, files, settings, masking="static")
    return files


def input_fn(files, is_training, **options):
    return input_fn_builder(files, 16, 4, is_training, **options)


def expected_rows(files):
    """Reads the features of every record, by the file format and not by the code under test."""
    rows = []
    records = RecordFiles(files)
    for number in range(records.num_records):
        example = tf.train.Example.FromString(records.read(number))
        rows.append(
            {
                name: list(feature.int64_list.value or feature.float_list.value)
                for name, feature in example.features.feature.items()
            }
        )
    return rows


def assert_batch_equals(batch, rows):
    for name in rows[0]:
        np.testing.assert_array_equal(batch[name].astype(float), [row[name] for row in rows])


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_element_spec(record_files, is_training, precision):
    with tf.Graph().as_default():
        dataset = input_fn(record_files, is_training, precision=precision, vocab_size=50)(
            {"batch_size": 3}
        )
    spec = {name: (tuple(s.shape), s.dtype.name) for name, s in dataset.element_spec.items()}
    assert spec == {
        "input_ids": ((3, 16), "int32"),
        "input_mask": ((3, 16), "int32"),
        "segment_ids": ((3, 16), "int32"),
        "masked_lm_positions": ((3, 4), "int32"),
        "masked_lm_ids": ((3, 4), "int32"),
        "masked_lm_weights": ((3, 4), precision),
        "next_sentence_labels": ((3, 1), "int32"),
        "is_real_example": ((3,), "int32"),
    }


def test_no_autotuning_keeps_a_session_from_closing(record_files):
    with tf.Graph().as_default():
        dataset = input_fn(record_files, True)({"batch_size": 3})
        with pytest.warns(UserWarning, match="no longer known at graph construction time"):
            assert dataset.options().autotune.enabled is False


def test_training_follows_the_order_over_epochs(record_files):
    rows = expected_rows(record_files)
    found = batches(input_fn(record_files, True, random_seed=3), {"batch_size": 4}, most=len(rows))
    order = record_order(np.arange(4 * len(rows)), len(rows), seed=3).reshape(-1, 4)
    assert len(found) == len(rows)  # That is four epochs.
    for batch, numbers in zip(found, order, strict=True):
        assert_batch_equals(batch, [rows[number] for number in numbers])
        assert batch["is_real_example"].tolist() == [1] * 4


def test_training_resumes_by_arithmetic(record_files):
    function = input_fn(record_files, True, random_seed=3)
    whole = batches(function, {"batch_size": 5}, most=20)
    resumed = batches(function, {"batch_size": 5, "context": context(13)}, most=7)
    for batch, expected in zip(resumed, whole[13:], strict=True):
        for name in expected:
            np.testing.assert_array_equal(batch[name], expected[name])


def test_invocations_share_the_global_batch(record_files):
    function = input_fn(record_files, True)
    whole = batches(function, {"batch_size": 6, "context": context(2)}, most=3)
    halves = [
        batches(function, {"batch_size": 3, "context": context(2, invocation, 2)}, most=3)
        for invocation in range(2)
    ]
    for step in range(3):
        joined = np.concatenate([half[step]["input_ids"] for half in halves])
        np.testing.assert_array_equal(joined, whole[step]["input_ids"])


def test_evaluation_is_one_padded_pass(record_files):
    rows = expected_rows(record_files)
    for batch_size in (4, len(rows), len(rows) + 3):
        found = batches(input_fn(record_files, False), {"batch_size": batch_size})
        assert len(found) == -(-len(rows) // batch_size)
        joined = {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}
        assert_batch_equals({name: v[: len(rows)] for name, v in joined.items()}, rows)
        padding = {name: v[len(rows) :] for name, v in joined.items()}
        assert all(len(v) == len(found) * batch_size - len(rows) for v in padding.values())
        assert not any(v.any() for v in padding.values())
        assert joined["is_real_example"].sum() == len(rows)


def test_evaluation_starts_at_its_beginning_at_any_step(record_files):
    function = input_fn(record_files, False)
    first = batches(function, {"batch_size": 4}, most=1)
    at_step = batches(function, {"batch_size": 4, "context": context(100)}, most=1)
    np.testing.assert_array_equal(first[0]["input_ids"], at_step[0]["input_ids"])


def test_weights_survive_the_cast(record_files):
    params = {"batch_size": 4}
    single = batches(input_fn(record_files, True, precision="float32"), params, most=3)
    half = batches(input_fn(record_files, True, precision="bfloat16"), params, most=3)
    for a, b in zip(single, half, strict=True):
        np.testing.assert_array_equal(a["masked_lm_weights"], b["masked_lm_weights"].astype(float))


def test_a_damaged_record_surfaces_from_the_session_with_its_message(record_files):
    offset = int(record_offsets(record_files[1])[1])
    with open(record_files[1], "r+b") as file:
        file.seek(offset + 30)
        byte = file.read(1)[0]
        file.seek(offset + 30)
        file.write(bytes([byte ^ 1]))
    message = rf"set-1\.tfrecord: record 1 \(byte {offset}\) is damaged: its checksum"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        batches(input_fn(record_files, False), {"batch_size": 4})


def example(max_seq_length):
    """Serializes a record of zeros with 4 predictions."""
    result = tf.train.Example()
    for name in ("input_ids", "input_mask", "segment_ids"):
        result.features.feature[name].int64_list.value.extend([0] * max_seq_length)
    for name in ("masked_lm_positions", "masked_lm_ids"):
        result.features.feature[name].int64_list.value.extend([0] * 4)
    result.features.feature["masked_lm_weights"].float_list.value.extend([0.0] * 4)
    result.features.feature["next_sentence_labels"].int64_list.value.append(0)
    return result.SerializeToString()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"\xff\xfe\x00 no protocol buffer", r" is not a tf\.train\.Example"),
        (b"\x0a\x05ab\xff\xfe\x00", r" is not a tf\.train\.Example"),
        (example(8), r": input_ids has 8 values, but max_seq_length is 16\."),
        (b"", r" has no feature 'input_ids'; it has no features\."),
    ],
)
def test_a_record_of_another_kind_is_named(tmp_path, record, message):
    path = str(tmp_path / "mixed.tfrecord")
    with tf.io.TFRecordWriter(path) as writer:
        for serialized in (example(16), example(16), record):
            writer.write(serialized)
    offset = int(record_offsets(path)[2])
    message = rf"mixed\.tfrecord: record 2 \(byte {offset}\){message}"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        batches(input_fn([path], False), {"batch_size": 4})


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(
    ("name", "value", "last"),
    [
        ("input_ids", 50, 49),
        ("masked_lm_ids", 2**32 + 5, 49),
        ("segment_ids", 2, 1),
        ("segment_ids", 2**32 + 1, 1),
        ("masked_lm_positions", -(2**32) + 3, 15),
        ("next_sentence_labels", 2**32, 1),
        ("input_mask", -1, 1),
        ("masked_lm_weights", math.nan, "3.389"),
    ],
)
def test_values_out_of_range_surface_from_the_session(
    tmp_path, record_files, is_training, name, value, last
):
    path = str(tmp_path / "changed.tfrecord")

    def change(features):
        feature = features[name]
        (feature.int64_list.value or feature.float_list.value)[-1] = value

    copy_records(record_files[0], path, {3: change})
    offset = int(record_offsets(path)[3])
    message = (
        rf"changed\.tfrecord: record 3 \(byte {offset}\): {name} holds {value}; it must be from "
        rf"0 to {last}"
    )
    function = input_fn([path], is_training, vocab_size=50, type_vocab_size=2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        batches(function, {"batch_size": 4}, most=20)


def test_wrong_lengths_fail_before_any_step(record_files):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=r"16, as .*, but 32 was"):
        input_fn_builder(record_files, 32, 4, True)({"batch_size": 4})


def test_unknown_precision():
    with pytest.raises(ValueError, match="precision is 'half'; it must be float32 or bfloat16"):
        input_fn_builder("x", 16, 4, True, precision="half")


def test_cast_features():
    with tf.Graph().as_default():
        features = {
            "input_ids": tf.constant([1]),
            "weights": tf.constant([1.0]),
        }
        cast = cast_features(features, "bfloat16")
        assert {name: value.dtype.name for name, value in cast.items()} == {
            "input_ids": "int32",
            "weights": "bfloat16",
        }
        assert cast_features(features, "float32") == features


def test_the_digest_tells_record_sets_apart(tmp_path, record_files):
    files = record_files
    before = manifest.digest(files)
    assert manifest.digest(files) == before
    assert len(manifest.vocabularies(files)) == 1
    copy = tmp_path / "copy.tfrecord"  # no manifest: told by name and size
    copy.write_bytes(pathlib.Path(files[0]).read_bytes())
    assert manifest.vocabularies([str(copy)]) == set()
    whole = manifest.digest([str(copy)])
    copy.write_bytes(copy.read_bytes()[:-1])
    assert manifest.digest([str(copy)]) != whole != before
