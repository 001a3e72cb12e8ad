"""Event files of directories that were deleted, or that mean other ones."""

import shutil

import tensorflow.compat.v1 as tf
from toy import batches, make_estimator, scalars

from bert_estimator.tpu import summary


def check_events(model_dir, folder, **rules):
    """Trains and evaluates in a directory; checks that the events are in the folder that it is."""
    estimator = make_estimator(model_dir, save_summary_steps=1, iterations_per_loop=1, **rules)
    estimator.train(lambda params: batches(), steps=2)
    estimator.evaluate(lambda params: batches(), steps=1)
    tf.summary.FileWriterCache.get(model_dir).flush()
    assert [step for step, _ in scalars(folder, "loss")] == [1, 2]
    assert [step for step, _ in scalars(folder / "eval", "loss")] == [2]


def test_a_directory_that_was_deleted_gets_new_event_files(tmp_path, rules):
    for _ in range(2):
        check_events(str(tmp_path / "model"), tmp_path / "model", **rules)
        shutil.rmtree(tmp_path / "model")


def test_a_relative_directory_that_means_another_one(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        check_events("model", tmp_path / name / "model", use_tpu=False)


def test_a_writer_whose_file_is_there_stays(tmp_path):
    with tf.Graph().as_default():
        writer = tf.summary.FileWriterCache.get(str(tmp_path))
    for _ in range(2):
        summary.drop_stale_writer(str(tmp_path))
        assert tf.summary.FileWriterCache.get(str(tmp_path)) is writer
    summary.drop_stale_writer(None)
    summary.drop_stale_writer("another")
