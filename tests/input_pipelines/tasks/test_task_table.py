"""Every task of the table, on files in the official format, with their traps."""

import pytest

from input_pipelines.tasks import examples, task_table
from input_pipelines.tasks.table_files import TableError

_MNLI = "index\tpromptID\tpairID\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
_MNLI += "sentence2_parse\tsentence1\tsentence2"
_STSB = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
_MRPC = "#1 ID\t#2 ID\t#1 String\t#2 String"

# name -> (training file, file to predict for, their examples): headers as in GLUE's archives.
FILES = {
    "cola": (
        'gj04\t1\t\tSo "it goes.\ngj04\t0\t*\tThem goes\n',
        "index\tsentence\n0\tWho knows.\n",
        [('So "it goes.', None, 1), ("Them goes", None, 0)],
        [("Who knows.", None, None)],
    ),
    "sst-2": (
        'sentence\tlabel\nhide "new" secretions \t0\nfine\t1\n',
        "index\tsentence\n0\tuneasy mishmash\n",
        [('hide "new" secretions ', None, 0), ("fine", None, 1)],
        [("uneasy mishmash", None, None)],
    ),
    "mrpc": (
        f'\ufeffQuality\t{_MRPC}\r\n1\t70\t71\t"Ami\tAmrozi\r\n0\t1\t2\tYuca\tTable\r\n',
        f"\ufeffindex\t{_MRPC}\r\n0\t1\t2\tPCCW\tCurrent\r\n",
        [('"Ami', "Amrozi", 1), ("Yuca", "Table", 0)],
        [("PCCW", "Current", None)],
    ),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tHow?\tWhy?\t0\n"
        "4\t5\t6\tcut short\n7\t8\t9\tWho?\tWhom?\t1\n",
        "id\tquestion1\tquestion2\n0\tWould?\tCould?\n",
        [("How?", "Why?", 0), ("Who?", "Whom?", 1)],
        [("Would?", "Could?", None)],
    ),
    "sts-b": (
        f"{_STSB}\tscore\n0\tm\tf\t2012\t1\tn\tn\tA plane\tAn air plane\t5.000\n\n"
        "1\tm\tf\t2012\t4\tn\tn\tA man\tA flute\t3.8\n",
        f"{_STSB}\n0\tm\tf\t2012\t1\tn\tn\tA girl\tA child\n",
        [("A plane", "An air plane", 5.0), ("A man", "A flute", 3.8)],
        [("A girl", "A child", None)],
    ),
    "mnli": (
        f"{_MNLI}\tlabel1\tgold_label\n0\t1\t2\t(\t(\t(\t(\tCream\tProduct\tneutral\tneutral\n"
        "1\t1\t2\t(\t(\t(\t(\tyou know\tYou lose\tentailment\tentailment\n",
        f"{_MNLI}\n0\t1\t2\t(\t(\t(\t(\tHint\tNone\n",
        [("Cream", "Product", 2), ("you know", "You lose", 1)],
        [("Hint", "None", None)],
    ),
    "qnli": (
        "index\tquestion\tsentence\tlabel\n0\tWhen?\tIn 1066.\tentailment\n1\tWho?\tIt.\t"
        "not_entailment\n",
        "index\tquestion\tsentence\n0\tWhat?\tThat.\n",
        [("When?", "In 1066.", 0), ("Who?", "It.", 1)],
        [("What?", "That.", None)],
    ),
    "rte": (
        "index\tsentence1\tsentence2\tlabel\n0\tNo one\tSome\tnot_entailment\n1\tA\tB\tentailment",
        "index\tsentence1\tsentence2\n0\tC\tD\n",
        [("No one", "Some", 1), ("A", "B", 0)],
        [("C", "D", None)],
    ),
    "wnli": (
        "index\tsentence1\tsentence2\tlabel\n0\tI stuck a pin\tThe pin\t1\n1\tA\tB\t0\n",
        "index\tsentence1\tsentence2\n0\tMaude\tDora\n",
        [("I stuck a pin", "The pin", 1), ("A", "B", 0)],
        [("Maude", "Dora", None)],
    ),
}


