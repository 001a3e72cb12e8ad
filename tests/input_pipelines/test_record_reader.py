import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from input_pipelines import manifest as manifests
from input_pipelines.instances import CreationSettings
from input_pipelines.pretraining_records import write_pretraining_records
from input_pipelines.record_reader import (
    RecordError,
    RecordFiles,
    check_ids,
    find_record_files,
    open_pretraining_records,
    record_offsets,
)

RECORDS = [b"one", b"", b"three" * 500, b"four"]


@pytest.fixture
def raw_file(tmp_path):
    path = tmp_path / "raw.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in RECORDS:
            writer.write(record)
    return path


@pytest.fixture
def record_files(tmp_path, documents, tokenizer, vocab_file):
    """Two files with a manifest; F = 16, P = 4, vocabulary 50."""
    files = [str(tmp_path / f"set-{i}.tfrecord") for i in range(2)]
    settings = CreationSettings(max_seq_length=16, max_predictions_per_seq=4, dupe_factor=2)
    write_pretraining_records(documents, tokenizer, vocab_file, files, settings)
    return files


def without_manifest(files):
    tf.io.gfile.remove(manifests.manifest_path(files[0]))
    return files


def test_find_record_files(tmp_path, record_files):
    assert find_record_files(str(tmp_path / "set-*")) == record_files
    assert find_record_files(str(tmp_path / "*")) == record_files
    backwards = [record_files[1], str(tmp_path / "*.tfrecord")]
    assert find_record_files(",".join(backwards)) == record_files[::-1]
    assert find_record_files(backwards) == record_files[::-1]
    for pattern in (str(tmp_path / "none*"), ""):
        with pytest.raises(ValueError, match=r"^no file matches '.*'\. Give a comma"):
            find_record_files([record_files[0], pattern])


def test_offsets(raw_file):
    assert record_offsets(str(raw_file)).tolist() == [0, 19, 35, 2551, 2571]
    (raw_file.parent / "empty").write_bytes(b"")
    assert record_offsets(str(raw_file.parent / "empty")).tolist() == [0]


def test_random_access_over_files(raw_file):
    other = raw_file.with_name("other")
    other.write_bytes(raw_file.read_bytes()[:19])
    records = RecordFiles([str(raw_file), str(other), str(raw_file)])
    assert records.num_records == 9
    assert [records.num_records_of(str(path)) for path in (raw_file, other)] == [4, 1]
    for number in (8, 3, 0, 4, 5, 2, 7, 1, 6):
        assert records.read(number) == (RECORDS + RECORDS[:1] + RECORDS)[number]
    assert records.location(7).endswith("raw.tfrecord: record 2 (byte 35)")


@pytest.mark.parametrize(
    ("size", "record", "offset"), [(2570, 3, 2551), (2560, 3, 2551), (2551 - 4, 2, 35), (5, 0, 0)]
)
def test_truncated_files_are_found_at_once(raw_file, size, record, offset):
    raw_file.write_bytes(raw_file.read_bytes()[:size])
    message = rf"raw\.tfrecord: record {record} \(byte {offset}\) goes on beyond .*\({size} bytes\)"
    with pytest.raises(RecordError, match=message):
        RecordFiles([str(raw_file)])


@pytest.mark.parametrize("byte", [19, 26, 30])
def test_damaged_lengths_are_found_at_once(raw_file, byte):
    content = bytearray(raw_file.read_bytes())
    content[byte] ^= 1
    raw_file.write_bytes(content)
    with pytest.raises(RecordError, match=r"record 1 \(byte 19\): the record's length is damaged"):
        RecordFiles([str(raw_file)])


def test_other_files_are_no_record_files(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"This is a text and no TFRecord file.")
    with pytest.raises(RecordError, match=r"text: record 0 \(byte 0\): .* no TFRecord file"):
        RecordFiles([str(path)])


