"""Tests what all jobs do in their directories."""

import locked as locks
import pytest
from kills import Killed

from bert_estimator import tpu
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.jobs.groups import TrainingFlags
from bert_estimator.jobs.job_config import JobConfig
from bert_estimator.jobs.run import Run, locked
from bert_estimator.system import lock


def config(path, do_train=True):
    return JobConfig(output_dir=str(path), do_train=do_train)


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


class Estimator:
    """Trains in name only, from the checkpoint of step 0: each call of `train` raises an error."""

    def __init__(self, *errors):
        self._errors = iter(errors)

    def global_step(self):
        return 0

    def train(self, input_fn, **_):
        raise next(self._errors)


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_rollback_to_step_0_outlives_a_kill(tmp_path, has_checkpoint):
    """If the checkpoint is gone, training starts from scratch."""
    skipped = []
    (tmp_path / "config.json").write_text("{}")
    for errors in ([tpu.NanLossDuringTrainingError("NaN", step=5), Killed()], [Killed()]):
        if has_checkpoint:
            (tmp_path / "model.ckpt-0.index").touch()
        run_config = JobConfig(training=TrainingFlags(max_rollbacks=1))
        run = Run(run_config, RunDirectory(str(tmp_path)), Estimator(*errors))
        with pytest.raises(Killed):
            run.train(skipped.append, 10, "num_train_steps", None, None)
    assert skipped == [(), ((0, 5),), ((0, 5),) if has_checkpoint else ()]
