"""Tests which files of a task are read, and how its data is told from other data."""

import dataclasses

import pytest
from number_features import Numbers

from input_pipelines.embedded import embedded_task
from input_pipelines.tasks import task_data, task_table
from input_pipelines.tasks.examples import Example

HEADER = "sentence1\tsentence2\tlabel\n"


@pytest.fixture
def task(tmp_path):
    (tmp_path / "train.tsv").write_text(HEADER + "1 2\t3\tb\n4\t5\ta\n6\t7\tb\n")
    (tmp_path / "dev.tsv").write_text(HEADER + "8\t9\ta\n8\t9\tb\n8\t8\tb\n7\t7\tb\n")
    return task_table.own_task(
        "classification", f"{tmp_path}/train.tsv", f"{tmp_path}/dev.tsv", f"{tmp_path}/dev.tsv"
    )


def load(task, train=True, evaluate=True, predict=True):
    return task_data.load_table(task, Numbers(), "vocab.txt", 8, train, evaluate, predict)


def test_labels_are_discovered_in_the_training_file(task):
    data = load(task)
    assert (data.kind, data.labels, data.metrics) == (
        "classification",
        ("a", "b"),
        ("accuracy", "macro_f1"),
    )
    assert data.train.labels.tolist() == [1, 0, 1]
    assert data.evaluate[""].labels.tolist() == [0, 1, 1, 1]
    assert data.predict[""].labels is None and len(data.predict[""]) == 4
    assert data.majority() == 0.75
    assert (data.is_pair, data.vocab_file, data.casing) == (True, "vocab.txt", (True, None))


def test_only_what_is_asked_for_is_read(task):
    data = load(dataclasses.replace(task, predict={"": "no"}), train=False, predict=False)
    assert data.train is None and data.predict == {} and data.digest() == ""
    assert load(task, evaluate=False).majority() is None


def test_the_digest_is_of_the_training_data_and_its_labels(task):
    digest = load(task).digest()
    assert digest == load(task, evaluate=False).digest()
    assert digest != load(dataclasses.replace(task, labels=("b", "a"))).digest()
    assert digest != load(dataclasses.replace(task, train=task.evaluate[""])).digest()


def test_an_embedded_task_is_predicted_for_on_its_held_out_side():
    task = embedded_task.EmbeddedTask(
        "?", ("no", "yes"), [Example("1", None, 1)], [Example("2", None, 0), Example("3", None, 1)]
    )
    data = task_data.of_embedded(task, Numbers(), "vocab.txt", 8)
    assert len(data.train) == 1 and data.labels == ("no", "yes") and not data.is_pair
    assert data.evaluate[""] is data.predict[""] and data.majority() == 0.5
