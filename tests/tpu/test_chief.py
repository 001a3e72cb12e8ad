"""A config whose `is_chief` says that another process writes: this one only trains."""

import os

import pytest
import tensorflow.compat.v1 as tf
import toy
from toy import Visits

from bert_estimator import tpu


class Worker(tpu.RunConfig):
    is_chief = False


class Saved(tf.train.CheckpointSaverListener):
    def after_save(self, session, global_step_value):
        raise AssertionError("a worker saves")


def estimator(folder, config_class, chief_hooks):
    def model_fn(features, mode):
        weight = tf.get_variable("w", initializer=0.0)
        tf.summary.scalar("weight", weight)
        train_op = tf.group(weight.assign_add(1.0), tf.train.get_global_step().assign_add(1))
        return tpu.EstimatorSpec(
            mode,
            loss=tf.reduce_mean(features["x"]),
            train_op=train_op,
            training_chief_hooks=chief_hooks,
        )

    config = config_class(
        model_dir=str(folder),
        save_checkpoints_steps=1,
        save_summary_steps=1,
        log_step_count_steps=1,
        session_config=toy.QUICK,
    )
    return tpu.Estimator(model_fn, config=config)


@pytest.mark.parametrize("config_class", [tpu.RunConfig, Worker])
def test_only_the_chief_writes(tmp_path, config_class):
    of_all, of_chief = Visits(), Visits()
    listeners = [] if config_class is tpu.RunConfig else [Saved()]
    trained = estimator(tmp_path, config_class, [of_chief])
    trained.train(lambda: toy.batches(), [of_all], steps=2, saving_listeners=listeners)
    assert len(of_all.steps) == 2
    is_chief = config_class is tpu.RunConfig
    assert bool(of_chief.calls) == is_chief
    assert bool(os.listdir(tmp_path)) == is_chief


@pytest.mark.parametrize("rules", [{}, {"master": "rehearse:2"}], ids=["session", "cores"])
def test_under_tpu_rules_only_the_chief_writes(tmp_path, xla_runtime, monkeypatch, rules):
    monkeypatch.setattr(tpu.RunConfig, "is_chief", False)
    toy.make_estimator(tmp_path, save_checkpoints_steps=1, **rules).train(toy.input_fn, steps=2)
    assert os.listdir(tmp_path) == []


def test_a_worker_trains_beside_the_chief(tmp_path):
    estimator(tmp_path, tpu.RunConfig, []).train(lambda: toy.batches(), steps=2)
    files = sorted(os.listdir(tmp_path))
    worker = estimator(tmp_path, Worker, [])
    worker.train(lambda: toy.batches(), steps=2)
    assert sorted(os.listdir(tmp_path)) == files
    assert worker.evaluate(lambda: toy.batches(), steps=1)["global_step"] == 2