def as_tuples(found):
    return [(e.text_a, e.text_b, e.label) for e in found]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def test_f1_is_of_a_label():
    for task in task_table.TASKS.values():
        assert (task.positive in task.labels) is ("f1" in task.metrics)


def test_all_of_glue_is_tested():
    assert set(FILES) == set(task_table.TASKS)


@pytest.mark.parametrize("name", FILES)
def test_glue(tmp_path, capsys, name):
    task = task_table.named(name, "zh").of(str(tmp_path))
    labelled, unlabelled, expected, expected_unlabelled = FILES[name]
    for path in (task.train, *task.evaluate.values()):
        write(tmp_path / path, labelled)
    for path in task.predict.values():
        write(tmp_path / path, unlabelled)
    assert as_tuples(examples.training_examples(task)) == expected
    for split in task.evaluate:
        assert as_tuples(examples.evaluation_examples(task, split)) == expected
    for split in task.predict:
        assert as_tuples(examples.prediction_examples(task, split)) == expected_unlabelled
    out = capsys.readouterr().out
    assert ("skipped 1 malformed rows" in out) == (name == "qqp")
    if name == "qqp":
        assert f"{tmp_path}/train.tsv: skipped 1 malformed rows" in out and "lines 3" in out


def test_predictions_have_a_row_for_each_row(tmp_path, capsys):
    """Published files of QQP have malformed rows: they are not trained on, but predicted for."""
    task = task_table.TASKS["qqp"].of(str(tmp_path))
    rows = ["id\tquestion1\tquestion2", "0\ta\tb", "1\tc", "2\td\te\tmore", "3", "4\tf\tg"]
    write(tmp_path / "test.tsv", "\n".join(rows))
    pairs = [("a", "b"), ("c", ""), ("d", "e"), ("", ""), ("f", "g")]
    expected = [(*pair, None) for pair in pairs]
    assert as_tuples(examples.prediction_examples(task, "")) == expected
    assert f"{tmp_path}/test.tsv: kept 3 malformed rows" in capsys.readouterr().out


def test_xnli_takes_one_language(tmp_path):
    write(
        tmp_path / "multinli/multinli.train.de.tsv",
        "premise\thypo\tlabel\nEins\tZwei\tcontradictory\nDrei\tVier\tneutral\n",
    )
    header = "language\tgold_label\tsentence1\tsentence2\n"
    body = "ar\tneutral\tx\ty\nde\tentailment\tHund\tTier\nzh\tneutral\tx\ty\n"
    write(tmp_path / "xnli.dev.tsv", header + body)
    write(tmp_path / "xnli.test.tsv", header + body)
    task = task_table.named("xnli", "de").of(str(tmp_path))
    assert as_tuples(examples.training_examples(task)) == [
        ("Eins", "Zwei", 0),
        ("Drei", "Vier", 2),
    ]
    assert as_tuples(examples.evaluation_examples(task, "")) == [("Hund", "Tier", 1)]
    assert as_tuples(examples.prediction_examples(task, "")) == [("Hund", "Tier", None)]
    with pytest.raises(TableError, match="has 0 examples with language='fr'"):
        examples.evaluation_examples(task_table.named("xnli", "fr").of(str(tmp_path)), "")


# One's own files


def own(tmp_path, text, name="train.tsv", **options):
    path = tmp_path / name
    write(path, text)
    task = task_table.own_task(
        options.pop("kind", "classification"), str(path), None, None, **options
    )
    found = task.labels or (examples.discover_labels(task) if task.kind != "regression" else ())
    return task_table.dataclasses.replace(task, labels=found)


