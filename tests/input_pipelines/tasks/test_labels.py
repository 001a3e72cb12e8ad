"""Labels of all kinds of files: what they are called, and what is refused with file and line."""

import dataclasses
import json

import pytest

from input_pipelines.tasks import examples, labels, task_table
from input_pipelines.tasks.table_files import TableError


def own(tmp_path, *cells, kind="classification"):
    """Returns a task whose training file has these labels."""
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps({"text": "a", "label": cell}) + "\n" for cell in cells))
    return task_table.own_task(kind, str(path), None, None)


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        (["b", " a ", "b"], ("a", "b")),
        ([10, 9, -1], ("-1", "9", "10")),
        ([1.0, 2, 1], ("1", "2")),
        ([0.5, 2], ("0.5", "2")),
        ([True, False], ("false", "true")),
        (["1", "01"], ("01", "1")),
        (["01", "1"], ("01", "1")),
        (["--5", "-"], ("-", "--5")),
        (["1", "2" * 5000], ("1", "2" * 5000)),
        (["x", 1], ("1", "x")),
    ],
)
def test_labels_are_found_and_sorted(tmp_path, cells, found):
    assert examples.discover_labels(own(tmp_path, *cells)) == found


@pytest.mark.parametrize(
    ("cells", "line", "message"),
    [
        (["a", {"b": 1}], 2, 'the label is {"b": 1}; it must be a text, a number, true or false'),
        (["a", ["b", "c"]], 2, 'the label is ["b", "c"]; it must be a text'),
        (["a", "b\tc"], 2, 'the label is "b\\tc"; it must not hold a tab or a line end'),
        (["a", "b\u2028c"], 2, "the label is "),
        (["a\nb", "c"], 1, 'the label is "a\\nb"; it must not hold a tab'),
        (["a", None], 2, "the label is null; it must be a text"),
        (["a", float("nan")], 2, "the label is NaN; it must be a text"),
        (["a", "x", [[] for _ in range(60)]], 3, "the label is [[], [], [], [], []"),
        ([True, "true"], 2, "the label true is a text, but in line 1 it is true or false; spell"),
        (
            ["caf\u00e9", "x", "cafe\u0301"],
            3,
            'the label is "cafe\\u0301", but in line 1 it is "caf\\u00e9", which looks the same;',
        ),
        (["1", "x", 1], 3, "the label 1 is a number, but in line 1 it is a text; spell each label"),
        (["a", "a"], 1, "the label is 'a' here and in all other rows, so that there is nothing"),
        (["", ""], 1, "neither this row nor a later one has a label"),
        # Several labels
        ([["a"], {"b": 1}], 2, 'the label is {"b": 1}; it must be'),
        ([["a"], ["b\tc"]], 2, 'the label is "b\\tc"; it must not hold a tab'),
        ([["a"], [["b"]]], 2, 'the label is ["b"]; it must be'),
        ([["a", True], "true"], 2, "the label true is a text, but in line 1 it is true or false"),
        ([[], ""], 1, "neither this row nor a later one has a label"),
    ],
)
def test_labels_that_cannot_work(tmp_path, cells, line, message):
    kind = "multi_label" if isinstance(cells[0], list) else "classification"
    with pytest.raises(TableError) as caught:
        examples.discover_labels(own(tmp_path, *cells, kind=kind))
    assert str(caught.value).startswith(f"{tmp_path}/t.jsonl:{line}: {message}")


# What nobody can see: marks of byte order and direction, joiners, soft hyphens, variation
# selectors, no-break and further spaces.
UNSEEN = (
    "\ufeffa b",
    "a\u200b b",
    "\u200ea b",
    "a\u00ad b",
    "a b\ufe0f",
    "a\u00a0b",
    "a  b",
    "a\u3000b",
)


