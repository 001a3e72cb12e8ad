import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from batches import batches, context

from bert_estimator.system import paths
from input_pipelines.records.order import (
    SHARES,
    BatchOrder,
    mixed_order,
    mixture,
    record_order,
    shares_of,
)
from input_pipelines.records.pretraining_input import input_fn_builder
from input_pipelines.records.record_reader import RecordFiles, find_record_sets

SETS = [(30, 700), (11, 300)]


def test_weights_of_patterns(tmp_path):
    file = str(tmp_path / "a:0.5")
    for pattern, expected in {
        "a*.tfrecord:0.7": ("a*.tfrecord", 0.7),
        "a:1e-2": ("a", 0.01),
        "a:3": ("a", 3.0),
        "gs://bucket/a": ("gs://bucket/a", None),
        "gs://bucket/a:2": ("gs://bucket/a", 2.0),
        "a:b": ("a:b", None),
        "": ("", None),
        file: (file[:-4], 0.5),
    }.items():
        assert paths.split_weight(pattern) == expected
    (tmp_path / "a:0.5").write_text("")
    assert paths.split_weight(file) == (file, None)
    for weight in ("0", "-1", "1e999", "1.2.3", "-"):
        with pytest.raises(ValueError, match=rf"ends in the weight {weight}; it must"):
            paths.split_weight(f"a:{weight}")


def test_shares_add_up():
    assert shares_of([0.7, 0.3]) == [700, 300]
    assert shares_of([1, 1, 1]) == [334, 333, 333]
    assert shares_of([2.0]) == [SHARES]
    assert shares_of([1.0, 1e-9]) == [SHARES, 0]
    assert shares_of([1e308, 1e308]) == [SHARES // 2, SHARES // 2]


def test_sets_of_files(tmp_path, record_files):
    a, b = record_files
    assert find_record_sets(f"{a}:0.7,{b}:0.3") == [([a], 0.7), ([b], 0.3)]
    assert find_record_sets(f"{tmp_path}/set-*,{a}") == [([a, b], None)]
    for patterns, message in {
        f"{a}:0.7,{b}": "some patterns have a weight and others do not",
        f"{a},{b}:0.7": "some patterns have a weight and others do not",
        f"{a}:0.7,{tmp_path}/set-*:0.3": "matches files that a pattern before it matches too",
        f"{a}:0.7,{tmp_path}/none:0.3": "no file matches",
    }.items():
        with pytest.raises(ValueError, match=message):
            find_record_sets(patterns)


def test_each_set_has_its_share_of_every_thousand_places():
    numbers, _ = mixed_order(np.arange(5 * SHARES), SETS, seed=3)
    is_first = (numbers < 30).reshape(5, SHARES)
    assert is_first.sum(axis=1).tolist() == [700] * 5
    assert (is_first[0] != is_first[1]).any()
    # Within a thousand places the sets are mixed, too.
    assert 50 <= is_first[0, :100].sum() <= 90


def test_every_record_comes_once_in_an_epoch_of_its_set():
    numbers, epochs = mixed_order(np.arange(6 * SHARES), SETS, seed=3)
    for first, (size, share) in zip((0, 30), SETS, strict=True):
        chosen = (numbers >= first) & (numbers < first + size)
        for epoch in range(6 * share // size):
            found = np.sort(numbers[chosen & (epochs == epoch)])
            np.testing.assert_array_equal(found, np.arange(first, first + size))


def test_one_set_keeps_its_order():
    places = np.arange(100).reshape(10, 10)
    numbers, epochs = mixed_order(places, [(30, SHARES)], seed=3)
    np.testing.assert_array_equal(numbers, record_order(places, 30, 3))
    np.testing.assert_array_equal(epochs, places // 30)


def test_a_pure_function_of_seed_and_place():
    whole = np.stack(mixed_order(np.arange(3000), SETS, seed=3))
    part = np.stack(mixed_order(np.arange(1500, 1700), SETS, seed=3))
    np.testing.assert_array_equal(part, whole[:, 1500:1700])
    assert (np.stack(mixed_order(np.arange(3000), SETS, 4)) != whole).any()
    pipelines = [BatchOrder(41, 5, 3, host, 2, sets=SETS) for host in range(2)]
    for batch in (0, 7, 900):
        joined = np.concatenate([pipeline.records(batch) for pipeline in pipelines], axis=1)
        expected = mixed_order(np.arange(10 * batch, 10 * batch + 10), SETS, 3)
        np.testing.assert_array_equal(joined, expected)


def test_training_on_a_mixture(record_files, unmasked_files):
    for a, b in (record_files, unmasked_files):
        sizes = [RecordFiles([file]).num_records for file in (a, b)]
        patterns = f"{a}:3,{b}:1"
        records = RecordFiles([a, b])
        assert mixture(records, patterns) == [(sizes[0], 750), (sizes[1], 250)]
        assert mixture(records, [a, b]) == []
        function = input_fn_builder(patterns, 16, 4, True, random_seed=2, vocab_size=50)
        whole = batches(function, {"batch_size": 50}, most=20)
        resumed = batches(function, {"batch_size": 50, "context": context(18)}, most=2)
        np.testing.assert_equal(resumed, whole[18:])
        evaluated = input_fn_builder(patterns, 16, 4, False)
        (rows,) = batches(evaluated, {"batch_size": sum(sizes)})  # One pass, without weights.
        assert rows["is_real_example"].sum() == sum(sizes)


def test_shares_that_are_too_small(record_files):
    a, b = record_files
    function = input_fn_builder(f"{a}:1,{b}:1e-6", 16, 4, True)
    message = r"set-1.* with the weight 1e-06 have 0 of 1000 examples\. Give the pattern more"
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        function({"batch_size": 4})
