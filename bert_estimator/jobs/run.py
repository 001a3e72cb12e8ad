"""Trains, exports and sums up a run, whatever it is trained on."""

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator import interchange, tpu
from bert_estimator.bert_config import BertConfig
from bert_estimator.cluster import hosts
from bert_estimator.command_line import flags
from bert_estimator.command_line.run_directory import RunDirectory, delivered_best
from bert_estimator.interchange.google import tf1_checkpoint
from bert_estimator.interchange.network_variables import ANSWER, CLASSIFIER, POOLER
from bert_estimator.jobs.best_checkpoint import BestCheckpoint
from bert_estimator.jobs.job_config import JobConfig
from bert_estimator.jobs.trackers import TENSORBOARD, Tracker
from bert_estimator.model_fns import depth, init_checkpoint
from bert_estimator.model_fns.update import UpdateRule
from bert_estimator.storage import remote, staging
from bert_estimator.storage.mirror import Mirror
from bert_estimator.system import disk_files, json_files, lock, paths
from bert_estimator.tpu import checkpoints

_STEP = "global_step"
_ROLLBACKS = "rollbacks.json"
_PATTERN_FLAGS = ("input_file", "eval_input_file")
_FILE_FLAGS = (
    "bert_config_file", "vocab_file", "init_checkpoint", "train_file", "eval_file", "predict_file",
    "data_dir", *_PATTERN_FLAGS,
)  # fmt: skip


@contextlib.contextmanager
def locked(configs: Sequence[JobConfig]) -> Iterator[None]:
    """Locks the directories that configurations train in; uploads remote ones at the end."""
    # A directory that a job only reads is not locked.
    trained = [config for config in configs if config.do_train and not config.plan.compile_only]
    for config in configs:
        check_remote_files(config)
    with contextlib.ExitStack() as stack:
        if (mirror := configs[0].mirror) is not None:
            takes_over = configs[0].take_over and not configs[0].plan.compile_only
            stack.enter_context(mirror.followed(bool(trained), takes_over))
        for config in trained:
            stack.enter_context(lock.held(config.directory_to_write()))
        yield


def check_remote_files(config: JobConfig) -> None:
    """Checks that the remote files that flags name are there."""
    values = flags.values_of(config)
    for name in _FILE_FLAGS:
        value = values.get(name) or ""
        for part in value.split(",") if name in _PATTERN_FLAGS else [value]:
            with flags.named(name):
                url = paths.split_weight(part)[0] if name in _PATTERN_FLAGS else part
                if paths.is_remote(url):
                    # A checkpoint is named by its prefix, which is not a file.
                    is_there = remote.matches(url) or remote.check(f"{url}.index")
                    flags.check(is_there, name, value, f"{url} is not there")


class Uploads(tf.train.CheckpointSaverListener):
    """Uploads each checkpoint with all that belongs to it, as a saving listener."""

    def __init__(self, mirror: Mirror):
        self._mirror = mirror

    # The saver writes a checkpoint before it calls this, instead of in a thread of its own.
    def after_save(self, session: tf.Session, global_step_value: int) -> None:
        del session, global_step_value
        self._mirror.upload()


class Rollbacks:
    """Keeps the rollbacks of a run in rollbacks.json, at most `most` in total."""

    def __init__(self, output_dir: str, most: int):
        self._path, self._most = os.path.join(output_dir, _ROLLBACKS), most
        # (step, number): from the batch of this global step on, training reads the batches so many
        # places later. The numbers of several entries add up.
        self.skipped = self._read()

    def begin(self) -> None:
        """Forgets rollbacks of an earlier attempt, for a training that starts from scratch."""
        if self.skipped:
            self.skipped = []
            self._write()

    def add(self, checkpoint_step: int, failed_step: int) -> bool:
        """Notes a rollback to the checkpoint's step, if the run may have another one; returns
        whether training may go on."""
        # A failure at the checkpoint's own step would come again: there are no batches to skip.
        if len(self.skipped) >= self._most or failed_step <= checkpoint_step:
            return False
        self.skipped.append((checkpoint_step, failed_step - checkpoint_step))
        self._write()
        return True

    def _read(self):
        if not os.path.exists(self._path):
            return []
        try:
            entries = json_files.field(json_files.read(self._path), "rollbacks", list, self._path)
            return [
                tuple(json_files.field(e, name, int, self._path) for name in ("step", "skipped"))
                for e in json_files.items(entries, dict, f"{self._path}: rollbacks")
            ]
        except (ValueError, OSError) as error:
            raise flags.FlagError(
                f"--output_dir: {self._path} cannot be read ({disk_files.in_words(error)}). "
                "It says which batches the run has skipped: put back a copy, or use another "
                "directory"
            ) from None

    def _write(self):
        entries = [{"step": step, "skipped": number} for step, number in self.skipped]
        with disk_files.writer(self._path) as writer:
            json.dump({"rollbacks": entries}, writer, indent=1)


