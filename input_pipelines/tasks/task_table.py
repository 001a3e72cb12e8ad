"""The table of tasks: the files, columns, labels and metrics of GLUE and XNLI."""

import dataclasses
import difflib
import os

from input_pipelines.tasks.table_files import TableError, read_columns, read_rows, separator_hint

Column = str | int  # a name in the header, or a number from 0 in a file without header

TEXT_A_NAMES = ("text_a", "text", "sentence1", "sentence", "premise", "question1", "question")
TEXT_B_NAMES = ("text_b", "sentence2", "hypothesis", "question2")
LABEL_NAMES = ("label", "labels", "gold_label", "class", "score")


@dataclasses.dataclass(frozen=True)
class Columns:
    """Names the columns of a file."""

    text_a: Column
    text_b: Column | None = None  # None if the task has single texts
    label: Column | None = None  # None in files to predict for
    has_header: bool = True  # whether the first line names the columns
    encoding: str = "utf-8"


@dataclasses.dataclass(frozen=True)
class Task:
    """Describes a task: its files, columns, labels and metrics."""

    columns: Columns  # of the files with labels
    labels: tuple[str, ...]  # in the order of their numbers; empty for regression
    metrics: tuple[str, ...]  # larger is better; the first chooses the best checkpoint
    kind: str = "classification"  # or "multi_label" or "regression"
    train: str | None = "train.tsv"
    # Name -> file; the name is "" if there is only one file.
    evaluate: dict[str, str] = dataclasses.field(default_factory=lambda: {"": "dev.tsv"})
    predict: dict[str, str] = dataclasses.field(default_factory=lambda: {"": "test.tsv"})
    # None if they are the same as `columns`. Files to predict for do not have labels.
    train_columns: Columns | None = None
    predict_columns: Columns | None = None
    aliases: dict[str, str] = dataclasses.field(default_factory=dict)  # other spelling -> label
    # Only rows with this (column, value) are used, except for training.
    where: tuple[Column, str] | None = None
    # Whether rows with too few or too many cells are counted and skipped, because the task's
    # published files have them; if not, they are errors. In files to predict for they are kept.
    drops_malformed: bool = False
    positive: str | None = None  # the label of the metric f1; None means the second label

    def of(self, directory: str) -> "Task":
        """Returns the task with its files in a directory."""

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

