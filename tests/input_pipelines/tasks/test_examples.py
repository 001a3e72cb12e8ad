"""Examples from files that are not what they should be; test_task_table.py has files that are."""

import pytest

from input_pipelines.tasks import examples, task_table
from input_pipelines.tasks.table_files import TableError

RTE = "index\tsentence1\tsentence2\tlabel\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rte", RTE + "0\ta\tb\tmaybe\n", ":2: the label is 'maybe'; it must be one of entailment"),
        ("rte", RTE + "0\ta\tb\tentailment\n1\ta\tb\n", ":3: has no column 'label'; it has index,"),
        ("rte", RTE + "0\ta\tb\tx\tentailment\n", ":2: has more cells than the header names"),
        ("rte", RTE, ": has 0 examples; give a file"),
        ("rte", "index\tpremise\tlabel\n0\ta\tb\n", ":2: has no column 'sentence1'; it has index"),
        ("cola", "gj04\t1\tonly three\n", ":1: has 3 columns, but column 4 is needed"),
        ("cola", "a\t1\t\tb\nc\t1\t\td\te\n", ":2: has more cells than the first row. Does a"),
        ("cola", "gj04\t2\t\ttext\n", ":1: the label is '2'; it must be one of 0, 1"),
        ("rte", RTE + "0\ta\tb\t\n", ":2: the label is ''; it must be one of"),
    ],
)
def test_wrong_files_are_named_with_the_line_and_what_is_allowed(tmp_path, name, text, message):
    (tmp_path / "train.tsv").write_text(text)
    with pytest.raises(TableError) as caught:
        examples.training_examples(task_table.TASKS[name].of(str(tmp_path)))
    assert str(caught.value).startswith(f"{tmp_path}/train.tsv{message}")


def test_a_text_that_is_none(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"text": 3, "score": 1}\n')
    task = task_table.own_task("regression", str(tmp_path / "t.jsonl"), None, None)
    with pytest.raises(TableError, match=r"t.jsonl:1: 'text' is 3; it must be a text"):
        examples.training_examples(task)
