"""Event files of directories that were deleted, or that mean other ones."""

import shutil

import tensorflow.compat.v1 as tf
from toy import batches, make_estimator, scalars

from bert_estimator.tpu import summary


def losses(folder):
    return [step for step, _ in scalars(folder, "loss")]


def test_a_directory_that_was_deleted_gets_new_event_files(tmp_path, rules):
    for _ in range(2):
        estimator = make_estimator(
            tmp_path / "model", save_summary_steps=1, iterations_per_loop=1, **rules
        )
        estimator.train(lambda params: batches(), steps=2)
        estimator.evaluate(lambda params: batches(), steps=1)
        tf.summary.FileWriterCache.get(str(tmp_path / "model")).flush()
        assert losses(tmp_path / "model") == [1, 2]
        assert losses(tmp_path / "model" / "eval") == [2]
        shutil.rmtree(tmp_path / "model")


def test_a_relative_directory_that_means_another_one(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        estimator = make_estimator("model", save_summary_steps=1, use_tpu=False)
        estimator.train(lambda params: batches(), steps=2)
        estimator.evaluate(lambda params: batches(), steps=1)
        tf.summary.FileWriterCache.get("model").flush()
        assert losses(tmp_path / name / "model") == [1, 2]
        assert losses(tmp_path / name / "model" / "eval") == [2]


def test_a_writer_whose_file_is_there_stays(tmp_path):
    with tf.Graph().as_default():
        writer = tf.summary.FileWriterCache.get(str(tmp_path))
    for _ in range(2):
        summary.drop_stale_writer(str(tmp_path))
        assert tf.summary.FileWriterCache.get(str(tmp_path)) is writer
    summary.drop_stale_writer(None)
    summary.drop_stale_writer("another")
