import os
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from tiny_run import copy_records

from input_pipelines.records.record_reader import RecordError, RecordFiles
from input_pipelines.records.unigram import unigram_cross_entropy


def write(path, rows):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for ids, weights in rows:
            example = tf.train.Example()
            example.features.feature["masked_lm_ids"].int64_list.value.extend(ids)
            example.features.feature["masked_lm_weights"].float_list.value.extend(weights)
            writer.write(example.SerializeToString())
    return str(path)


def test_cross_entropy_by_hand(tmp_path):
    files = [
        write(tmp_path / "a", [([1, 2, 0], [1.0, 1.0, 0.0]), ([0, 0, 0], [0.0, 0.0, 0.0])]),
        write(tmp_path / "b", [([3, 1, 0], [1.0, 0.5, 0.0])]),
    ]
    # With one added to each count the probabilities are 1/10, 5/10, 3/10 and 1/10.
    found = unigram_cross_entropy(",".join(files), np.array([0, 4, 2, 0]))
    expected = -(1.5 * np.log(0.5) + np.log(0.3) + np.log(0.1)) / 3.5
    assert found == pytest.approx(expected, abs=1e-14)


def test_of_several_files_a_part_of_the_records_is_spread_over_all(tmp_path):
    """As an evaluation reads them; of one file it is the first ones."""
    rows = [([number], [1.0]) for number in (1, 1, 2, 2)]
    files = [write(tmp_path / "a", rows[:3]), write(tmp_path / "b", rows[3:])]
    counts = np.array([0, 6, 2])
    ones, twos = -np.log([7 / 11, 3 / 11])
    assert unigram_cross_entropy(files, counts, 2) == pytest.approx((ones + twos) / 2)
    whole = write(tmp_path / "whole", rows)
    assert unigram_cross_entropy(whole, counts, 2) == pytest.approx(ones)
    assert unigram_cross_entropy(whole, counts, 9) == pytest.approx((ones + twos) / 2)


@pytest.mark.parametrize("name", ["token_ids", "segment_lengths"])
def test_unmasked_records_that_lack_a_feature_are_left_out(tmp_path, unmasked_files, name):
    number = RecordFiles(unmasked_files).num_records
    counts = np.ones(50)
    whole = unigram_cross_entropy(unmasked_files[:1], counts)
    for bad in (0, 3):
        path = str(tmp_path / f"bad-{bad}" / "unmasked-0.tfrecord")
        os.mkdir(os.path.dirname(path))
        for companion in tmp_path.iterdir():
            if companion.is_file() and companion.suffix != ".tfrecord":
                shutil.copy(companion, os.path.dirname(path))
        copy_records(unmasked_files[0], path, {bad: lambda features: features.pop(name)})
        with pytest.raises(RecordError, match=rf"record {bad} .* has no feature '{name}'"):
            unigram_cross_entropy(path, counts)
        found = unigram_cross_entropy(path, counts, max_bad_records=1)
        assert found == pytest.approx(whole) and number > 3


@pytest.mark.parametrize("bad", [([], []), ([1, 2], [1.0]), ([1], [])])
def test_records_with_masks_that_lack_a_feature_are_left_out(tmp_path, bad):
    path = write(tmp_path / "a", [([1, 2], [1.0, 0.0]), bad])
    with pytest.raises(RecordError, match=r"a: record 1 .*masked_lm_"):
        unigram_cross_entropy(path, np.ones(4))
    found = unigram_cross_entropy(path, np.ones(4), max_bad_records=1)
    assert found == pytest.approx(np.log(4))


def test_errors(tmp_path):
    with pytest.raises(ValueError, match=r"a: record 0 .*masked_lm_ids holds 4; it .* 0 to 3"):
        unigram_cross_entropy(write(tmp_path / "a", [([4], [1.0])]), np.ones(4))
    with pytest.raises(ValueError, match=r"b.*: no record has a masked token"):
        unigram_cross_entropy(write(tmp_path / "b", [([0], [0.0])]), np.ones(4))