class Run:
    """Holds one run of a script, with its directory and its estimator."""

    def __init__(self, config: JobConfig, directory: RunDirectory, estimator: tpu.TPUEstimator):
        self.config = config
        self.directory = directory
        self.estimator = estimator
        self._last_step = None  # of the training, once it has begun
        self._unsaid = None  # (step, line) of its last evaluation, until it is printed
        self._evaluations = {}  # name of a set of examples -> its `KeptEvaluation`
        self._tracker = Tracker(
            # One host reports for all of them.
            config.progress.report_to if hosts.find().is_chief else TENSORBOARD,
            directory.path,
            config.settings(),
        )
        directory.report = self._tracker.add

    def describe(
        self,
        num_train_steps: int,
        records: str,
        rule: UpdateRule,
        network: BertConfig,
        vocab_file: str | None,
        task: Mapping[str, Any],
    ) -> None:
        """Writes what the run is into its directory, on which data by their digest, `records`."""
        # What decides on the best checkpoint of a complete run is how it was trained.
        if self.estimator.global_step() < num_train_steps:
            settings, sources = self.config.settings(), self.config.sources
            self.directory.write_config(settings, sources, records, rule.corners())
        self.directory.write_network(network.to_dict(), vocab_file, task)

    def check_restorable(self) -> None:
        """Checks that training starts from weights if it does not train all, and that it can go on
        from a checkpoint that another program wrote here."""
        network, trainable = self.config.network, self.config.training.trainable
        starts = network.init_checkpoint or self.directory.holds_checkpoint()
        rule = "would leave the other weights as random as they begin; give --init_checkpoint"
        flags.check(starts or trainable == depth.ALL, "trainable", trainable, rule)
        if (source := self.network_of_another_program) is not None:
            flags.check(
                _is_restorable(source),
                "output_dir",
                self.config.output_dir,
                f"holds {source.checkpoint}, which training cannot go on from: it lacks "
                "global_step, or its variables have other names or types than here; start from it "
                "with --init_checkpoint, in another --output_dir",
            )

    def train(
        self,
        make_input_fn: Callable[[Sequence[tuple[int, int]]], Callable[..., Any]],
        num_train_steps: int,
        length_flag: str,
        evaluate: Callable[[str | None], tuple[float, str]],
        evaluated: Callable[[], str],
    ) -> None:
        """Trains from the newest checkpoint or step 0 to the end, or says that it is complete.

        Args:
          make_input_fn: function of the batches to skip, as `order.BatchOrder` takes them, that
            returns the input_fn to train on.
          length_flag: the flag to raise for a longer training, for the message.
          evaluate: how `BestCheckpoint` evaluates, if training stops at checkpoints to evaluate.
          evaluated: function that returns a digest of what is then evaluated on.
        """
        best_checkpoint, config = None, self.config
        if config.evaluates_while_training():
            best_checkpoint = BestCheckpoint(
                config.output_dir, config.evaluation, num_train_steps, evaluate, evaluated()
            )
        with self.directory.going_on_from_another_program():
            if self._is_complete(num_train_steps, length_flag, best_checkpoint):
                # A kill may have come before the saver named the newest checkpoint, or had deleted
                # an old one. A training of no steps makes up for it.
                self.estimator.train(make_input_fn(()), max_steps=self.estimator.global_step())
                return
            self._tracker.begin()
            start = time.perf_counter()
            rollbacks = Rollbacks(self.directory.path, self.config.training.max_rollbacks)
            if not self.directory.holds_checkpoint():
                rollbacks.begin()
            listeners = [best_checkpoint] if best_checkpoint is not None else []
            if self.config.mirror is not None:
                listeners.append(Uploads(self.config.mirror))  # after the best checkpoint's
            # A signal may come in the step whose loss is not finite, or between two attempts.
            num_hosts = hosts.find().number
            with tpu.Interrupts("finishing the current step, then saving", num_hosts) as interrupts:
                while True:
                    try:
                        self.estimator.train(
                            make_input_fn(tuple(rollbacks.skipped)),
                            hooks=[tpu.LogListener(self.directory.add_metrics, first_step=True)],
                            max_steps=num_train_steps,
                            saving_listeners=listeners,
                        )
                        break
                    except (tpu.NanLossDuringTrainingError, tpu.NonFiniteWeightsError) as error:
                        if not self._rolls_back(rollbacks, error, interrupts):
                            raise
                    step = self.estimator.global_step()
                    self.directory.forget_metrics_after(step)
                    if best_checkpoint is not None:
                        best_checkpoint.resume(step)
                interrupts.raise_if_requested()
            if self.config.mirror is not None:
                self.config.mirror.share()
            print(f"Training took {time.perf_counter() - start:.0f} s.")

    def _is_complete(self, num_train_steps, length_flag, best_checkpoint):
        """Returns whether nothing is left to train, and says so."""
        start_step, done = self.estimator.global_step(), None
        self._last_step = num_train_steps
        ended = start_step >= num_train_steps or (best_checkpoint and best_checkpoint.exhausted)
        # A complete run keeps its best checkpoint, on whatever it is evaluated from now on.
        if best_checkpoint is not None and not (ended and best_checkpoint.has_others):
            best_checkpoint.resume(start_step)
        if start_step >= num_train_steps:
            done = length_flag
        elif best_checkpoint is not None and best_checkpoint.exhausted:
            done = "early_stopping_patience"
        if done:
            output_dir = remote.shown(self.config.output_dir)
            print(
                f"Nothing left to train: {output_dir} is at step {start_step}. Give a larger "
                f"--{done} to go on, or another --output_dir to start anew."
            )
        return done is not None

    def _rolls_back(self, rollbacks, error, interrupts):
        """Returns whether training goes on from its newest checkpoint, and says so."""
        most = self.config.training.max_rollbacks
        if most:
            # A run that a signal ended rolls back when the same command goes on with it.
            interrupts.raise_if_requested()
        # The estimator is at its newest checkpoint again: the failed steps were not saved.
        step = self.estimator.global_step()
        if not rollbacks.add(step, error.step):
            if rollbacks.skipped and len(rollbacks.skipped) >= most:
                print(
                    f"All rollbacks of this run are used up ({len(rollbacks.skipped)}); a larger "
                    "--max_rollbacks allows more.",
                    flush=True,
                )
            return False
        skipped = error.step - step
        print(
            f"{error}\nRolling back to step {step}, and skipping {skipped} "
            f"{'batch' if skipped == 1 else 'batches'} "
            f"(rollback {len(rollbacks.skipped)} of at most {most}).",
            flush=True,
        )
        return True

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int,
        checkpoint: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Does what `TPUEstimator.evaluate` does; a later call of a name, which must have the same
        input_fn and steps, uses its graph again."""
        self._tracker.begin()
        if name not in self._evaluations:
            self._evaluations[name] = self.estimator.kept_evaluation(input_fn, steps, name)
        return self._evaluations[name].evaluate(checkpoint)

    def close(self) -> None:
        """Closes the sessions of the evaluations, and the report to a tracker."""
        self._tracker.close()
        for evaluation in self._evaluations.values():
            evaluation.close()

    def log_evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Logs what an evaluation found, unless it is of the last step."""
        line = evaluation_line(step, values)
        # It is kept for `log_rest`: the results that are printed after training are often of the
        # same step, and each evaluation is said once.
        if step == self._last_step:
            self._unsaid = step, line
        else:
            tf.logging.info("%s", line)

    def log_rest(self, printed_step: int | None = None) -> None:
        """Logs the last evaluation of the training, unless it was of `printed_step`."""
        if self._unsaid is not None and self._unsaid[0] != printed_step:
            tf.logging.info("%s", self._unsaid[1])
        self._unsaid = None

    def network_read_alone(self) -> interchange.Source | None:
        """Returns the network that --init_checkpoint names, if it is the one to evaluate."""
        named = self.config.network.init_checkpoint
        # Without training, and without a checkpoint in --output_dir, it is. So a run in a directory
        # that cannot be written is evaluated, with the results in --output_dir, and so is a
        # fine-tuned network that was converted, or that is Hugging Face's.
        if self.config.do_train or not self.config.is_given("init_checkpoint"):
            return None
        if not named or self.estimator.latest_checkpoint():
            return None
        return init_checkpoint.open_source(named)

    def best(self) -> str | None:
        """Returns the path of the best checkpoint if exports are to use it, else None."""
        named = self.config.network.init_checkpoint
        # Without training, a checkpoint that the flag names comes first, then a network that is
        # read alone.
        if not self.config.do_train and self.directory.is_checkpoint(named):
            return named
        return self._checkpoint_read_alone or delivered_best(self.config.output_dir)

    @functools.cached_property
    def _checkpoint_read_alone(self):
        source = self.network_read_alone()
        if source is None and not self.config.do_train:
            source = self.network_of_another_program
        return None if source is None else checkpoint_of(source)

    @functools.cached_property
    def network_of_another_program(self) -> interchange.Source | None:
        """The network in the run's directory if another program wrote it, else None."""
        if not self.directory.is_of_another_program():
            return None
        checkpoint = self.estimator.latest_checkpoint()
        if checkpoint is None:
            return None
        with flags.named("output_dir"):
            return interchange.open_source(checkpoint)

    def export(
        self,
        estimator: tpu.TPUEstimator,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str],
    ) -> None:
        """Writes a SavedModel of the best checkpoint, or else of the newest, below `export/`."""
        path = estimator.export_saved_model(
            os.path.join(self.config.output_dir, "export"),
            serving_input_receiver_fn,
            assets_extra=assets_extra,
            checkpoint_path=self.best(),
        )
        print(f"SavedModel: {remote.shown(path.decode())}")

    def summary(self) -> str:
        """Draws the curves; returns a line that says where the run's files are."""
        self.log_rest()
        line = f"Checkpoint: {self.best() or self.estimator.latest_checkpoint()}"
        # A run that only predicts, with another run's network, does not have metrics.
        if os.path.exists(self.directory.metrics_path):
            line += (
                f"  summaries: {self.config.output_dir}  metrics: {self.directory.metrics_path}  "
                f"curves: {self.directory.write_curves()}"
            )
        return remote.shown(line)


