"""The models that are served: opened from what a directory holds, and opened again if it is newer.

A directory with an exported model is served as its task says, and so is a fine-tuned run, from its
checkpoint, if it has no exported model; any other network gives vectors, and words for [MASK] if it
has the head. Names and values of the outputs are what the signature `serving_default` of an
exported model that takes text gives, so that a request gets the same from TensorFlow Serving.
"""

import asyncio
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_estimator.command_line import run_directory
from bert_estimator.serving import exported_model
from bert_estimator.serving.answer_predictor import AnswerPredictor
from bert_estimator.serving.predictor import Predictor, open_predictor
from bert_estimator.serving.server.batcher import Batch, Batcher
from bert_estimator.system import disk_files, json_files, paths
from bert_estimator.tokenization import MASK

VECTORS = "vectors"
_SAMPLE = "a text"  # which a model answers before it is served
_OUTPUTS = {
    "classification": ("label", "labels", "probabilities", "logits"),
    "multi_label": ("labels", "probabilities", "logits"),
    "regression": ("number", "logits"),
    "tagging": ("words", "tags", "labels", "probabilities"),
    VECTORS: ("vector",),
}
# A part of an answer in an n-best list -> the output that lists it.
_N_BEST = {
    "answer": "n_best_answers",
    "start": "n_best_starts",
    "end": "n_best_ends",
    "probability": "n_best_probabilities",
}


class Inputs(NamedTuple):
    """Says which one or two strings a text of a model consists of."""

    names: tuple[str, ...]
    num_needed: int  # how many of them a request has to give, from the first

    def shown(self) -> str:
        """Returns them in words."""
        optional = self.names[self.num_needed :]
        return " and ".join(self.names[: self.num_needed]) + "".join(
            f", and may have {name}" for name in optional
        )


class Opened(NamedTuple):
    """Holds an open model."""

    kind: str  # a key of `_OUTPUTS`, or QUESTION_ANSWERING
    inputs: Inputs
    outputs: tuple[str, ...]
    labels: tuple[str, ...]  # in the order of their probabilities
    max_seq_length: int | None  # in tokens; None if it is not known
    directory: str  # or the checkpoint
    # Returns output name -> JSON value for each text, except that a vector is an array.
    answer: Callable[[Sequence[Any]], list[dict[str, Any]]]
    num_cut: Callable[[], int]  # how many texts have been cut so far
    close: Callable[[], None]
    # Returns the answer to each (text with [MASK], how many words to list); None without the head.
    fill: Callable[[Sequence[tuple[Any, int]]], list[dict[str, Any]]] | None = None

    @property
    def version(self) -> str:
        """Returns the number of the export, or the step of the checkpoint, or "1" if there is no
        number."""
        name = os.path.basename(os.path.normpath(self.directory))
        name = name.removeprefix(run_directory.CHECKPOINT_PREFIX)
        return name if name.isdecimal() else "1"


def open_model(
    path: str, batch_size: int, most_windows: int | None = None, **vectors: Any
) -> Opened:
    """Opens an exported model or a fine-tuned run, as `Predictor` does, or else a network, as
    `Embedder` does with the arguments `vectors`, and has it answer a text; the long texts of a call
    are read in at most so many windows."""
    directory = _with_task(path)
    kind = directory and _kind_of(directory)
    if kind is None:  # an ONNX model of a network without a task has a task.json without a kind
        model = _vectors(directory or path, batch_size, most_windows, vectors)
    else:
        predictor = open_predictor(directory, batch_size)
        predictor.most_windows = most_windows
        is_of_answers = isinstance(predictor, AnswerPredictor)
        model = _answers(predictor) if is_of_answers else _predictions(predictor)
    # The first call is slow, since TensorFlow prepares the graph, and it shows whether the model
    # works. A newer model is not put in the place of the old one before that.
    sample = (_SAMPLE,) * model.inputs.num_needed
    model.answer([sample if len(sample) > 1 else _SAMPLE])
    if model.fill:
        model.fill([(MASK, 1)])
    return model


def _with_task(path, reads_all=True):
    """Returns the exported model or the checkpoint with a task that a path means, or None; for
    `reads_all` see `checkpoint_model.find`."""
    try:
        export = exported_model.find(path)
    except ValueError:
        return None
    if export is None:
        # It loads the network's code, which exported models do without.
        from bert_estimator.serving import checkpoint_model

        return checkpoint_model.find(path, reads_all)
    # A module of TF Hub is a SavedModel without a task.
    return export if os.path.isfile(exported_model.task_file(export)) else None


