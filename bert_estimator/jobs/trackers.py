"""Experiment trackers: MLflow or Weights & Biases get what metrics.jsonl gets.

A run in a directory is one run of the tracker, which `tracker.json` names, and a resumed run goes
on with it. Environment variables of the tracker say where the records go, such as
MLFLOW_TRACKING_URI or WANDB_MODE=offline.
"""

import importlib
import importlib.util
import json
import logging
import os
import sys
import time
import uuid
from collections.abc import Mapping
from typing import Any

from bert_estimator.command_line import flags
from bert_estimator.system import disk_files, json_files

_FILE = "tracker.json"
_PROJECT = "bert-estimator"
_MOST_CHARACTERS = 500  # of a parameter, in every version of MLflow


class Mlflow:
    """Reports to MLflow; `identity` is the number of the run to go on with, or None."""

    def __init__(self, identity: str | None, name: str, settings: Mapping[str, Any]):
        mlflow = importlib.import_module("mlflow")
        self._entities, self._client = mlflow.entities, mlflow.MlflowClient()
        if identity is None:
            experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
            experiment = mlflow.set_experiment(experiment)
            run = self._client.create_run(experiment.experiment_id, run_name=name)
            identity = run.info.run_id
            for flag, value in settings.items():
                self._client.log_param(identity, flag, str(value)[:_MOST_CHARACTERS])
        else:
            self._client.update_run(identity, status="RUNNING")
        self.identity = identity

    def add(self, record: Mapping[str, float]) -> None:
        """Adds a record of metrics.jsonl."""
        now, step = int(time.time() * 1000), record["step"]
        values = {name: value for name, value in record.items() if name != "step"}
        metrics = [self._entities.Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self.identity, metrics=metrics)

    def close(self, error: BaseException | None) -> None:
        """Ends the run, which an error may have ended."""
        status = "FINISHED" if error is None else "FAILED"
        status = "KILLED" if isinstance(error, SystemExit | KeyboardInterrupt) else status
        self._client.set_terminated(self.identity, status)


class Wandb:
    """Reports to Weights & Biases; see `Mlflow`."""

    def __init__(self, identity: str | None, name: str, settings: Mapping[str, Any]):
        wandb = importlib.import_module("wandb")
        self.identity = identity or uuid.uuid4().hex
        is_offline = os.environ.get("WANDB_MODE") in ("offline", "dryrun")
        self._run = wandb.init(
            id=self.identity,
            name=name,
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            config=dict(settings),
            resume=None if is_offline else "allow",
            settings=wandb.Settings(console="off", silent=True),
        )
        # A resumed run repeats the records after its checkpoint, which wandb's own steps forbid.
        self._run.define_metric("*", step_metric="step")

    def add(self, record: Mapping[str, float]) -> None:
        """Adds a record of metrics.jsonl."""
        self._run.log(dict(record))

    def close(self, error: BaseException | None) -> None:
        """Ends the run, which an error may have ended."""
        self._run.finish(exit_code=int(error is not None))


_TRACKERS = {"mlflow": Mlflow, "wandb": Wandb}
TENSORBOARD = "tensorboard"  # whose event files are always written
NAMES = (TENSORBOARD, *_TRACKERS)


class Tracker:
    """Reports a run to the tracker of a name, one of NAMES."""

    def __init__(self, name: str, directory: str, settings: Mapping[str, Any]):
        self._name, self._directory, self._settings = name, directory, settings
        self._run, self._is_lost = None, False

    def begin(self) -> None:
        """Begins the run or goes on with it, if that has not been done."""
        if self._run is not None or self._name not in _TRACKERS:
            return
        path = os.path.join(self._directory, _FILE)
        identities = json_files.read(path) if os.path.exists(path) else {}
        title = os.path.basename(os.path.abspath(self._directory))
        identity = json_files.field(identities, self._name, str, path, default=None)
        try:
            self._run = _TRACKERS[self._name](identity, title, self._settings)
        except Exception as error:  # packages of others raise errors of all kinds
            raise flags.FlagError(
                f"--report_to={self._name}: {_first_line(error)}. See the tracker's environment "
                "variables, or leave the flag out"
            ) from error
        # It is written before the first record, so that a resumed run goes on with this one.
        with disk_files.writer(path) as writer:
            json.dump({**identities, self._name: self._run.identity}, writer)

    def add(self, record: Mapping[str, float]) -> None:
        """Reports a record of metrics.jsonl, if the run has begun; says once if that fails."""
        if self._run is not None and not self._is_lost:
            self._guarded(lambda: self._run.add(record))

    def close(self) -> None:
        """Ends the report; if an exception is passing through, the run has failed."""
        if self._run is not None:
            error = sys.exc_info()[1]
            self._guarded(lambda: self._run.close(error))
            self._run = None

    def _guarded(self, action):
        try:
            action()
        except Exception as error:  # packages of others raise errors of all kinds
            # A tracker that fails does not end a run: metrics.jsonl has everything.
            self._is_lost = True
            logging.getLogger("tensorflow").warning(
                "--report_to=%s: %s. The run goes on without; metrics.jsonl has all records.",
                self._name,
                _first_line(error),
            )


def check(name: str) -> None:
    """Raises FlagError if the package of a tracker is not installed."""
    package = {"mlflow": "mlflow-skinny"}.get(name, name)
    flags.check(
        name not in _TRACKERS or importlib.util.find_spec(name) is not None,
        "report_to",
        name,
        f"the package is not installed: pip install {package}",
    )


def _first_line(error):
    return (str(error).strip().splitlines() or [repr(error)])[0].rstrip(".")
