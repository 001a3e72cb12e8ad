import pytest
import tensorflow.compat.v1 as tf

from input_pipelines.records.record_reader import (
    RecordError,
    RecordFiles,
    find_record_files,
    find_record_sets,
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


def test_find_record_files(tmp_path, record_files):
    assert find_record_files(str(tmp_path / "set-*")) == record_files
    assert find_record_files(str(tmp_path / "*")) == record_files
    backwards = [record_files[1], str(tmp_path / "*.tfrecord")]
    assert find_record_files(",".join(backwards)) == record_files[::-1]
    assert find_record_files(backwards) == record_files[::-1]
    for pattern in (str(tmp_path / "none*"), ""):
        with pytest.raises(ValueError, match=r"^no file matches '.*'\. Give a comma"):
            find_record_files([record_files[0], pattern])


def test_a_file_counts_once_however_it_is_spelled(tmp_path, record_files, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "link"
    other.symlink_to("set-1.tfrecord")
    found = find_record_files("set-0.tfrecord,./set-0.tfrecord,link,set-*")
    assert found == ["set-0.tfrecord", "link"]
    assert find_record_files(["set-0*", str(tmp_path)]) == ["set-0.tfrecord", record_files[1]]
    with pytest.raises(ValueError, match=r"'\./set-0.*' matches files that a pattern before it"):
        find_record_sets("set-0.tfrecord:0.5,./set-0.tfrecord:0.5")
    # One pattern may match a file twice.
    (tmp_path / "set-2.tfrecord").symlink_to("set-1.tfrecord")
    sets = [(["set-0.tfrecord"], 0.5), (["set-1.tfrecord"], 0.5)]
    assert find_record_sets("set-0*:0.5,set-[12]*:0.5") == sets


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
    with pytest.raises(RecordError, match=r"text: record 0 \(byte 0\): .* not a TFRecord file"):
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
