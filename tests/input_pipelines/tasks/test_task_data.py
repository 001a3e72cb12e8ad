"""Tests which files of a task are read, and how its data is told from other data."""

import dataclasses

import pytest
from number_features import Numbers

from bert_estimator.tokenization import SPECIAL_TOKENS, FullTokenizer, write_vocab
from input_pipelines.tasks import task_data, task_table
from input_pipelines.tasks.examples import Example
from input_pipelines.tasks.tag_files import Sentence

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
    # It is the accuracy, with which only a network that has an accuracy can be compared.
    assert load(dataclasses.replace(task, metrics=("matthews",))).majority() is None


def test_the_digest_is_of_the_training_data_and_its_labels(task):
    digest = load(task).digest()
    assert digest == load(task, evaluate=False).digest()
    assert digest != load(dataclasses.replace(task, labels=("b", "a"))).digest()
    assert digest != load(dataclasses.replace(task, train=task.evaluate[""])).digest()


def test_an_embedded_task_is_predicted_for_on_its_held_out_side():
    task = task_data.EmbeddedTask(
        "?", ("no", "yes"), [Example("1", None, 1)], [Example("2", None, 0), Example("3", None, 1)]
    )
    data = task_data.of_embedded(task, Numbers(), "vocab.txt", 8)
    assert len(data.train) == 1 and data.labels == ("no", "yes") and not data.is_pair
    assert data.evaluate[""] is data.predict[""] and data.majority() == 0.5


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        (("O", "B-X", "L-X", "U-X"), ""),
        (("B", "M", "E", "S"), ""),
        (("NN", "VB"), "The tags NN, VB are not of IOB2 or another scheme, so words are"),
        (("0", "1", "2", "3", "4", "5"), "The tags 0, 1, 2, 3, 4, ... are not of IOB2 or"),
    ],
)
def test_tags_that_are_not_of_a_scheme_are_said(tmp_path, capsys, tags, said):
    write_vocab([*SPECIAL_TOKENS, "a"], str(tmp_path / "vocab.txt"))
    tokenizer = FullTokenizer(str(tmp_path / "vocab.txt"))
    sentence = Sentence(("a",) * len(tags), tuple(range(len(tags))))
    task = task_data.EmbeddedTask("", tags, [sentence], [sentence])
    data = task_data.of_embedded_tags(task, tokenizer, "", 16)
    assert data.metrics[0] == ("accuracy" if said else "entity_f1")
    out = capsys.readouterr().out
    assert out.startswith(said) and bool(out) == bool(said)
    assert ("Numbers do not say what they mean" in out) == (tags[0] == "0")