@pytest.mark.parametrize("name", ["train.tsv", "train.csv"])
def test_columns_are_in_the_header_and_not_in_the_first_row(tmp_path, name):
    path = tmp_path / name
    separator = "," if name.endswith("csv") else "\t"
    write(path, "label,sentence1,sentence2\n1,a\n0,b,c\n".replace(",", separator))
    task = task_table.own_task("classification", str(path), None, None)
    assert task.columns == task_table.Columns("sentence1", "sentence2", "label")
    task = task_table.dataclasses.replace(task, labels=("0", "1"))
    with pytest.raises(TableError, match=rf"{name}:2: has no column 'sentence2'"):
        examples.training_examples(task)


@pytest.mark.parametrize(
    ("text", "label_column"),
    [
        ("text\tlabel\ngood\t1\nbad\t0\n", "2"),
        ("Sentence\tScore\ngood\t1\nbad\t0\n", "2"),
        ("review\tgold_label\ngood\t1\nbad\t0\n", "2"),
        ("text\tlabel\ngood\t1\n", None),
    ],
)
def test_columns_by_number_in_a_file_with_a_header(tmp_path, text, label_column):
    path = str(tmp_path / "t.tsv")
    write(tmp_path / "t.tsv", text)
    files = (path, None, None) if label_column else (None, None, path)
    message = r"t\.tsv:1: columns given by number .* Give the names of the columns instead"
    with pytest.raises(TableError, match=message):
        task_table.own_task("classification", *files, "1", None, label_column)


@pytest.mark.parametrize("row", ["a text\tlabel of it", "question\t1", "a\tclass"])
def test_a_first_row_that_is_not_a_header(tmp_path, row):
    text = f"{row}\nother\t0\n"
    task = own(tmp_path, text, text_a_column="1", label_column="2")
    assert len(examples.training_examples(task)) == 2


def test_regression(tmp_path):
    task = own(tmp_path, '{"text": "a", "score": 2}\n{"text": "b", "score": "-1e1"}\n', "t.jsonl",
               kind="regression")  # fmt: skip
    assert as_tuples(examples.training_examples(task)) == [("a", None, 2.0), ("b", None, -10.0)]


def test_the_second_text_of_a_later_row_is_not_left_out(tmp_path):
    rows = '{"text": "a", "label": "x"}\n{"text": "b", "text_b": "c", "label": "y"}\n'
    with pytest.raises(TableError, match=r"train\.jsonl:1: .*text_b"):
        examples.training_examples(own(tmp_path, rows, "train.jsonl"))


def test_of_several_columns_that_may_be_the_text_the_chosen_ones_are(tmp_path):
    text = "question\tsentence\tlabel\nWhen?\tIn 1066.\tyes\nWho?\tIt.\tno\n"
    task = own(tmp_path, text, text_a_column="question", text_b_column="sentence")
    assert as_tuples(examples.training_examples(task))[0] == ("When?", "In 1066.", 1)
    task = own(tmp_path, text, text_a_column="sentence")
    assert as_tuples(examples.training_examples(task))[0] == ("In 1066.", None, 1)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            "a\tb\n1\t2\n",
            {},
            "its columns are a, b, which does not include any of the usual names of text_a_column "
            "(text_a, text, sentence1, sentence, premise, question1, question) and of label_column "
            "(label, labels, gold_label, class, score). Give each: a name, or a number from 1",
        ),
        (
            "review\tlabel\n1\t2\n",
            {"text_a_column": "rview"},
            "its columns are review, label, which does not include text_a_column=rview; did you "
            "mean review?",
        ),
        (
            "question\tsentence\tlabel\nWhen?\tIn 1066.\tyes\n",  # as QNLI's files
            {},
            "train.tsv: its columns sentence and question may each be the text. Give "
            "text_a_column, and text_b_column if the task is about pairs of texts",
        ),
        ("1\tx\n", {"text_a_column": "2"}, "Give both text_a_column and label_column"),
    ],
)
def test_columns_that_are_not_found(tmp_path, text, options, message):
    with pytest.raises(TableError) as caught:
        own(tmp_path, text, **options)
    assert message in str(caught.value) and f"{tmp_path}/train.tsv" in str(caught.value)