def _kind_of(directory):
    path = exported_model.task_file(directory)
    return json_files.field(json_files.read(path), "kind", str, path, default=None)


def _predictions(predictor: Predictor) -> Opened:
    def answer(texts):
        outputs = predictor.predict(texts)
        columns = {name: [row.tolist() for row in rows] for name, rows in outputs.items()}
        labels = list(predictor.labels)
        if predictor.kind == "regression":
            columns["number"] = [row[0] for row in columns["logits"]]
        else:
            columns["labels"] = [labels] * len(texts)
        if predictor.kind in ("classification", "tagging"):
            best = [np.argmax(rows, axis=-1) if len(rows) else [] for rows in outputs["logits"]]
            if predictor.kind == "tagging":
                columns["words"] = list(map(predictor.words_of, texts))
                columns["tags"] = [[labels[tag] for tag in tags] for tags in best]
            else:
                columns["label"] = [labels[label] for label in best]
        names = _OUTPUTS[predictor.kind]
        return [{name: columns[name][number] for name in names} for number in range(len(texts))]

    inputs = Inputs(("text_a", "text_b")[: 1 + predictor.is_pair], 1 + predictor.is_pair)
    return _opened(predictor, inputs, _OUTPUTS[predictor.kind], predictor.labels, answer)


def _opened(predictor, inputs, outputs, labels, answer):
    return Opened(
        kind=predictor.kind,
        inputs=inputs,
        outputs=outputs,
        labels=labels,
        max_seq_length=predictor.max_seq_length,
        directory=predictor.export_dir,
        answer=answer,
        num_cut=lambda: predictor.num_cut,
        close=predictor.close,
    )


def _vectors(
    path: str, batch_size: int, most_windows: int | None, options: dict[str, Any]
) -> Opened:
    # Loaded only now: exported models do without the network's code.
    from bert_estimator.serving.filler import Filler

    try:
        embedder = Filler(path, batch_size=batch_size, is_needed=False, **options)
    except (ValueError, OSError) as error:
        # A full disk, for example, says nothing about the model.
        if isinstance(error, OSError) and not disk_files.is_of_input(error):
            raise
        raise ValueError(
            f"{disk_files.in_words(error)}. Nor does {path} hold an exported model, such as "
            "run_classifier.py --do_export makes, or a fine-tuned run"
        ) from None

    embedder.most_windows = most_windows

    def fill(asked):
        return embedder.fill([text for text, _ in asked], [top for _, top in asked])

    return Opened(
        kind=VECTORS,
        inputs=Inputs(("text_a", "text_b"), 1),
        outputs=_OUTPUTS[VECTORS],
        labels=(),
        max_seq_length=embedder.max_seq_length,
        directory=path,
        answer=lambda texts: [{"vector": vector} for vector in embedder(texts)],
        num_cut=lambda: embedder.num_cut,
        close=embedder.close,
        fill=fill if embedder.fills else None,
    )


def _answers(predictor: AnswerPredictor) -> Opened:
    search = predictor.search
    num_listed = search.n_best_size + search.version_2
    empty = {"answer": "", "start": 0, "end": 0, "probability": 0.0}

    def answer(texts):
        answers = predictor(texts)
        for of_text in answers:
            listed = of_text.pop("n_best")
            # The lists of all texts have one length; empty answers fill them.
            listed += [empty] * (num_listed - len(listed))
            for name in empty:
                of_text[_N_BEST[name]] = [span[name] for span in listed]
        return [{name: of_text[name] for name in outputs} for of_text in answers]

    outputs = "answer", "start", "end", "score", "probability", *_N_BEST.values()
    outputs += ("null_odds",) if search.version_2 else ()
    return _opened(predictor, Inputs(("question", "context"), 2), outputs, (), answer)


def name_of(path: str) -> str:
    """Returns the name under which a directory's model is served: its own, or its run's."""
    parts = os.path.abspath(path).split(os.sep) if not paths.is_remote(path) else path.split("/")
    while len(parts) > 1 and (parts[-1] in ("", "export", "onnx") or parts[-1].isdecimal()):
        parts.pop()
    return re.sub(r"[^\w.-]", "_", parts[-1]) or "model"


