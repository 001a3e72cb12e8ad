"""Weights that are used without training belong to the task of the flags, or it is an error."""

import json

import pytest

from bert_estimator.command_line.flags import FlagError
from bert_estimator.jobs import fine_tuned

TASK = {"kind": "classification", "labels": ["a", "b"], "is_pair": False, "do_lower_case": True}
ANSWERS = {"kind": "question_answering", "do_lower_case": True, "doc_stride": 128}


def check(tmp_path, trained, asked):
    (tmp_path / "task.json").write_text(json.dumps(trained))
    fine_tuned.check_task(str(tmp_path / "model.ckpt-3"), asked, "output_dir")


@pytest.mark.parametrize(
    ("trained", "asked"),
    [
        (TASK, TASK),
        (ANSWERS, {**ANSWERS, "doc_stride": 64}),
        ({"kind": "classification", "labels": ["a", "b"], "do_lower_case": None}, TASK),
        ({**TASK, "labels": ["LABEL_0", "LABEL_1"]}, TASK),  # transformers' own names
        ({}, TASK),
    ],
)
def test_the_same_task(tmp_path, trained, asked):
    check(tmp_path, trained, asked)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "tagging"}, 'kind "tagging", but the flags and files ask for "classification"'),
        ({"labels": ["b", "a"]}, r'labels \["b", "a"\], but the flags and files ask for \["a"'),
        ({"labels": ["LABEL_0", "LABEL_1", "LABEL_2"]}, "labels"),
        ({"is_pair": True}, "is_pair true, but the flags and files ask for false"),
        ({"do_lower_case": False}, "do_lower_case false, but"),
    ],
)
def test_another_task(tmp_path, change, message):
    expected = f"^--output_dir: {tmp_path}/task.json: the network was trained for {message}"
    with pytest.raises(FlagError, match=expected):
        check(tmp_path, {**TASK, **change}, TASK)


def test_without_a_file_that_says_it(tmp_path):
    fine_tuned.check_task(str(tmp_path / "model.ckpt-3"), TASK, "output_dir")


def test_a_damaged_file(tmp_path):
    (tmp_path / "task.json").write_text("[")
    with pytest.raises(FlagError, match=f"--init_checkpoint: {tmp_path}/task.json: is not JSON"):
        fine_tuned.check_task(str(tmp_path / "bert_model.ckpt"), TASK, "init_checkpoint")
