"""What lies beside a TF1 checkpoint: the network, the vocabulary, and the task it was trained on.

google-research/bert publishes bert_config.json and vocab.txt. This project adds task.json, with the
keys `kind`, `labels`, `output_names`, `is_pair`, `do_lower_case`, `strip_accents`, `pooling`,
`is_normalized`, `max_seq_length`, `version_2_with_negative`, `long_texts` and `doc_stride` of
`Source` (null or missing: not known), the name `vocab_file`, and the keys of `OF_READING`.
"""

import json
import os
import shutil
from typing import Any

from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line.choices import LONG_TEXTS, QUESTION_ANSWERING
from bert_estimator.interchange.network_variables import ANSWER
from bert_estimator.interchange.source import KINDS, Source
from bert_estimator.system import json_files
from bert_estimator.tokenization import Casing

CONFIG, VOCABULARY, TASK = "bert_config.json", "vocab.txt", "task.json"
SENTENCE_PIECE = "vocab.model"
# google-research/albert publishes these.
_OTHER_CONFIGS, _OTHER_VOCABULARIES = ("albert_config.json",), ("30k-clean.model",)
_KEYS = {
    "kind": str,
    "is_pair": bool,
    "do_lower_case": bool,
    "strip_accents": bool,
    "max_seq_length": int,
    "pooling": str,
    "is_normalized": bool,
    "version_2_with_negative": bool,
}
OF_LONG_TEXTS = {"long_texts": str, "doc_stride": int}
# Of taggers, and of networks that answer questions, which have a `doc_stride` of contexts, too.
OF_READING = {
    "words": str,
    "max_query_length": int,
    "n_best_size": int,
    "max_answer_length": int,
    "null_score_diff_threshold": float,
}
_LISTS = ("labels", "output_names")
# Kinds in task.json of networks that do not have a classifier.
_WITHOUT_CLASSIFIER = ("pretraining", QUESTION_ANSWERING)


def read(folder: str) -> dict[str, Any]:
    """Returns what a directory says of its checkpoints: a dict of fields of `Source`."""
    config = _first_of(folder, (CONFIG, *_OTHER_CONFIGS))
    return {
        "config": BertConfig.from_json_file(config) if config else None,
        "vocab_file": _first_of(folder, (VOCABULARY, SENTENCE_PIECE, *_OTHER_VOCABULARIES)),
        "casing_file": os.path.join(folder, TASK),
        **_read_task(folder),
    }


def casing(folder: str) -> Casing | None:
    """Returns how text of a directory's network is cased; None if task.json does not say it."""
    task = _read_task(folder)
    lower = task["do_lower_case"]
    return None if lower is None else Casing(lower, task["strip_accents"])


def _first_of(folder, names):
    """Returns the path of the first of these files that exists in a directory, or None."""
    paths = [os.path.join(folder, name) for name in names]
    return next((path for path in paths if os.path.exists(path)), None)


def write(folder: str, source: Source) -> None:
    """Writes the files of a model into a directory."""
    with open(os.path.join(folder, CONFIG), "w", encoding="utf-8") as writer:
        writer.write(source.config.to_json_string())
    if source.vocab_file is not None:
        shutil.copyfile(
            source.vocab_file, os.path.join(folder, name_of_vocabulary(source.vocab_file))
        )
    with open(os.path.join(folder, TASK), "w", encoding="utf-8") as writer:
        writer.write(json.dumps(task_of_source(source), indent=2) + "\n")


def name_of_vocabulary(vocab_file: str) -> str:
    """Returns the name that a vocabulary has beside checkpoints."""
    return SENTENCE_PIECE if vocab_file.endswith(".model") else VOCABULARY


def task_of_source(source: Source) -> dict[str, Any]:
    """Returns what task.json says of a source."""
    values = {key: getattr(source, key) for key in (*_KEYS, *_LISTS)}
    if f"{ANSWER}/output_weights" in source.shapes:
        values["kind"] = QUESTION_ANSWERING
    if source.vocab_file is not None:
        values["vocab_file"] = name_of_vocabulary(source.vocab_file)
    return values | of_texts(source)


def of_texts(source: Source) -> dict[str, Any]:
    """Returns what is known of how a source reads texts, by the keys of task.json."""
    values = {key: getattr(source, key) for key in OF_LONG_TEXTS if source.long_texts}
    return {key: value for key, value in values.items() if value is not None} | source.reading


def _read_task(folder):
    """Returns the fields of `Source` that task.json tells."""
    path = os.path.join(folder, TASK)
    return task_of(json_files.read(path) if os.path.lexists(path) else {}, path)


def task_of(task: dict[str, Any], path: str) -> dict[str, Any]:
    """Returns the fields of `Source` that an object of task.json tells, which are checked; `path`
    is for errors."""
    # A key that is null or missing is None, or () for the labels and names.
    values = {
        key: json_files.field(task, key, kind, path, default=None)
        for key, kind in (_KEYS | OF_LONG_TEXTS | OF_READING).items()
    }
    reading = {key: values.pop(key) for key in OF_READING}
    if values["long_texts"] is None:  # then it is the stride of contexts
        reading["doc_stride"], values["doc_stride"] = values["doc_stride"], None
    elif values["long_texts"] not in LONG_TEXTS:
        choices, other = ", ".join(LONG_TEXTS), values["long_texts"]
        raise ValueError(f"{path}: long_texts must be one of {choices}, not {other!r}")
    if (stride := values["doc_stride"]) is not None and stride < 1:
        raise ValueError(f"{path}: doc_stride must be positive, not {stride}")
    values["reading"] = {key: value for key, value in reading.items() if value is not None}
    if values["kind"] in _WITHOUT_CLASSIFIER:
        values["kind"] = None
    if values["kind"] not in (None, *KINDS):
        kinds = ", ".join((*KINDS, *_WITHOUT_CLASSIFIER))
        raise ValueError(f"{path}: kind must be one of {kinds}, not {values['kind']!r}")
    length = values["max_seq_length"]
    if length is not None and not 0 < length < 1 << 31:
        raise ValueError(f"{path}: max_seq_length must be positive, not {length}")
    for key in _LISTS:
        names = json_files.field(task, key, list, path, default=[])
        json_files.items(names, str, f"{path}: {key}")
        if len(set(names)) < len(names):
            raise ValueError(f"{path}: {key}: a label occurs twice")
        values[key] = tuple(names)
    return values
