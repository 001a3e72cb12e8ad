"""Tests what all jobs do in their directories."""

import types

import locked as locks
import pytest

from bert_estimator.jobs.run import locked
from bert_estimator.tpu import lock


def config(path, do_train=True):
    return types.SimpleNamespace(do_train=do_train, directory_to_write=lambda: str(path))


def test_all_directories_are_locked_before_the_first_run(tmp_path):
    """The last stage of a recipe has its lock before the first stage trains."""
    configs = [config(tmp_path / "1"), config(tmp_path / "2")]
    with locked(configs):
        assert (tmp_path / "1" / ".lock").exists() and (tmp_path / "2" / ".lock").exists()
    assert not (tmp_path / "1" / ".lock").exists()
    with locks.by_another(tmp_path / "2" / ".lock"):
        with pytest.raises(lock.InUseError, match=f"^{tmp_path}/2 is being"), locked(configs):
            pytest.fail("the first stage began")
        assert not (tmp_path / "1" / ".lock").exists()
        with locked([config(tmp_path / "2", do_train=False)]):
            pass