class ServedModel:
    """Answers the requests of one model, the newest of its directory; `open_one` opens a path as
    `open_model` does, and the rest is as for `Batcher`."""

    def __init__(
        self,
        name: str,
        path: str,
        open_one: Callable[[str], Opened],
        batch_size: int,
        queue_size: int,
        report: Callable[[Batch], None] = lambda batch: None,
    ):
        self.name, self.path, self._open = name, path, open_one
        self._new_batcher = lambda answer: Batcher(answer, batch_size, queue_size, report)
        # What the directory held when it was opened, and when it was looked at last. They are read
        # before the model: what is copied meanwhile makes a difference.
        self._served = self._seen = self._look_into()
        self._trouble = ""  # with what was seen last, until it is said
        # A newer model gets new batchers: what was accepted for the model before is still answered
        # by that model. So there may be several batchers at a time.
        self.batchers: list[Batcher] = []
        self._install(open_one(path))

    def _install(self, opened):
        self.opened, self.batcher = opened, self._new_batcher(opened.answer)
        # What fills in words is a network for vectors, which is not replaced.
        self.filler = opened.fill and self._new_batcher(opened.fill)
        self.batchers += [self.batcher, self.filler] if self.filler else [self.batcher]

    async def look(self) -> None:
        """Opens the newest model of the directory if it is not the open one, which answers until
        then, and goes on if opening fails."""
        if self.opened.kind == VECTORS or paths.is_remote(self.path):
            return
        # What fails is tried again when a file has changed. It is said on standard error, once,
        # only if no file has changed by the next look: until then, the model may still be on its
        # way here.
        seen = await asyncio.to_thread(self._look_into)
        if seen == self._seen:
            if self._trouble:
                self._say(self._trouble)
            self._trouble = ""
            return
        self._seen, self._trouble = seen, ""
        # The directory is again as it was when the open model was opened.
        if seen == self._served:
            return
        directory, still = self.opened.directory, f"Version {self.opened.version} is still served"
        # The model is open, so that it answers even if its files are gone.
        if seen.newest is None:
            self._trouble = f"{directory} is gone; it is served from memory"
            if seen.error or os.path.isdir(directory) or os.path.isfile(f"{directory}.index"):
                why = seen.error or f"{self.path}: the newest exported model lacks its task.json"
                self._trouble = f"{why}. {still}"
            return
        try:
            opened = await asyncio.to_thread(self._open, seen.newest)
        except (ValueError, OSError) as error:
            self._trouble = f"{disk_files.in_words(error)}. {still}"
            return
        self._served = seen
        await self._replace(opened)

    def _look_into(self):
        try:
            newest = None if paths.is_remote(self.path) else _with_task(self.path, False)
            return _Seen(newest, _files_of(newest) if newest else frozenset())
        except (ValueError, OSError) as error:
            return _Seen(error=f"{self.path}: cannot be read: {disk_files.in_words(error)}")

    async def _replace(self, opened):
        old, old_batcher = self.opened, self.batcher
        self._install(opened)
        self._say(f"version {opened.version} is served now")
        # New requests go to the new batcher from here on. The old model is closed when nothing is
        # computed with it.
        await old_batcher.drain()
        await old_batcher.close()
        self.batchers.remove(old_batcher)
        await asyncio.to_thread(old.close)

    async def drain(self) -> None:
        """Waits until every request that was accepted has its answers."""
        for batcher in list(self.batchers):
            await batcher.drain()

    async def close(self) -> None:
        """Ends the threads of the batchers."""
        for batcher in list(self.batchers):
            await batcher.close()

    def _say(self, what):
        print(f"serve: {self.name}: {what}.", file=sys.stderr, flush=True)


class _Seen(NamedTuple):
    """Holds what a look into a directory finds: the newest model, or None, and its files."""

    newest: str | None = None
    files: frozenset[tuple[str, int, int]] = frozenset()
    error: str = ""


def _files_of(model):
    """Returns (path, bytes, time of the last change) of all files of an exported model or a
    checkpoint."""
    if os.path.isdir(model):
        files = [os.path.join(folder, n) for folder, _, names in os.walk(model) for n in names]
    else:
        from bert_estimator.serving import checkpoint_model

        files = checkpoint_model.files_of(model)
    return frozenset((f, (info := os.stat(f)).st_size, info.st_mtime_ns) for f in files)
