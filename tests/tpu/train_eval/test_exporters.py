"""Exporters: after which evaluations they export, and what they keep."""

import functools
import os

import pytest
import tensorflow.compat.v1 as tf

from bert_estimator import tpu


class Exports:
    """Stands for an estimator: each of its exports makes a directory, named by a number."""

    def __init__(self, model_dir):
        self.model_dir = str(model_dir)
        self.arguments = []

    def export_saved_model(self, export_dir_base, receiver_fn, **arguments):
        self.arguments.append((receiver_fn, arguments))
        path = os.path.join(export_dir_base, str(10**9 + len(self.arguments)))
        os.makedirs(path)
        return path.encode()


def export(exporter, estimator, losses, final=False):
    """Which of the evaluations with these losses are exported."""
    path = f"{estimator.model_dir}/export/{exporter.name}"
    return [
        exporter.export(estimator, path, "ckpt", {"loss": loss}, final) is not None
        for loss in losses
    ]


def kept(estimator, exporter):
    return sorted(os.listdir(f"{estimator.model_dir}/export/{exporter.name}"))


def test_the_latest_are_kept(tmp_path):
    exporter, estimator = tpu.LatestExporter("n", "receiver", exports_to_keep=2), Exports(tmp_path)
    os.makedirs(tmp_path / "export/n/1234")  # not of an exporter
    assert export(exporter, estimator, [1.0, 2.0, 3.0]) == [True] * 3
    assert kept(estimator, exporter) == ["1000000002", "1000000003", "1234"]


def test_arguments_are_handed_on(tmp_path):
    exporter, estimator = tpu.FinalExporter("n", "receiver", {"a": "b"}, True), Exports(tmp_path)
    export(exporter, estimator, [1.0], final=True)
    assert estimator.arguments == [
        ("receiver", {"assets_extra": {"a": "b"}, "as_text": True, "checkpoint_path": "ckpt"})
    ]


def test_the_first_evaluation_needs_no_results(tmp_path):
    exporter, estimator = tpu.BestExporter(serving_input_receiver_fn="r"), Exports(tmp_path)
    path = f"{tmp_path}/export/n"
    for _ in range(2):
        assert exporter.export(estimator, path, "ckpt", None, False) is not None
    assert exporter.export(estimator, path, "ckpt", {"loss": 1.0}, False) is not None
    with pytest.raises(ValueError, match="current_eval_result does not have a loss to compare"):
        exporter.export(estimator, path, "ckpt", None, False)


def test_a_comparison_of_one_s_own(tmp_path):
    def by_key(best_eval_result, current_eval_result, key, **others):
        return current_eval_result[key] > best_eval_result[key]

    compare_fn = functools.partial(by_key, key="loss")
    exporter = tpu.BestExporter("n", "r", compare_fn=compare_fn)
    assert export(exporter, Exports(tmp_path), [3.0, 4.0, 2.0]) == [True, True, False]


def test_after_a_restart_the_best_exported_so_far_stays(tmp_path):
    """The evaluation of this step is among the events already, and of a killed process twice."""
    with tf.Graph().as_default():
        writer = tf.summary.FileWriter(str(tmp_path / "eval"))
        for step, loss in [(2, 3.0), (4, 1.0), (6, 2.0), (8, 0.5), (8, 0.5), (10, 0.1)]:
            value = tf.Summary.Value(tag="loss", simple_value=loss)
            writer.add_summary(tf.Summary(value=[value]), step)
        writer.close()
    estimator = Exports(tmp_path)
    os.makedirs(tmp_path / "export/n/1000000000")

    def exports(step, loss):
        result = {"loss": loss, "global_step": step}
        exporter = tpu.BestExporter("n", "r")
        return exporter.export(estimator, f"{tmp_path}/export/n", "ckpt", result, False) is not None

    assert [exports(6, 2.0), exports(8, 0.5), exports(10, 0.1)] == [False, True, True]
    assert exports(10, 0.5) is False


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tpu.LatestExporter("n", "r", exports_to_keep=0), "positive number or None, not 0"),
        (lambda: tpu.BestExporter("n", "r", exports_to_keep=-1), "positive number or None, not -1"),
        (lambda: tpu.BestExporter("n", "r", compare_fn=None), "compare_fn must be given"),
        (lambda: tpu.BestExporter("n", "r", compare_fn=lambda a, b: a), r"but takes \['a', 'b'\]"),
        (
            lambda: tpu.BestExporter("n", "r", compare_fn=lambda best_eval_result: 1),
            r"but takes \['best_eval_result'\]",
        ),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
