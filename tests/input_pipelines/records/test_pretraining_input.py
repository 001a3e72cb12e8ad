"""Batches of records without masks, batches in blocks, and bad records that are left out."""

import logging
import math
import pathlib
import sys

import forked
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from batches import batches, context
from tiny_run import copy_records

from input_pipelines.creation.pretraining_records import write_pretraining_records
from input_pipelines.creation.settings import CreationSettings
from input_pipelines.records import manifest as manifests
from input_pipelines.records import pretraining_input
from input_pipelines.records.order import record_order
from input_pipelines.records.pretraining_input import input_fn_builder
from input_pipelines.records.record_reader import RecordFiles, record_offsets


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
def test_element_spec(files, is_training, precision):
    with tf.Graph().as_default():
        dataset = input_fn(files, is_training, precision=precision, vocab_size=50)(
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


def test_weights_survive_the_cast(files):
    params = {"batch_size": 4}
    single = batches(input_fn(files, True, precision="float32"), params, most=3)
    half = batches(input_fn(files, True, precision="bfloat16"), params, most=3)
    for a, b in zip(single, half, strict=True):
        assert b["masked_lm_weights"].dtype.name == "bfloat16"
        np.testing.assert_array_equal(a["masked_lm_weights"], b["masked_lm_weights"].astype(float))


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
        ("masked_lm_ids", 2**32 + 5, 49),
        ("segment_ids", 2**32 + 1, 1),
        ("masked_lm_weights", math.nan, "3.389"),
    ],
)
def test_values_out_of_range_surface_from_the_session(
    tmp_path, record_files, is_training, name, value, last
):
    path = str(tmp_path / "changed.tfrecord")
    copy_records(record_files[0], path, {3: lambda features: change(features, name, value)})
    offset = int(record_offsets(path)[3])
    message = (
        rf"changed\.tfrecord: record 3 \(byte {offset}\): {name} holds {value}; it must be from "
        rf"0 to {last}"
    )
    function = input_fn([path], is_training, vocab_size=50, type_vocab_size=2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        batches(function, {"batch_size": 4}, most=20)


def test_unknown_precision():
    with pytest.raises(ValueError, match="precision is 'half'; it must be float32 or bfloat16"):
        input_fn_builder("x", 16, 4, True, precision="half")


def test_the_digest_tells_record_sets_apart(tmp_path, record_files):
    files = record_files
    before = manifests.digest(files)
    assert manifests.digest(files) == before
    assert len(manifests.vocabularies(files)) == 1
    copy = tmp_path / "copy.tfrecord"  # no manifest: told by name and size
    copy.write_bytes(pathlib.Path(files[0]).read_bytes())
    assert manifests.vocabularies([str(copy)]) == set()
    whole = manifests.digest([str(copy)])
    copy.write_bytes(copy.read_bytes()[:-1])
    assert manifests.digest([str(copy)]) != whole != before


def checked_input_fn(files, is_training=True, **options):
    return input_fn_builder(files, 16, 4, is_training, vocab_size=50, type_vocab_size=2, **options)


@pytest.fixture(params=["static", "dynamic"])
def files(request):
    return request.getfixturevalue({"static": "record_files"}.get(request.param, "unmasked_files"))


# Blocks of batches


@pytest.mark.parametrize("is_training", [True, False])
def test_blocks_do_not_change_batches(files, is_training, monkeypatch):
    params = {"batch_size": 4, "context": context(3)}
    number = len(batches(checked_input_fn(files, False), params))
    function = checked_input_fn(files, is_training, random_seed=5, skipped=[(4, 3)])
    whole = batches(function, params, most=number)
    for at_once in (1, 12, 16):
        monkeypatch.setattr(pretraining_input, "_RECORDS_AT_ONCE", at_once)
        np.testing.assert_equal(batches(function, params, most=number), whole)


def damage(path, record, place=30):
    with open(path, "r+b") as file:
        file.seek(int(record_offsets(path)[record]) + place)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def shorter(features):
    features["input_mask"].int64_list.value.pop()


@pytest.mark.parametrize("kind", ["damaged", "shorter", "range"])
def test_the_batches_before_a_bad_record_are_read(record_files, tmp_path, kind):
    path = str(tmp_path / "bad.tfrecord")
    wrong = {
        "damaged": lambda features: None,
        "shorter": shorter,
        "range": lambda features: change(features, "segment_ids", 2),
    }[kind]
    copy_records(record_files[0], path, {9: wrong, 12: wrong})
    if kind == "damaged":
        damage(path, 9)
        damage(path, 12)
    function = checked_input_fn([path], is_training=False)
    assert len(batches(function, {"batch_size": 4}, most=2)) == 2
    message = r"bad\.tfrecord: record 9 \(byte \d+\)"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        batches(function, {"batch_size": 4}, most=3)


# Records without masks


def test_masks_are_fresh_in_each_epoch_and_segments_are_not(unmasked_files):
    number = RecordFiles(unmasked_files).num_records
    epochs = batches(checked_input_fn(unmasked_files), {"batch_size": number}, most=3)
    orders = [np.lexsort(unmasked(epoch).T[::-1]) for epoch in epochs]
    texts = [unmasked(epoch)[order] for epoch, order in zip(epochs, orders, strict=True)]
    np.testing.assert_array_equal(texts[0], texts[1])
    np.testing.assert_array_equal(texts[0], texts[2])
    masks = [e["masked_lm_positions"][o] for e, o in zip(epochs, orders, strict=True)]
    for a, b in ((0, 1), (1, 2), (0, 2)):
        assert (masks[a] != masks[b]).any(axis=1).mean() > 0.5


def unmasked(batch):
    ids = batch["input_ids"].copy()
    rows, slots = np.nonzero(batch["masked_lm_weights"])
    ids[rows, batch["masked_lm_positions"][rows, slots]] = batch["masked_lm_ids"][rows, slots]
    return ids


def test_training_resumes_exactly_on_any_number_of_hosts(files):
    whole = batches(checked_input_fn(files, random_seed=3), {"batch_size": 6}, most=30)
    again = batches(checked_input_fn(files, random_seed=3), {"batch_size": 6}, most=30)
    np.testing.assert_equal(again, whole)
    params = {"batch_size": 6, "context": context(17)}
    resumed = batches(checked_input_fn(files, random_seed=3), params, most=13)
    np.testing.assert_equal(resumed, whole[17:])
    hosts = [
        batches(
            checked_input_fn(files, random_seed=3),
            {"batch_size": 2, "context": context(17, host, 3)},
            most=13,
        )
        for host in range(3)
    ]
    joined = [
        {name: np.concatenate([batch[name] for batch in parts]) for name in parts[0]}
        for parts in zip(*hosts, strict=True)
    ]
    np.testing.assert_equal(joined, whole[17:])
    other = batches(checked_input_fn(files, random_seed=4), {"batch_size": 6}, most=1)
    assert (other[0]["input_ids"] != whole[0]["input_ids"]).any()


def test_masks_of_an_evaluation_belong_to_its_records(unmasked_files):
    def rows(batch_size, **options):
        found = batches(
            checked_input_fn(unmasked_files, False, **options), {"batch_size": batch_size}
        )
        joined = {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}
        is_real = joined["is_real_example"] == 1
        assert not any(values[~is_real].any() for values in joined.values())
        return {name: values[is_real] for name, values in joined.items()}

    np.testing.assert_equal([rows(7), rows(4, random_seed=9)], [rows(5)] * 2)


def test_a_network_with_one_segment_is_refused(unmasked_files):
    function = input_fn_builder(unmasked_files, 16, 4, True, vocab_size=50, type_vocab_size=1)
    message = r"unmasked-.*: record \d+ .*: segment_ids holds 1; it must be from 0 to 0"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        batches(function, {"batch_size": 4}, most=1)


# Bad records


def change(features, name, value):
    feature = features[name]
    (feature.int64_list.value or feature.float_list.value)[-1] = value


def bad_records(files, tmp_path):
    """Copies records, of which 2 is damaged, 5 has an id too many, and 7 and 8 hold odd values."""
    path = str(tmp_path / "bad.tfrecord")
    changes = {
        5: lambda f: f["segment_ids"].int64_list.value.append(0),
        7: lambda f: change(f, "input_ids", 50),
        8: lambda f: change(f, "masked_lm_weights", math.nan),
    }
    copy_records(files[0], path, changes)
    damage(path, 2)
    return path


def bad_unmasked_records(files, tmp_path, documents, tokenizer):
    """Writes records without masks that are as bad as `bad_records`, and a manifest that fits."""
    path = str(tmp_path / "bad.tfrecord")
    settings = CreationSettings(max_seq_length=16, max_predictions_per_seq=4, dupe_factor=2)
    vocab_file = manifests.find_vocabulary(files)
    write_pretraining_records(documents, tokenizer, vocab_file, [path], settings, masking="dynamic")
    records = RecordFiles([path])
    examples = records.read_all(np.arange(records.num_records))
    rows = [tf.train.Example.FromString(example) for example in examples]
    rows[5].features.feature["segment_lengths"].int64_list.value[:] = [1]
    ids = rows[7].features.feature["token_ids"].bytes_list
    ids.value[0] = b"\xff" * len(ids.value[0])
    rows[8].features.feature["next_sentence_labels"].int64_list.value[0] = 2
    with tf.io.TFRecordWriter(path) as writer:
        for row in rows:
            writer.write(row.SerializeToString())
    damage(path, 2)
    manifest_file = manifests.manifest_path(path)
    with open(manifest_file) as file:
        text = file.read()
    size = manifests.read_manifest(manifest_file).files[0].num_bytes
    with open(manifest_file, "w") as file:
        now = tf.io.gfile.stat(path).length
        file.write(text.replace(f'"num_bytes": {size}', f'"num_bytes": {now}'))
    return path


@pytest.fixture(params=["static", "dynamic"])
def bad_file(request, tmp_path, documents, tokenizer):
    if request.param == "static":
        return bad_records(request.getfixturevalue("record_files"), tmp_path)
    unmasked_files = request.getfixturevalue("unmasked_files")
    return bad_unmasked_records(unmasked_files, tmp_path, documents, tokenizer)


@pytest.mark.parametrize("is_training", [True, False])
def test_bad_records_are_left_out_counted_and_named(bad_file, is_training, caplog):
    number = RecordFiles([bad_file]).num_records
    function = checked_input_fn([bad_file], is_training, max_bad_records=4, random_seed=1)
    with caplog.at_level(logging.WARNING, "tensorflow"):
        found = batches(function, {"batch_size": 4}, most=-(-2 * number // 4))
    rows = {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}
    is_real = rows["is_real_example"] == 1
    passes = 2 if is_training else 1
    assert is_real.sum() in (passes * (number - 4), passes * (number - 4) + 1)
    assert not any(values[~is_real].any() for values in rows.values())
    assert (rows["masked_lm_weights"].sum(axis=1)[is_real] > 0).all()
    messages = [record.getMessage() for record in caplog.records]
    for number, message in enumerate(messages, start=1):
        assert message.startswith(f"Bad record {number} of at most 4: ")
    assert len(messages) == 4
    for record in (2, 5, 7, 8):
        assert sum(f"bad.tfrecord: record {record} (byte " in message for message in messages) == 1


def test_good_records_do_not_change_when_bad_ones_are_left_out(record_files, tmp_path):
    whole = batches(checked_input_fn([record_files[0]], False), {"batch_size": 4})
    path = bad_records(record_files, tmp_path)
    found = batches(checked_input_fn([path], False, max_bad_records=4), {"batch_size": 4})
    for name in whole[0]:
        expected = np.concatenate([batch[name] for batch in whole])
        expected[[2, 5, 7, 8]] = 0
        np.testing.assert_array_equal(np.concatenate([batch[name] for batch in found]), expected)


def test_too_many_bad_records_end_the_run(bad_file, caplog):
    caplog.set_level(logging.WARNING, "tensorflow")
    function = checked_input_fn([bad_file], False, max_bad_records=3)
    message = r"bad\.tfrecord: record \d \(byte"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        batches(function, {"batch_size": 4})
    assert "There are more than 3 bad records." in caplog.text


def test_each_host_counts_its_own_bad_records(bad_file, caplog):
    """Of four bad records, each of two hosts reads two."""
    caplog.set_level(logging.WARNING, "tensorflow")
    for host in range(2):
        params = {"batch_size": 2, "context": context(0, host, 2)}
        caplog.clear()
        batches(checked_input_fn([bad_file], False, max_bad_records=2), params)
        assert len(caplog.records) == 2
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"bad\.tfrecord: record \d"):
            batches(checked_input_fn([bad_file], False, max_bad_records=1), params)


def test_a_negative_number_of_bad_records(record_files):
    with tf.Graph().as_default(), pytest.raises(ValueError, match="-1; it must be 0 or more"):
        checked_input_fn(record_files, max_bad_records=-1)({"batch_size": 4})


_THREADS = """
import os, sys
import tensorflow.compat.v1 as tf
from input_pipelines.records.pretraining_input import input_fn_builder

with tf.Graph().as_default():
    if sys.argv[1:]:
        input_fn_builder(sys.argv[1:], 16, 4, True, vocab_size=50, type_vocab_size=2)({
            "batch_size": 4})
    else:
        tf.data.Dataset.range(3).map(lambda number: number + 1)
    with tf.Session():
        print("threads:", len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_training_has_the_threads_of_any_session(record_files):
    """The reader's own session, which came first, had one thread."""

    def threads(*files):
        argv = [sys.executable, "-c", _THREADS, *files]
        done = forked.run(argv, capture_output=True, text=True, check=True)
        return int(done.stdout.partition("threads: ")[2])

    assert threads(*record_files) == threads()


@pytest.mark.parametrize("num_read", [4, 7, None, 10**6])
def test_an_evaluation_of_a_part_reads_all_files(record_files, num_read):
    rows = expected_rows(record_files)
    end = min(num_read or len(rows), len(rows))
    expected = [rows[number * len(rows) // end] for number in range(end)]
    found = list(batches(input_fn(record_files, False, num_read=num_read), {"batch_size": 4}))
    read = np.concatenate([batch["input_ids"][batch["is_real_example"] == 1] for batch in found])
    np.testing.assert_array_equal(read, [row["input_ids"] for row in expected])
    alone = list(batches(input_fn(record_files[:1], False, num_read=num_read), {"batch_size": 4}))
    first = RecordFiles(record_files[:1]).num_records  # one file is read in its order
    np.testing.assert_array_equal(
        np.concatenate([batch["input_ids"] for batch in alone])[:first],
        [row["input_ids"] for row in rows[:first]],
    )
