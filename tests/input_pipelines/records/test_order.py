import sys
import time

import numpy as np
import pytest

from input_pipelines.records.order import BatchOrder, record_order


@pytest.mark.parametrize("num_records", [1, 2, 3, 7, 63, 64, 65, 1000, 4097])
def test_every_epoch_is_a_permutation(num_records):
    order = record_order(np.arange(3 * num_records), num_records, seed=5)
    for epoch in order.reshape(3, num_records):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(num_records))


def test_pinned_values():
    assert record_order(np.arange(12), 10, seed=0).tolist() == [3, 5, 6, 2, 1, 8, 9, 0, 4, 7, 5, 0]
    late = record_order(np.arange(5) + 2**40, 10**6, seed=12345)
    assert late.tolist() == [829206, 46640, 541924, 372277, 244645]


def test_equals_a_twin_in_exact_integers():
    def mix(value):
        value = (value + 0x9E3779B97F4A7C15) % 2**64
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
        return value ^ value >> 31

    def twin(index, n, seed):
        epoch, number = divmod(index, n)
        state = mix((mix(seed) + epoch) % 2**64)
        keys = [mix((state + i * 0x9E3779B97F4A7C15) % 2**64) for i in range(8)]
        bits = max(6, (n - 1).bit_length())
        low_bits, high_bits = bits // 2, bits - bits // 2
        while True:
            high, low = divmod(number, 2**low_bits)
            for i in range(0, 8, 2):
                low ^= mix((high + keys[i]) % 2**64) % 2**low_bits
                high ^= mix((low + keys[i + 1]) % 2**64) % 2**high_bits
            number = high * 2**low_bits + low
            if number < n:
                return number

    indices = [0, 1, 5, 100, 12345, 10**12]
    for n in (1, 5, 100, 70000):
        expected = [twin(index, n, 2**63 + 9) for index in indices]
        assert record_order(np.array(indices), n, 2**63 + 9).tolist() == expected


def test_a_part_equals_the_whole():
    whole = record_order(np.arange(500), 77, seed=3)
    np.testing.assert_array_equal(record_order(np.arange(150, 182), 77, 3), whole[150:182])
    table = record_order(np.arange(500).reshape(5, 100), 77, 3)
    np.testing.assert_array_equal(table, whole.reshape(5, 100))


def test_epochs_and_seeds_differ():
    n = 1000
    epochs = record_order(np.arange(2 * n), n, seed=1).reshape(2, n)
    other_seed = record_order(np.arange(n), n, seed=2)
    # Two random permutations agree in 1 place on average.
    assert np.sum(epochs[0] == epochs[1]) < 10
    assert np.sum(epochs[0] == other_seed) < 10


def test_looks_random():
    n = 20000
    order = record_order(np.arange(n), n, seed=7).astype(np.float64)
    # Correlations of neighbours and of place with value are of the order of 1 / sqrt(n).
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 5 / np.sqrt(n)
    assert abs(np.corrcoef(np.arange(n), order)[0, 1]) < 5 / np.sqrt(n)


def test_every_permutation_of_three_occurs():
    epochs = record_order(np.arange(3 * 600), 3, seed=0).reshape(600, 3)
    _, counts = np.unique(epochs, axis=0, return_counts=True)
    assert len(counts) == 6
    assert counts.min() > 60  # 100 each are expected, with a standard deviation of 9.


def test_seeds_of_any_size():
    assert (
        record_order(np.arange(4), 4, seed=-1).tolist()
        == record_order(np.arange(4), 4, seed=2**64 - 1).tolist()
    )


def test_is_fast():
    started = time.process_time()
    record_order(np.arange(10**6, 2 * 10**6), 3 * 10**6, seed=0)
    assert time.process_time() - started < 5  # About 0.5 s on one idle core.


@pytest.mark.parametrize("batch_size", [1, 3, 1000, 5000])
def test_batches_of_training_go_through_the_order(batch_size):
    expected = record_order(np.arange(40 * batch_size), 70, seed=3).reshape(40, batch_size)
    order = BatchOrder(70, batch_size, seed=3)
    for number in (0, 1, 2, 39, 17, 18):
        np.testing.assert_array_equal(order.record_numbers(number), expected[number])
    assert order.num_batches == sys.maxsize


def test_pipelines_share_the_order_of_training():
    expected = record_order(np.arange(60), 50, seed=3).reshape(5, 3, 4)
    orders = [BatchOrder(50, 4, 3, invocation, 3) for invocation in range(3)]
    for number in range(5):
        found = [order.record_numbers(number) for order in orders]
        np.testing.assert_array_equal(found, expected[number])


def test_one_pass_is_filled_up_with_padding():
    orders = [BatchOrder(7, 2, None, invocation, 2) for invocation in range(2)]
    assert [order.num_batches for order in orders] == [2, 2]
    found = [[order.record_numbers(n).tolist() for order in orders] for n in range(2)]
    assert found == [[[0, 1], [2, 3]], [[4, 5], [6, -1]]]


def test_a_part_of_a_pass_is_spread_evenly():
    order = BatchOrder(10, 2, None, num_read=5)
    assert order.num_batches == 3
    found = [order.record_numbers(n).tolist() for n in range(3)]
    assert found == [[0, 2], [4, 6], [8, -1]]
    whole = BatchOrder(7, 2, None, num_read=100)
    assert [whole.record_numbers(n).tolist() for n in (0, 3)] == [[0, 1], [6, -1]]


def test_batches_that_are_skipped():
    def numbers(batch_numbers, skipped=()):
        order = BatchOrder(1000, 8, seed=3, skipped=skipped)
        return [order.record_numbers(number).tolist() for number in batch_numbers]

    whole = numbers(range(1500))
    assert numbers(range(10), [(4, 3)]) == whole[:4] + whole[7:13]
    assert numbers(range(10), [(4, 3), (4, 2), (6, 1000)]) == [
        *whole[:4], *whole[9:11], *whole[1011:1015],
    ]  # fmt: skip
    # A training that resumes reads the same.
    assert numbers(range(5, 10), [(4, 3)]) == numbers(range(10), [(4, 3)])[5:]
