import math
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tiny_run import copy_records

from input_pipelines.records import manifest as manifests
from input_pipelines.records.pretraining_features import (
    PretrainingFeatures,
    check_range,
    open_pretraining_records,
)
from input_pipelines.records.record_reader import RecordError, RecordFiles, record_offsets

F, P, VOCAB, SEGMENTS = 16, 4, 50, 3

# Every feature with its last value, and what follows that in the message.
LAST = {
    "input_ids": (VOCAB - 1, ", since the network's vocab_size is 50. "),
    "input_mask": (1, ". "),
    "segment_ids": (SEGMENTS - 1, ", since the network's type_vocab_size is 3. "),
    "masked_lm_positions": (F - 1, ", since it is a place in input_ids. "),
    "masked_lm_ids": (VOCAB - 1, ", since the network's vocab_size is 50. "),
    "masked_lm_weights": (3.3895313892515355e38, ", since bfloat16 holds no larger number. "),
    "next_sentence_labels": (1, ". "),
}
OUT_OF_RANGE = [
    (name, value)
    for name, (last, _) in LAST.items()
    for value in (
        [-1.0, -1e-45, math.nan, math.inf, -math.inf, 3.4e38]
        if name == "masked_lm_weights"
        else [-1, last + 1, 2**31, 2**32, 2**32 + 1, -(2**32), -(2**63), 2**63 - 1]
    )
]


@pytest.fixture
def features():
    return PretrainingFeatures(F, P, VOCAB, SEGMENTS)


@pytest.fixture
def records(record_files):
    return RecordFiles(record_files)


@pytest.fixture
def values():
    """Makes batches of three records in range; takes {name: last value of the last record}."""

    def make(**changes):
        batch = {
            name: np.zeros([3, *spec.shape], spec.dtype.as_numpy_dtype)
            for name, spec in PretrainingFeatures(F, P).spec().items()
        }
        for name, value in changes.items():
            batch[name][2, -1] = value
        return batch

    return make


def without_manifest(files):
    tf.io.gfile.remove(manifests.manifest_path(files[0]))
    return files


def test_values_in_their_ranges_pass(features, records, values):
    for name, (last, _) in LAST.items():
        features.check_values(records, [5, 0, 2], values(**{name: last}))
    features.check_values(records, [], {name: array[:0] for name, array in values().items()})


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_every_value_is_checked(features, records, values, name, value):
    batch = values(**{name: value})
    last, why = LAST[name]
    offset = int(record_offsets(records.files[0])[2])
    with pytest.raises(RecordError) as raised:
        features.check_values(records, np.array([5, 0, 2]), batch)
    assert str(raised.value) == (
        f"{records.files[0]}: record 2 (byte {offset}): {name} holds {batch[name][2, -1]}; it must "
        f"be from 0 to {last}{why}Give the network and the vocabulary that the data was created "
        "with, or create the data again."
    )


@pytest.mark.parametrize("name", ["input_ids", "masked_lm_ids", "segment_ids"])
def test_ids_of_an_unknown_network_fit_int32(records, values, name):
    features = PretrainingFeatures(F, P)
    features.check_values(records, [5, 0, 2], values(**{name: 2**31 - 1}))
    for value in (-1, 2**31, 2**32 + 1):
        with pytest.raises(RecordError, match="from 0 to 2147483647, since ids are int32"):
            features.check_values(records, [5, 0, 2], values(**{name: value}))


def test_the_first_record_out_of_range_is_named(records):
    ids = np.array([[1, 49], [0, 3], [50, 51], [60, 4]])
    check_range(records, [3, 0, 2, 1], "input_ids", ids, 60)
    with pytest.raises(RecordError, match=r"record 2 .*: input_ids holds 50; it must be .* to 49"):
        check_range(records, [3, 0, 2, 1], "input_ids", ids, 49)


# Opening


def test_open_with_and_without_manifest(record_files):
    with_manifest = open_pretraining_records(record_files, F, P, VOCAB)
    without = open_pretraining_records(without_manifest(record_files), F, P, VOCAB)
    assert with_manifest.num_records == without.num_records > 20
    assert with_manifest.read(5) == without.read(5)


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ((8, 4, 50), r"set-0\.tfrecord: max_seq_length is 16, as .*manifest.*, but 8 was given. U"),
        ((16, 5, 50), r"set-0.*: max_predictions_per_seq is 4, as .*, but 5 was given\. Use 4, or"),
        ((16, 4, 49), r"set-0.*: vocab_size is 50, as .*, but 49 was given\. Use 50, or create"),
    ],
)
def test_the_manifest_is_checked(record_files, expected, message):
    with pytest.raises(ValueError, match=message):
        open_pretraining_records(record_files, *expected)


@pytest.mark.parametrize("rows", [51, 64, 30528, None])
def test_a_network_may_have_rows_without_tokens(record_files, rows):
    assert open_pretraining_records(record_files, F, P, rows).num_records > 20


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ((8, 4), r"set-0.*: record 0 .*: input_ids has 16 values, but max_seq_length is 8\. Use 1"),
        ((16, 5), r"masked_lm_positions has 4 values, but max_predictions_per_seq is 5\. Use 4"),
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
        open_pretraining_records(record_files, F, P)


@pytest.mark.parametrize("pattern", ["", "*.tfrecord", "set-[01]*"])
def test_a_warning_names_files_that_are_missing(tmp_path, record_files, caplog, pattern):
    pattern = str(tmp_path / pattern)
    open_pretraining_records(pattern, F, P)
    assert not caplog.messages
    os.remove(record_files[0])
    for _ in range(2):  # one warning is enough
        open_pretraining_records(pattern, F, P)
    (message,) = caplog.messages
    assert message == (
        f"1 of the 2 files that {tmp_path}/manifest.set-0.tfrecord.json lists are not read, "
        f"{record_files[0]} first: a part of the data is missing."
    )


def test_files_may_be_chosen(tmp_path, record_files, caplog):
    open_pretraining_records(record_files[1], F, P)
    open_pretraining_records(str(tmp_path / "set-1*"), F, P)
    os.remove(record_files[0])
    open_pretraining_records(record_files[1], F, P)
    assert not caplog.messages


def test_empty_files(tmp_path, record_files):
    empty = tmp_path / "x.tfrecord"
    empty.write_bytes(b"")
    with pytest.raises(RecordError, match=r"x\.tfrecord: the file is empty"):
        open_pretraining_records([*record_files, str(empty)], F, P)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.pop("segment_ids"), r" has no feature 'segment_ids'; it has input_ids, i.*\?"),
        (lambda f: f.clear(), r" has no feature 'input_ids'; it has no features\. Are these pre"),
        (
            lambda f: f["next_sentence_labels"].int64_list.value.append(1),
            r": next_sentence_labels has 2 values of kind int64_list; it must have 1 of kind int64",
        ),
        (
            lambda f: f["input_ids"].float_list.value.extend([1.0] * F),
            r": input_ids has 16 values of kind float_list; it must have 16 of kind int64_list\.",
        ),
        (
            lambda f: f["input_mask"].ClearField("int64_list"),
            r": input_mask has 0 values of kind None; it must have 16 of kind int64_list\. Create",
        ),
    ],
)
def test_records_of_other_kinds(tmp_path, record_files, change, message):
    path = str(tmp_path / "other")
    copy_records(record_files[0], path, {0: change})
    with pytest.raises(ValueError, match=r"other: record 0 \(byte 0\)" + message):
        open_pretraining_records(path, F, P)