@pytest.mark.parametrize("kind", ["classification", "multi_label"])
@pytest.mark.parametrize("other", UNSEEN, ids=ascii)
def test_labels_that_differ_in_what_nobody_can_see(tmp_path, other, kind):
    for cells in (["a b", "x", other], [other, "x", "a b"]):
        with pytest.raises(TableError) as caught:
            examples.discover_labels(own(tmp_path, *cells, kind=kind))
        last, first = json.dumps(cells[2]), json.dumps(cells[0])
        message = f"{tmp_path}/t.jsonl:3: the label is {last}, but in line 1 it is {first}, which "
        assert str(caught.value).startswith(message)
    found = examples.discover_labels(own(tmp_path, other, "x", kind=kind))
    assert found == tuple(sorted([other, "x"]))
    task = dataclasses.replace(own(tmp_path, "x", other, kind=kind), labels=("a b", "x"))
    message = f"{tmp_path}/t.jsonl:2: the label is {json.dumps(other)}, which looks the same as "
    with pytest.raises(TableError) as caught:
        examples.training_examples(task)
    assert str(caught.value).startswith(f'{message}"a b" and is another; spell each label in one')


@pytest.mark.parametrize(
    ("cells", "found"),
    [(["b, a", ["c"], [], ""], ("a", "b", "c")), ([["a"]], ("a",)), ([1, [2]], ("1", "2"))],
)
def test_several_labels(tmp_path, cells, found):
    assert examples.discover_labels(own(tmp_path, *cells, kind="multi_label")) == found


@pytest.mark.parametrize("cell", [True, None, [1], {}, "1_000", 10**400, "1" * 400, "0x10", 1e39])
def test_numbers_that_cannot_work(tmp_path, cell):
    with pytest.raises(TableError, match=r"t\.jsonl:1: the label is .*; it must be a number"):
        examples.training_examples(own(tmp_path, cell, kind="regression"))
    with pytest.raises(TableError, match=r"^here: the label is"):
        labels.number_of(cell, "here")


@pytest.mark.parametrize(
    ("kind", "cells", "is_warned"),
    [
        ("regression", [2, 2.0], True),
        ("regression", [2], False),
        ("regression", [2, 3], False),
        ("multi_label", [["a"], "a"], True),
        ("multi_label", [["a"], []], False),
    ],
)
def test_a_training_file_with_one_label_is_warned_about(tmp_path, capsys, kind, cells, is_warned):
    task = own(tmp_path, *cells, kind=kind)
    if kind == "multi_label":
        task = task_table.own_task(kind, task.train, None, None, labels=("a", "b"))
    examples.training_examples(task)
    warning = f"WARNING: {tmp_path}/t.jsonl:1: from this line on, all 2 training examples have the"
    assert capsys.readouterr().out.startswith(warning) == is_warned


INFERENCE = ["entailment", "neutral", "contradiction"] * 20


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        ([*INFERENCE, "-"], 61),
        (["-", *INFERENCE, "-", "-"], 1),
        ([0, 1, 2] * 20 + [-1], 61),
        ([*INFERENCE, "N/A"], 61),
        ([*INFERENCE, "-", "-", "-", "-"], None),  # 6 percent is a label that is meant
        ([-1, 0, 1] * 20, None),
        (["-", *["+"] * 60], None),
        ([*INFERENCE, "--"], None),
    ],
)
@pytest.mark.parametrize("kind", ["classification", "multi_label"])
def test_a_rare_label_that_says_that_there_is_none(tmp_path, capsys, cells, line, kind):
    names = examples.discover_labels(own(tmp_path, *cells, kind=kind))
    assert names == labels.discover("", enumerate(sorted(set(cells))))  # it stays a label
    said = capsys.readouterr().out
    assert said.startswith(f"WARNING: {tmp_path}/t.jsonl:{line}: the label is '") == bool(line)
    if line:
        count = cells.count(cells[line - 1])
        assert f"' here and {count} of {len(cells)} times in the file. This often says" in said
        assert said.endswith("If it is not a label, leave these rows out\n")
    else:
        assert said == ""