def evaluation_line(step: int, values: Mapping[str, float]) -> str:
    """Returns an evaluation as a line; a threshold is for a flag, so its last digit counts."""
    measured = ", ".join(
        f"{name} {value}" if name.endswith("_threshold") else f"{name} {value:.4f}"
        for name, value in values.items()
    )
    return f"Evaluation at step {step}: {measured}"


def _is_restorable(source: interchange.Source) -> bool:
    """Returns whether an estimator can restore a network's checkpoint: if it has a global step, and
    the variables have the names and the type that they have here."""
    if not source.checkpoint:
        return False
    types = tf.train.load_checkpoint(source.checkpoint).get_variable_to_dtype_map()
    return _STEP in types and all(types.get(name) == tf.float32 for name in source.shapes)


def checkpoint_of(source: interchange.Source) -> str | None:
    """Returns the path of a checkpoint that an estimator can restore, if need be of a copy that
    lasts as long as the process; None if the network lacks the head of a fine-tuning, too."""
    if _is_restorable(source):
        return source.checkpoint
    # Converted and published networks lack the step, have other projects' names of the variables,
    # or are in float16, and Hugging Face's files are not a checkpoint. These are copied.
    heads = [name for name in (CLASSIFIER, f"{ANSWER}/output_weights") if name in source.shapes]
    if not heads:
        return None
    step = checkpoints.global_step_of(source.checkpoint)
    prefix = os.path.join(staging.temporary_folder(), f"model.ckpt-{step}")
    hidden_size = source.shapes[heads[0]][1]
    # Hugging Face's networks for tags and for answers lack the pooler, which these do not use: in
    # the copy it is zero.
    pooler = {
        f"{POOLER}dense/kernel": np.zeros([hidden_size, hidden_size], np.float32),
        f"{POOLER}dense/bias": np.zeros([hidden_size], np.float32),
    }
    weights = {name: np.float32(source.read(name)) for name in source.shapes}
    values = {**pooler, **weights, _STEP: np.int64(step)}
    tf1_checkpoint.save(prefix, values)
    remote.show(prefix, source.path)
    return prefix
