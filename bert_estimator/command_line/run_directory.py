"""What a run leaves behind besides checkpoints: config.json, metrics.jsonl, curves.svg, and more.

config.json holds every resolved flag with its source, versions and the command. metrics.jsonl has a
line for each logged step of training and for each evaluation. curves.svg draws them.
bert_config.json and vocab.txt (vocab.model for SentencePiece) lie beside the checkpoints, as in
google-research/bert's archives, and so does task.json, which says what the network was trained on:
a reader of the checkpoints needs no other files.

best/best.json lists the checkpoints that have been evaluated, in the order of their evaluations,
each with its metric. Which is the best follows from the list and from what lies beside it.
"""

import contextlib
import hashlib
import json
import math
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from bert_estimator.command_line import charts
from bert_estimator.command_line.flags import FlagError
from bert_estimator.command_line.provenance import EARLIER, EARLIER_DEFAULTS, Origin, Provenance
from bert_estimator.storage import remote
from bert_estimator.system import disk_files, json_files

CHECKPOINT_PREFIX = "model.ckpt-"
BEST_DIRECTORY = "best"
# The files that `RunDirectory.write_network` makes.
TASK = "task.json"
NETWORK_FILES = ("bert_config.json", TASK, "vocab.txt", "vocab.model")

_CONFIG, _BEST_FILE = "config.json", "best.json"


def read_evaluations(directory: str, of: str | None = None) -> dict[int, float]:
    """Returns step -> metric (larger is better; -inf for NaN) of best.json in a directory, in the
    order of the evaluations; empty if its digest is not `of`, unless either is None."""
    path = os.path.join(directory, _BEST_FILE)
    if not os.path.exists(path):
        return {}
    try:
        content = json_files.read(path)
        recorded = json_files.field(content, "of", str, path, default=None)
        # Metrics of other data cannot be compared with new ones.
        if None not in (of, recorded) and of != recorded:
            return {}
        evaluations = json_files.field(content, "evaluations", list, path)
        return {
            json_files.field(entry, "step", int, path): json_files.field(
                entry, "value", float, path, default=-math.inf
            )
            for entry in json_files.items(evaluations, dict, f"{path}: evaluations")
        }
    except (ValueError, OSError) as error:
        raise FlagError(
            f"--output_dir: {path} cannot be read ({disk_files.in_words(error)}). Remove "
            f"{directory}: the best checkpoint is then chosen from the checkpoints that follow"
        ) from None


def write_evaluations(directory: str, values: Mapping[int, float], of: str | None = None) -> None:
    """Writes best.json, all of it or nothing; for `values` and `of` see `read_evaluations`."""
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, _BEST_FILE)
    evaluations = [
        {"step": step, "value": None if value == -math.inf else value}
        for step, value in values.items()
    ]
    with disk_files.writer(path) as writer:
        json.dump({"of": of, "evaluations": evaluations}, writer, indent=1)


def best_step(values: Mapping[int, float]) -> int | None:
    """Returns the first step of the largest metric, or None if there is no step."""
    # No metric is a number: the last step has been trained most.
    if values and max(values.values()) == -math.inf:
        return list(values)[-1]
    return max(values, key=values.get, default=None)


def best_kept_step(directory: str, values: Mapping[int, float]) -> int | None:
    """Returns the best of the evaluated steps whose checkpoint is in the directory, or None."""
    names = _names(directory)
    return best_step(
        {step: v for step, v in values.items() if f"{CHECKPOINT_PREFIX}{step}.index" in names}
    )


def path_of_best(output_dir: str) -> str | None:
    """Returns the path prefix of the best checkpoint of a run's directory, or None without one."""
    directory = os.path.join(output_dir, BEST_DIRECTORY)
    best = best_kept_step(directory, read_evaluations(directory))
    return best and os.path.join(directory, f"{CHECKPOINT_PREFIX}{best}")


