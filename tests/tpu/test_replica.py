"""Tests what a model_fn can learn of the other replicas."""

import threading

import pytest

from bert_estimator import tpu
from bert_estimator.tpu.replica import Replica

TWO = Replica(2, 1, lambda tensor: 2 * tensor)


def asked():
    return tpu.num_replicas(), tpu.replica_id(), tpu.cross_replica_sum(5)


def test_alone_everything_is_the_identity():
    assert asked() == (1, 0, 5)


def test_a_replica_is_entered_and_left_also_by_an_error():
    with TWO.entered():
        assert asked() == (2, 1, 10)
        with Replica(4, 3, lambda tensor: 4 * tensor).entered():
            assert asked() == (4, 3, 20)
        assert asked() == (2, 1, 10)
    with pytest.raises(KeyError), TWO.entered():
        raise KeyError
    assert asked() == (1, 0, 5)


def test_another_thread_is_not_in_it():
    seen = []
    with TWO.entered():
        thread = threading.Thread(target=lambda: seen.append(asked()))
        thread.start()
        thread.join()
    assert seen == [(1, 0, 5)]