@pytest.mark.parametrize("byte", [47, 1234, 2550])
def test_damaged_data_is_found_when_read(raw_file, byte):
    content = bytearray(raw_file.read_bytes())
    content[byte] ^= 0x10
    raw_file.write_bytes(content)
    records = RecordFiles([str(raw_file)])
    assert records.read(3) == b"four"
    message = r"raw\.tfrecord: record 2 \(byte 35\) is damaged: its checksum"
    with pytest.raises(RecordError, match=message):
        records.read(2)


def test_open_with_and_without_manifest(record_files):
    with_manifest = open_pretraining_records(record_files, 16, 4, 50)
    without = open_pretraining_records(without_manifest(record_files), 16, 4, 50)
    assert with_manifest.num_records == without.num_records > 20
    assert with_manifest.read(5) == without.read(5)


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ((8, 4, 50), r"max_seq_length is 16 in .*set-0\.tfrecord \(says .*manifest.* is 8\. Use"),
        ((16, 5, 50), r"max_predictions_per_seq is 4 in .*--max_predictions_per_seq is 5\."),
        ((16, 4, 51), r"vocab_size is 50 in .* but the model's vocab_size is 51\."),
    ],
)
def test_the_manifest_is_checked(record_files, expected, message):
    with pytest.raises(ValueError, match=message):
        open_pretraining_records(record_files, *expected)


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ((8, 4), r"max_seq_length is 16 in .*set-0.*'input_ids'.* --max_seq_length is 8\. Use 16"),
        ((16, 5), r"max_predictions_per_seq is 4 in .*'masked_lm_positions'.* is 5\. Use 4"),
    ],
)
def test_the_first_record_is_checked_without_manifest(record_files, expected, message):
    with pytest.raises(ValueError, match=message):
        open_pretraining_records(without_manifest(record_files), *expected)


def test_a_file_of_another_set_is_refused(record_files):
    with open(record_files[1], "rb") as source:
        content = source.read()
    end = record_offsets(record_files[1])[-2]
    with open(record_files[1], "wb") as target:
        target.write(content[:end])
    message = r"set-1\.tfrecord: \d+ records in \d+ bytes, but .*manifest.* says \d+ records in"
    with pytest.raises(RecordError, match=message):
        open_pretraining_records(record_files, 16, 4)


def test_empty_files(tmp_path, record_files):
    empty = tmp_path / "x.tfrecord"
    empty.write_bytes(b"")
    with pytest.raises(RecordError, match=r"x\.tfrecord: the file is empty"):
        open_pretraining_records([*record_files, str(empty)], 16, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("segment_ids"), r"record 0 has no feature 'segment_ids'; it has in"),
        (
            lambda f: f["next_sentence_labels"].int64_list.value.append(1),
            r"record 0 has 2 values of int64_list in 'next_sentence_labels', not 1",
        ),
        (
            lambda f: f["masked_lm_weights"].int64_list.value.append(1),
            r"record 0 has 0 values of float_list in 'masked_lm_weights', not 4",
        ),
    ],
)
def test_records_of_other_kinds(tmp_path, record_files, change, message):
    example = tf.train.Example.FromString(RecordFiles(record_files).read(0))
    change(example.features.feature)
    path = str(tmp_path / "other")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(example.SerializeToString())
    with pytest.raises(ValueError, match=message):
        open_pretraining_records(path, 16, 4)


def test_no_example_at_all(raw_file):
    with pytest.raises(RecordError, match=r"raw\.tfrecord: record 0 is no tf\.train\.Example"):
        open_pretraining_records(str(raw_file), 16, 4)


def test_check_ids(record_files):
    records = RecordFiles(record_files)
    ids = np.array([[1, 49], [0, 3], [4, 50]])
    check_ids(records, [3, 0, 2], "input_ids", ids, 51)
    check_ids(records, [], "input_ids", ids[:0], 50)
    message = r"set-0\.tfrecord: record 2 \(byte \d+\): input_ids holds the id 50, .* 50 tokens"
    with pytest.raises(RecordError, match=message):
        check_ids(records, [3, 0, 2], "input_ids", ids, 50)
    with pytest.raises(RecordError, match=r"record 3 .* masked_lm_ids holds the id -1"):
        check_ids(records, [3], "masked_lm_ids", np.array([[-1]]), 50)
