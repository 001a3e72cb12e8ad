"""The table of tasks: where GLUE's and XNLI's files lie, which columns matter, what is measured.

A task is a few lines of the table; one's own files make one through `own_task`.
"""

import dataclasses
import os

from input_pipelines.table_files import TableError, read_rows

Column = str | int  # by the header's name, or by number from 0 in a file without header

TEXT_A_NAMES = ("text_a", "text", "sentence1", "sentence", "premise", "question1", "question")
TEXT_B_NAMES = ("text_b", "sentence2", "hypothesis", "question2")
LABEL_NAMES = ("label", "labels", "gold_label", "class", "score")


@dataclasses.dataclass(frozen=True)
class Columns:
    """Which columns of a file hold what.

    Attributes:
      text_a, text_b: the text, or the pair of texts.
      label: None in files to predict for.
      has_header: whether the first line names the columns.
    """

    text_a: Column
    text_b: Column | None = None
    label: Column | None = None
    has_header: bool = True


@dataclasses.dataclass(frozen=True)
class Task:
    """A task as its files have it.

    Attributes:
      columns: of the files with labels.
      labels: the labels, in the order of their numbers; empty for regression.
      metrics: names of metrics, the first decides which checkpoint is best; larger is better.
      kind: "classification", "multi_label" or "regression".
      train: file to train on, or None.
      evaluate, predict: name -> file; the name is "" where there is one file.
      train_columns, predict_columns: of the other files, where they differ; files to predict for
        have no labels.
      aliases: other spellings of labels.
      where: (column, value): outside the training file, rows with another value there belong to
        another task.
      drops_malformed: rows with too few or too many cells are counted and left out, as the task's
        own files have some; elsewhere they are errors.
    """

    columns: Columns
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    kind: str = "classification"
    train: str | None = "train.tsv"
    evaluate: dict[str, str] = dataclasses.field(default_factory=lambda: {"": "dev.tsv"})
    predict: dict[str, str] = dataclasses.field(default_factory=lambda: {"": "test.tsv"})
    train_columns: Columns | None = None
    predict_columns: Columns | None = None
    aliases: dict[str, str] = dataclasses.field(default_factory=dict)
    where: tuple[Column, str] | None = None
    drops_malformed: bool = False

    def of(self, directory: str) -> "Task":
        """The same task with its files in a directory."""

        def inside(files: dict[str, str]) -> dict[str, str]:
            return {name: os.path.join(directory, path) for name, path in files.items()}

        return dataclasses.replace(
            self,
            train=self.train and os.path.join(directory, self.train),
            evaluate=inside(self.evaluate),
            predict=inside(self.predict),
        )


_PAIR = Columns("sentence1", "sentence2", "label")
_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("contradiction", "entailment", "neutral")

# Wang et al., "GLUE" (2018), table 1: files, labels and metrics as on gluebenchmark.com.
TASKS = {
    "cola": Task(
        Columns(3, None, 1, has_header=False), ("0", "1"), ("matthews", "accuracy"),
        predict_columns=Columns("sentence"),
    ),
    "sst-2": Task(Columns("sentence", None, "label"), ("0", "1"), ("accuracy",)),
    "mrpc": Task(Columns("#1 String", "#2 String", "Quality"), ("0", "1"), ("f1", "accuracy")),
    "qqp": Task(
        Columns("question1", "question2", "is_duplicate"), ("0", "1"), ("f1", "accuracy"),
        drops_malformed=True,
    ),
    "sts-b": Task(
        Columns("sentence1", "sentence2", "score"), (), ("pearson", "spearman"), "regression"
    ),
    "mnli": Task(
        Columns("sentence1", "sentence2", "gold_label"), _INFERENCE, ("accuracy",),
        evaluate={"matched": "dev_matched.tsv", "mismatched": "dev_mismatched.tsv"},
        predict={"matched": "test_matched.tsv", "mismatched": "test_mismatched.tsv"},
    ),
    "qnli": Task(Columns("question", "sentence", "label"), _ENTAILMENT, ("accuracy",)),
    "rte": Task(_PAIR, _ENTAILMENT, ("accuracy",)),
    "wnli": Task(_PAIR, ("0", "1"), ("accuracy",)),
}  # fmt: skip


def named(name: str, language: str) -> Task:
    """A task of GLUE, or XNLI in a language, by its name."""
    return xnli(language) if name == "xnli" else TASKS[name]


def xnli(language: str) -> Task:
    """XNLI (Conneau et al., 2018) in a language, such as "zh": trained on translated text.

    The files to evaluate on and to predict for hold all languages.
    """
    return Task(
        Columns("sentence1", "sentence2", "gold_label"),
        _INFERENCE,
        ("accuracy",),
        evaluate={"": "xnli.dev.tsv"},
        predict={"": "xnli.test.tsv"},
        train=f"multinli/multinli.train.{language}.tsv",
        train_columns=Columns("premise", "hypo", "label"),
        predict_columns=Columns("sentence1", "sentence2"),
        aliases={"contradictory": "contradiction"},
        where=("language", language),
    )


def own_task(
    kind: str,
    train: str | None,
    evaluate: str | None,
    predict: str | None,
    text_a: str | None = None,
    text_b: str | None = None,
    label: str | None = None,
    labels: tuple[str, ...] = (),
) -> Task:
    """The task of one's own TSV, CSV or JSONL files.

    Args:
      kind: "classification", "multi_label" or "regression".
      train, evaluate, predict: the files, or None.
      text_a, text_b, label: columns by name; or by number from 1, all of them, in files without
        header. None: looked for among the usual names in the header of the first file.
      labels: the labels, if they are known; else they are those of the training file, sorted.

    Raises:
      TableError: a column is not found; the message names those that there are.
    """
    given = [column for column in (text_a, text_b, label) if column]
    has_header = not (given and all(column.isdecimal() for column in given))
    if has_header:
        first = train or evaluate or predict
        header = _header(first)
        a = text_a or _usual(first, header, TEXT_A_NAMES, "text_a_column")
        b = text_b or next((name for name in TEXT_B_NAMES if name in header), None)
        c = label or (_usual(first, header, LABEL_NAMES, "label_column") if train else None)
        c = c or next((name for name in LABEL_NAMES if name in header), None)
        columns = Columns(a, b, c)
    else:
        if text_a is None or (label is None and (train or evaluate)):
            raise TableError(
                f"{train or evaluate or predict}: columns given by number mean a file without "
                "header: --text_a_column and --label_column are both needed then"
            )
        numbers = [int(column) - 1 if column else None for column in (text_a, text_b, label)]
        columns = Columns(*numbers, has_header=False)
    metrics = {
        "classification": ("accuracy", "macro_f1"),
        "multi_label": ("micro_f1", "exact_match"),
        "regression": ("pearson", "spearman"),
    }[kind]
    return Task(
        columns,
        labels,
        metrics,
        kind,
        train=train,
        evaluate={"": evaluate} if evaluate else {},
        predict={"": predict} if predict else {},
        predict_columns=dataclasses.replace(columns, label=None),
    )


def _header(path: str) -> list[str | int]:
    for _, row in read_rows(path):
        return list(row)
    raise TableError(f"{path}: holds no rows")


def _usual(path: str, header: list[str | int], names: tuple[str, ...], flag: str) -> str:
    for name in names:
        if name in header:
            return name
    raise TableError(
        f"{path}: none of its columns ({', '.join(map(str, header))}) is named {', '.join(names)}. "
        f"Say which it is with --{flag}: a name, or for a file without header a number from 1"
    )