# Files, labels and metrics are from gluebenchmark.com and Wang et al., "GLUE" (2018), table 1.
TASKS = {
    "cola": Task(
        Columns(3, None, 1, has_header=False), ("0", "1"), ("matthews", "accuracy"),
        predict_columns=Columns("sentence"),
    ),
    "sst-2": Task(Columns("sentence", None, "label"), ("0", "1"), ("accuracy",)),
    "mrpc": Task(
        Columns("#1 String", "#2 String", "Quality"), ("0", "1"), ("f1", "accuracy"), positive="1"
    ),
    "qqp": Task(
        Columns("question1", "question2", "is_duplicate"), ("0", "1"), ("f1", "accuracy"),
        drops_malformed=True, positive="1",
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

# Metrics of the user's own files, by kind; of tags that mark entities; and of embedded texts. Of
# each, the first chooses the best checkpoint.
OWN_METRICS = {
    "classification": ("accuracy", "macro_f1"),
    "multi_label": ("micro_f1", "exact_match"),
    "regression": ("pearson", "spearman"),
    "tagging": ("accuracy", "macro_f1"),
}
ENTITY_METRICS = ("entity_f1", "entity_precision", "entity_recall", "accuracy")
EMBEDDED_METRICS = ("accuracy",)

# What `named` takes.
TASK_NAMES = (*TASKS, "xnli")


def named(name: str, language: str) -> Task:
    """Returns a task of GLUE, or XNLI in a language, by its name, one of TASK_NAMES."""
    return xnli(language) if name == "xnli" else TASKS[name]


def xnli(language: str) -> Task:
    """Returns XNLI (Conneau et al., 2018) in a language, such as "zh"."""
    # The training text is translated. The other files have rows of all languages.
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
    text_a_column: str | None = None,
    text_b_column: str | None = None,
    label_column: str | None = None,
    labels: tuple[str, ...] = (),
    encoding: str = "utf-8",
) -> Task:
    """Returns a task with the user's own TSV, CSV or JSON files.

    Args:
      train, evaluate, predict: the files, or None. Without any, a network alone is the task, whose
        texts are pairs if `text_b_column` is given.
      text_a_column, text_b_column, label_column: names of columns; or all are numbers from 1, for
        files without header. None: one of the usual names, in small letters or capitals.
      labels: the labels, if they are known; if not, the labels of the training file, sorted.
    """
    chosen = [column for column in (text_a_column, text_b_column, label_column) if column]
    has_header = not (chosen and all(column.isdecimal() for column in chosen))
    if not (train or evaluate or predict):
        columns = Columns(TEXT_A_NAMES[0], text_b_column)
    elif has_header:
        first = train or evaluate or predict
        header = read_columns(first, encoding)
        text_a = text_a_column or _usual(header, TEXT_A_NAMES)
        text_b = text_b_column or _usual(header, TEXT_B_NAMES)
        label = label_column or _usual(header, LABEL_NAMES)
        written = {_lower(column): column for column in header}
        # With two usual names, a guess might leave out the text that matters.
        texts = [written[name] for name in TEXT_A_NAMES if name in written]
        if text_a_column is None and text_b is None and len(texts) > 1:
            raise TableError(
                f"{first}: its columns {' and '.join(texts)} may each be the text. Give "
                "text_a_column, and text_b_column if the task is about pairs of texts"
            )
        _check_columns(
            first,
            header,
            {
                "text_a_column": (text_a, TEXT_A_NAMES, True),
                "text_b_column": (text_b, TEXT_B_NAMES, False),
                "label_column": (label if train or evaluate else None, LABEL_NAMES, bool(train)),
            },
        )
        columns = Columns(text_a, text_b, label, encoding=encoding)
    else:
        if text_a_column is None or (label_column is None and (train or evaluate)):
            raise TableError(
                f"{train or evaluate or predict}: columns given by number mean a file without "
                "header. Give both text_a_column and label_column"
            )
        columns = _numbered(text_a_column, text_b_column, label_column)
        columns = dataclasses.replace(columns, encoding=encoding)
        for path in filter(None, (train, evaluate, predict)):
            _check_no_header(path, columns)
    return Task(
        columns,
        labels,
        OWN_METRICS[kind],
        kind,
        train=train,
        evaluate={"": evaluate} if evaluate else {},
        predict={"": predict} if predict else {},
        predict_columns=dataclasses.replace(columns, label=None),
    )


def _numbered(*columns: str | None) -> Columns:
    """Returns the columns whose numbers are given, from 1."""
    numbers = [int(column) - 1 if column else None for column in columns]
    return Columns(*numbers, has_header=False)


def _check_no_header(path: str, columns: Columns) -> None:
    """Raises TableError if the first row of a file without header looks like a header."""
    line, row = next(read_rows(path, False, columns.encoding), (0, {}))
    text, label = (
        str(row.get(column, "")).strip().lower() for column in (columns.text_a, columns.label)
    )
    is_text = text in TEXT_A_NAMES
    # A label may be called "class" or "score", but not "label".
    is_label = label in LABEL_NAMES and (is_text or label.endswith(("label", "labels")))
    if is_label or (is_text and columns.label is None):
        cells = " and ".join(repr(row[c]) for c in (columns.text_a, columns.label) if c in row)
        raise is_header(f"{path}:{line}", f"has {cells}, which looks like a header")


def is_header(place: str, what: str) -> TableError:
    """Returns the error for a first row that is a header, though a file should not have one."""
    return TableError(
        f"{place}: columns given by number mean a file without header, but the first row {what}. "
        "Give the names of the columns instead of numbers; or if this is an example, write a "
        "header above it"
    )


def _usual(header: list[str], names: tuple[str, ...]) -> str | None:
    # A name in small letters wins over the same name in capitals, and the first column over others.
    written = {_lower(column): column for column in reversed(header)}
    return next((name for name in names if name in header), None) or next(
        (written[name] for name in names if name in written), None
    )


def _lower(column):
    return column.lower() if isinstance(column, str) else column


def _check_columns(path, header, columns):
    """Raises TableError unless a file has the columns: argument -> (the column or None, its usual
    names, whether it is needed)."""
    has = f"{path}: its columns are {', '.join(map(str, header))}"
    separators = separator_hint(path, header)
    missing = [
        f"{argument} ({', '.join(names)})"
        for argument, (column, names, is_needed) in columns.items()
        if column is None and is_needed
    ]
    if missing:
        raise TableError(
            f"{has}, which does not include any of the usual names of "
            f"{' and of '.join(missing)}. Give {'each' if len(missing) > 1 else 'it'}: a name, or "
            f"a number from 1 if the file has no header{separators}"
        )
    for argument, (column, _, _) in columns.items():
        if column is not None and column not in header:
            near = difflib.get_close_matches(column, map(str, header), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise TableError(f"{has}, which does not include {argument}={column}{hint}{separators}")