class RunDirectory:
    """The directory of a run, and its files; without a path there is nothing to read or write."""

    def __init__(self, path: str, checkpoints_in: str | None = None):
        self.path = path
        # Of several hosts, only the first writes checkpoints.
        self._checkpoints_in = checkpoints_in or path
        self.metrics_path = os.path.join(path, "metrics.jsonl")
        self._config_path = os.path.join(path, _CONFIG)
        self._names_before = {*_names(path), *_names(self._checkpoints_in)}
        # This is called with each record that is added to metrics.jsonl.
        self.report: Callable[[Mapping[str, float]], None] = lambda record: None

    def is_of_another_program(self) -> bool:
        """Returns whether there was a checkpoint of another program, such as a TF1 script."""
        return _CONFIG not in self._names_before and any(map(_is_index, self._names_before))

    @contextlib.contextmanager
    def going_on_from_another_program(self) -> Iterator[None]:
        """Surrounds a training, which may go on from another program's checkpoint."""
        try:
            yield
        finally:
            # Without a checkpoint of its own, what this training says of the run need not be true
            # of the checkpoint there.
            if self.is_of_another_program():
                self._remove_descriptions()

    def _remove_descriptions(self):
        with contextlib.suppress(OSError):  # the error that ended the training says more
            if set(filter(_is_index, _names(self._checkpoints_in))) <= self._names_before:
                for name in {_CONFIG, *NETWORK_FILES}.intersection(_names(self.path)):
                    if name not in self._names_before:
                        os.remove(os.path.join(self.path, name))

    def holds_checkpoint(self) -> bool:
        """Returns whether there is a checkpoint, and therefore a run that can be resumed."""
        return any(map(_is_index, _names(self._checkpoints_in)))

    def is_checkpoint(self, path: str | None) -> bool:
        """Returns whether a path, without .index, is a checkpoint of the run, or its best one."""
        if not path or not os.path.exists(f"{path}.index"):
            return False
        if not re.fullmatch(r"model\.ckpt-\d+", os.path.basename(path)):
            return False  # such as a network that training started from
        folder = self._checkpoints_in
        own = [folder, os.path.join(folder, BEST_DIRECTORY)]
        return os.path.realpath(os.path.dirname(path)) in map(os.path.realpath, own)

    def check_config(
        self,
        settings: Mapping[str, Any],
        records: str | None = None,
        records_flag: str = "input_file",
    ) -> None:
        """Raises a FlagError unless a run with these settings, and these `records` if their digest
        is known, can resume the run in the directory, if any."""
        # A directory without a checkpoint does not hold a run. So a command that ended before its
        # first step, because a flag was wrong, does not stand in the way of the corrected command.
        if not self.holds_checkpoint():
            return
        before = recorded_settings(self.path)
        # By way of JSON, because what is recorded has lists in the places of tuples.
        settings = json_files.parse(json.dumps(settings), "the settings")
        for name, value in settings.items():
            if before.get(name, value) == value:
                continue
            if name == "init_checkpoint" and self._is_same_path(before[name], value):
                continue
            held = f"with --{name}={before[name]}" if before[name] is not None else "without it"
            others = "or another --output_dir"
            if name == "init_checkpoint":
                others += (
                    "; without training, a checkpoint of the run can be named, such as "
                    f"{self.path}/model.ckpt-1000"
                )
            raise FlagError(
                f"--{name}={value}: {self.path} holds a run {held}. {self._way_back(name)} to go "
                f"on with it, {others}"
            )
        if records is not None and _recorded(self.path).get("records", records) != records:
            raise FlagError(
                f"--{records_flag}: {self.path} holds a run on other records than these. Use those "
                "to go on with it, or another --output_dir"
            )

    def _way_back(self, name):
        """Returns, in words, what gives a flag the value that it had in the directory's run."""
        before = _recorded(self.path)["flags"].get(name)
        if before is None:
            return "Leave the flag out"
        if before["value"] is None and name == "init_checkpoint":
            # The run started from scratch, but now a default names a checkpoint; empty means none.
            return "Give --init_checkpoint= with nothing after it"
        # The checkpoint that a stage starts from comes from the stage before it, not from a flag.
        is_stage = f": {Origin.STAGE.value} " in before["from"]
        is_flag = before["value"] is not None and not is_stage
        return "Use that value" if is_flag else "Leave the flag out"

    def _is_same_path(self, one, other):
        """Returns whether two paths, relative to here or to the run, may be the same file."""
        if None in (one, other):
            return False
        ones, others = (
            {os.path.realpath(path), os.path.realpath(os.path.join(self.path, path))}
            for path in (one, other)
        )
        return not ones.isdisjoint(others)

    def write_config(
        self,
        settings: Mapping[str, Any],
        sources: Mapping[str, Provenance],
        records: str,
        learning_rates: Sequence[Mapping[str, float]] = (),
    ) -> None:
        """Writes config.json; `learning_rates` are where the schedule bends, for the curves."""
        config = {
            "flags": {
                name: {"value": value, "from": str(sources[name])}
                for name, value in settings.items()
            },
            "command": [os.path.basename(sys.executable), *sys.argv],
            "records": records,
            "learning_rates": list(learning_rates),
            "versions": versions(),
            "cores": os.cpu_count(),
        }
        _write(self._config_path, json.dumps(config, indent=2) + "\n")

    def network_file(self) -> str | None:
        """Returns the bert_config.json of the run that can be resumed, or None."""
        path = os.path.join(self.path, NETWORK_FILES[0])
        return path if self.holds_checkpoint() and os.path.exists(path) else None

    def vocab_file(self) -> str | None:
        """Returns the vocabulary that lies in the directory, or None."""
        paths = [os.path.join(self.path, name) for name in NETWORK_FILES[2:]]
        return next(filter(os.path.exists, paths), None)

    def write_network(
        self,
        network: Mapping[str, Any],
        vocab_file: str | None = None,
        task: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes the files that a reader of the checkpoints needs beside them; `task` is for
        task.json, as `bert_estimator.interchange.network_files` reads it."""
        config_file, task_file, word_piece, sentence_piece = (
            os.path.join(self.path, name) for name in NETWORK_FILES
        )
        # What lies beside a checkpoint was checked, and may have more keys of another program.
        goes_on = self.holds_checkpoint()
        if not (goes_on and os.path.exists(config_file)):
            _write(config_file, json.dumps(network, indent=2, sort_keys=True) + "\n")
        if task is not None:
            _write(task_file, json.dumps(task, indent=2) + "\n")
        kept = vocab_file and (sentence_piece if vocab_file.endswith(".model") else word_piece)
        if not goes_on:
            # An attempt that failed before its first step may have left another vocabulary.
            for left in filter(os.path.exists, {word_piece, sentence_piece} - {kept}):
                os.remove(left)
        if kept and not (goes_on and os.path.exists(kept)):
            # The file may be the run's own copy.
            with open(remote.local(vocab_file), "rb") as reader:
                vocabulary = reader.read()
            with disk_files.writer(kept, "wb") as writer:
                writer.write(vocabulary)

    def forget_metrics_after(self, step: int) -> None:
        """Drops the metrics of steps after `step`, which a resumed run writes again."""
        if not self.holds_checkpoint():
            # An earlier attempt left its metrics, but no checkpoint.
            step = -1
        records = self.metrics()
        first = next((i for i, record in enumerate(records) if record["step"] > step), len(records))
        kept = records[:first]
        # At the end of a run, an earlier step, such as the best, may be evaluated again. The
        # resumed run repeats that.
        for record in records[first:]:
            text = {key: json.dumps(value) for key, value in record.items()}
            evaluations = [r for r in kept if {"step", "eval_loss"} <= r.keys() & record.keys()]
            if record["step"] <= step and not any(_agree(r, text) for r in evaluations):
                kept.append(record)
        _write(self.metrics_path, "".join(json.dumps(r) + "\n" for r in kept))

    def add_metrics(self, record: Mapping[str, float]) -> None:
        """Appends a line to metrics.jsonl: a dict with at least `step`."""
        with disk_files.naming(self.metrics_path), open(self.metrics_path, "ab+") as writer:
            if writer.tell():
                writer.seek(-1, os.SEEK_END)
                if writer.read() != b"\n":  # a line cut short by a kill
                    writer.write(b"\n")
            writer.write(json.dumps(record).encode() + b"\n")
        self.report(record)

    def add_evaluation(self, results: Mapping[str, Any]) -> None:
        """Appends what `TPUEstimator.evaluate` returned, under `eval_` names, if it is new."""
        record = evaluation_record(results)
        text = {key: json.dumps(value) for key, value in record.items()}  # NaN equals its text
        # A process that was then killed, or an earlier run of the command, may have evaluated the
        # same checkpoint. The record is new if a later one of its step has other values.
        for before in reversed([r for r in self.metrics() if "eval_loss" in r]):
            if before["step"] != record["step"]:
                continue
            if before.keys() == record.keys() and _agree(before, text):
                return
            if not _agree(before, text):
                break
        self.add_metrics(record)

    def evaluations(self) -> list[dict[str, float]]:
        """Returns the records of evaluations, sorted by step; of each step, the latest record."""
        latest = {r["step"]: r for r in self.metrics() if "eval_loss" in r}
        return [latest[step] for step in sorted(latest)]

    def metrics(self) -> list[dict[str, float]]:
        """Returns the records of metrics.jsonl."""
        if not os.path.exists(self.metrics_path):
            return []
        records = []
        with open(self.metrics_path, "rb") as reader:
            for number, line in enumerate(reader, 1):
                # A kill cuts a line short.
                if line.endswith(b"}\n"):
                    records.append(_metrics_of(line, f"{self.metrics_path}:{number}"))
        return records

    def write_curves(self) -> str:
        """Draws loss, scores and learning rate into curves.svg, unless it shows them; returns its
        path, or why there is no picture."""
        path = os.path.join(self.path, "curves.svg")
        training, evaluations = [r for r in self.metrics() if "loss" in r], self.evaluations()
        corners = _recorded(self.path).get("learning_rates", [])
        # To draw takes most of a second, and whoever evaluates again gets the same picture.
        shown = hashlib.sha256(json.dumps([training, evaluations, corners]).encode()).hexdigest()
        mark = f"<!-- shows {shown} -->\n"
        if _ends_with(path, mark):
            return path
        try:
            picture = charts.of_run(training, evaluations, corners) + mark
        except Exception as error:
            # All else of the run is done, and a damaged installation has errors of every kind.
            return f"not drawn, as matplotlib failed ({type(error).__name__}: {error})"
        _write(path, picture)
        return path


def _names(directory):
    """Returns the names in a directory; none if there is no such directory."""
    return os.listdir(directory) if os.path.isdir(directory) else []


def _is_index(name):
    """Returns whether a file is the index of a checkpoint."""
    return re.fullmatch(r"model\.ckpt-\d+\.index", name)


def evaluation_record(results: Mapping[str, Any]) -> dict[str, float]:
    """Returns what `TPUEstimator.evaluate` returned as a record: `step`, and `eval_` names."""
    values = {f"eval_{k}": float(v) for k, v in results.items() if k != "global_step"}
    return {"step": int(results["global_step"]), **values}


def _agree(record, texts):
    """Returns whether a record has the same values, as JSON, for the keys that both have."""
    return all(json.dumps(record[key]) == texts[key] for key in record.keys() & texts.keys())


def recorded_settings(path: str) -> dict[str, Any]:
    """Returns flag name -> value of the last training, by config.json; empty without the file."""
    settings = {name: flag["value"] for name, flag in _recorded(path).get("flags", {}).items()}
    return {**EARLIER, **EARLIER_DEFAULTS, **settings} if settings else {}


def delivered_best(path: str) -> str | None:
    """Returns the path prefix of the best checkpoint if predictions and exports are to use it, or
    None if they are to use the newest checkpoint."""
    best = path_of_best(path)
    settings = recorded_settings(path) if best else {}
    # If the last training did not keep it, an earlier training did, and it is out of date.
    is_kept = settings.get("keep_best_checkpoint") or settings.get("early_stopping_patience")
    return best if is_kept else None


def _recorded(path):
    config_path = os.path.join(path, _CONFIG)
    if not os.path.exists(config_path):
        return {}
    try:
        config = json_files.read(config_path)
        # What others take from the file is checked here, so a damaged file is one error.
        for name, flag in json_files.field(config, "flags", dict, config_path).items():
            what = f"{config_path}: {name}"
            json_files.check(flag, dict, what)
            json_files.field(flag, "from", str, what)
            json_files.field(flag, "value", object, what)
        what = f"{config_path}: learning_rates"
        corners = json_files.field(config, "learning_rates", list, config_path, default=[])
        for corner in json_files.items(corners, dict, what):
            json_files.field(corner, "step", int, what)
            json_files.field(corner, "learning_rate", float, what)
        return config
    except (ValueError, OSError) as error:
        raise FlagError(
            f"--output_dir={path}: its config.json cannot be read ({disk_files.in_words(error)}); "
            "choose another directory, or remove the file"
        ) from None


def _metrics_of(line, place):
    """Returns the record of a line of metrics.jsonl, a dict of name -> number."""
    try:
        record = json_files.parse(line, place)
        json_files.field(record, "step", int, place)
        for name, value in record.items():
            if type(value) not in (int, float):  # NaN too is what a metric may be
                json_files.check(value, float, f"{place}: {name}")
    except json_files.JsonError as error:
        raise FlagError(
            f"--output_dir: {error}. Remove the line, or choose another directory"
        ) from None
    return record


def versions() -> dict[str, str | None]:
    """Returns the versions that the numbers of a run depend on: Python, packages, machine."""
    numbers = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("bert-estimator", "tensorflow", "numpy", "tf-slim", "sentencepiece"):
        try:
            numbers[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            numbers[package] = None
    return numbers


def _ends_with(path, text):
    """Returns whether a file ends so; what cannot be read does not."""
    try:
        with disk_files.reading(path) as reader:
            return reader.read().endswith(text.encode())
    except OSError:
        return False


def _write(path, text):
    with disk_files.writer(path) as writer:
        writer.write(text)
