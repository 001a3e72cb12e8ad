"""Estimator: trains, evaluates, predicts with and exports a model, without the TPU's rules.

`TPUEstimator` is a subclass that adds the TPU's rules.
"""

import copy
import functools
import numbers
import os
import tempfile

import tensorflow.compat.v1 as tf

from bert_estimator.cluster import hosts
from bert_estimator.tpu import base_config, call, warm_start
from bert_estimator.tpu.job import Job
from bert_estimator.tpu.spec import ModeKeys
from bert_estimator.tpu.step.session.local_step import LocalStep
from bert_estimator.tpu.step.session.session_step import SessionStep
from bert_estimator.tpu.step.xla.xla_step import XlaStep
from bert_estimator.tpu.verbs import checkpoints, evaluation, exporting, prediction, training
from bert_estimator.tpu.verbs.opened_run import opened_run


class Estimator:
    """Trains, evaluates, predicts with and exports a model described by a `model_fn`.

    As `tf.compat.v1.estimator.Estimator`: a program is an ordinary TF1 graph on this machine,
    hooks see every step, shapes may be dynamic, and the end of the data ends training quietly.

    Args:
      model_fn: function with the arguments `features`, `labels`, `mode`, `params` and `config`, or
        some of them; it must take `features`. It returns an `EstimatorSpec` or a
        `TPUEstimatorSpec`.
      model_dir: directory of checkpoints and events. None means config.model_dir, or else a
        temporary directory.
      config: a `bert_estimator.tpu.RunConfig`. None means the default one.
      params: dict (or HParams). model_fn and input_fn get deep copies of it.
      warm_start_from: path of a checkpoint or SavedModel, or a `WarmStartSettings`. It says which
        values variables start with if model_dir has no checkpoint.

    Raises:
      ValueError: for arguments that cannot work, before anything is built.
    """

    def __init__(self, model_fn, model_dir=None, config=None, params=None, warm_start_from=None):
        call.check_model_fn(model_fn, params)
        self._warm_start = warm_start.settings_of(warm_start_from)
        self._model_fn = model_fn
        self._config = with_model_dir(config, model_dir)
        self._params = copy.deepcopy(params if params is not None else {})

    @property
    def model_dir(self) -> str:
        return self._config.model_dir

    # Users' classes, and tensorflow_hub's exporter of modules, read these attributes of upstream's.
    _model_dir = model_dir

    @property
    def _session_config(self) -> tf.ConfigProto:
        return self._config.session_settings()

    @property
    def config(self) -> base_config.RunConfig:
        return copy.deepcopy(self._config)

    @property
    def params(self):
        return copy.deepcopy(self._params)

    @property
    def model_fn(self):
        """Returns the model_fn with params bound: it takes (features, labels, mode, config)."""

        def bound(features, labels, mode, config):
            return call.call_model_fn(
                self._model_fn, features, labels, mode, self.params, config, needs_params=False
            )

        return bound

    def train(self, input_fn, hooks=None, steps=None, max_steps=None, saving_listeners=None):
        """Trains from the newest complete checkpoint, or from scratch; returns self.

        Args:
          input_fn: function with the arguments `params`, `mode` and `config`, or some of them. It
            returns a Dataset, (features, labels) tensors, or features.
          hooks: list of `tf.train.SessionRunHook`s.
          steps: number of further steps.
          max_steps: global step at which training ends. If it is already reached, nothing happens.
            With neither, training ends when the data ends (with use_tpu=True, one of them must
            be given).
          saving_listeners: list of `tf.train.CheckpointSaverListener`s. Of several hosts, only the
            chief calls them.

        Raises:
          ValueError, TypeError: an argument is wrong. These are raised before anything is built;
            see `training.train` for later errors.
          lock.InUseError: another process trains in model_dir.
        """
        self._check_trains()
        self._check_call(ModeKeys.TRAIN, steps, max_steps)
        hooks = list(call.hooks(hooks, "hooks"))
        listeners = list(call.listeners(saving_listeners, "saving_listeners"))
        job = self._job(ModeKeys.TRAIN)
        # The lock is held before a graph is built: a second training in the same directory must not
        # get as far as writing.
        with hosts.held_by_chief(self.model_dir, job.is_chief):
            training.train(job, _runtime(job), input_fn, hooks, listeners, steps, max_steps)
        return self

    def evaluate(self, input_fn, steps=None, hooks=None, checkpoint_path=None, name=None):
        """Evaluates a checkpoint; returns a dict of `loss`, the metrics and `global_step`.

        Args:
          steps: number of batches. None means until the data ends (not under TPU rules).
          checkpoint_path: None means the newest complete checkpoint in model_dir.
          name: if given, events go to `model_dir/eval_<name>`, not to `model_dir/eval`.
        """
        self._check_call(ModeKeys.EVAL, steps)
        hooks = list(call.hooks(hooks, "hooks"))
        job = self._job(ModeKeys.EVAL)
        opened = functools.partial(opened_run, job, _runtime(job), input_fn)
        eval_dir = self.eval_dir(name)
        return evaluation.evaluate(job, opened, hooks, steps, checkpoint_path, eval_dir)

    def kept_evaluation(self, input_fn, steps=None, name=None):
        """Returns a `KeptEvaluation`, which evaluates one checkpoint after the other.

        It calls input_fn and model_fn once, not for each checkpoint. (Upstream does not have it.)

        Args:
          input_fn, steps, name: as for `evaluate`; input_fn must return a Dataset.
        """
        self._check_call(ModeKeys.EVAL, steps)
        job = self._job(ModeKeys.EVAL)
        return evaluation.KeptEvaluation(job, _runtime(job), input_fn, steps, self.eval_dir(name))

    def predict(
        self,
        input_fn,
        predict_keys=None,
        hooks=None,
        checkpoint_path=None,
        yield_single_examples=True,
    ):
        """Returns a generator of the model's predictions, in the order of the input.

        Args:
          input_fn: as for `train`; labels are dropped. Under TPU rules it must return a finite
            Dataset, whose batches may be smaller than the batch size.
          predict_keys: names of the predictions to yield. None means all.
          checkpoint_path: None means the newest complete checkpoint in model_dir.
          yield_single_examples: whether to yield the predictions of one example at a time, or of a
            batch.
        """
        self._check_call(ModeKeys.PREDICT)
        hooks = list(call.hooks(hooks, "hooks"))
        job = self._job(ModeKeys.PREDICT)
        return prediction.predict(
            job,
            _runtime(job),
            input_fn,
            predict_keys,
            hooks,
            checkpoint_path,
            yield_single_examples,
        )

    def export_saved_model(
        self,
        export_dir_base,
        serving_input_receiver_fn,
        assets_extra=None,
        as_text=False,
        checkpoint_path=None,
        experimental_mode=ModeKeys.PREDICT,
    ):
        """Writes a SavedModel; returns its directory as bytes.

        Args:
          export_dir_base: the SavedModel is written to a subdirectory, which is named by the time.
          serving_input_receiver_fn: function without arguments that returns a
            `serving.ServingInputReceiver`.
          assets_extra: dict of path below `assets.extra` -> file to copy there.
          as_text: whether the graph is written as text.
          checkpoint_path: None means the newest complete checkpoint in model_dir, or else what
            training would be warm-started from.
          experimental_mode: the `ModeKeys` value of the graph.

        Raises:
          ValueError: the checkpoint, the receiver function or the model's output is missing.
        """
        if serving_input_receiver_fn is None:
            raise ValueError("serving_input_receiver_fn must be given")
        return self.experimental_export_all_saved_models(
            export_dir_base,
            {experimental_mode: serving_input_receiver_fn},
            assets_extra,
            as_text,
            checkpoint_path,
        )

    def experimental_export_all_saved_models(
        self,
        export_dir_base,
        input_receiver_fn_map,
        assets_extra=None,
        as_text=False,
        checkpoint_path=None,
    ):
        """Writes one SavedModel with the graphs of several modes; see `export_saved_model`.

        Args:
          input_receiver_fn_map: dict of `ModeKeys` value -> receiver function.
        """
        jobs = {mode: self._exporting_job(mode) for mode in input_receiver_fn_map}
        if type(self).latest_checkpoint is not Estimator.latest_checkpoint:
            checkpoint_path = checkpoint_path or self.latest_checkpoint()  # as upstream
        return exporting.export(
            jobs, input_receiver_fn_map, export_dir_base, checkpoint_path, assets_extra, as_text
        )

    def export_savedmodel(
        self,
        export_dir_base,
        serving_input_receiver_fn,
        assets_extra=None,
        as_text=False,
        checkpoint_path=None,
        strip_default_attrs=False,
    ):
        """Exports a SavedModel: the old name of `export_saved_model`. Its graph always leaves out
        attributes with default values, so that older versions of TensorFlow read it."""
        return self.export_saved_model(
            export_dir_base, serving_input_receiver_fn, assets_extra, as_text, checkpoint_path
        )

    def global_step(self) -> int:
        """Returns the step that training would resume from; 0 if there is no checkpoint."""
        return checkpoints.global_step_of(checkpoints.newest_whole(self.model_dir))

    def latest_checkpoint(self) -> str | None:
        """Returns the checkpoint that a call without checkpoint_path uses: the newest, or None.

        Raises:
          NoWholeCheckpointError: there are checkpoints of later steps than 0, all damaged.
        """
        return checkpoints.newest_whole(self.model_dir, quiet=True)

    def eval_dir(self, name: str | None = None) -> str:
        """Returns the directory of the evaluation's events."""
        return os.path.join(self.model_dir, "eval" if not name else "eval_" + name)

    def get_variable_names(self) -> list[str]:
        """Returns the names of the variables in the newest checkpoint."""
        return [name for name, _ in tf.train.list_variables(self._existing_checkpoint())]

    def get_variable_value(self, name: str):
        """Returns a variable's value in the newest checkpoint, as an array."""
        return tf.train.load_variable(self._existing_checkpoint(), name)

    def _create_and_assert_global_step(self, graph):
        """Makes the global step of a graph; classes of users call this member of upstream's."""
        return tf.train.create_global_step(graph)

    def _existing_checkpoint(self):
        path = self.latest_checkpoint()
        if path is None:
            raise ValueError(f"There is no checkpoint in {self.model_dir}: train first")
        return path

    def _check_trains(self):
        """Raises ValueError if this process does not take part in a training, or TF_CONFIG's
        cluster cannot run here."""
        # This raises the error of a cluster that cannot run here.
        hosts.find()
        kind = self._config.task_type
        if kind in ("evaluator", "ps"):
            raise ValueError(
                f"Train has been called wrong configuration: the task type of this process is "
                f"{kind!r}, which does not train. Please use train_and_evaluate, which does what "
                "each task is for"
            )

    def _check_call(self, mode, steps=None, max_steps=None):
        """Checks the arguments of a verb, before anything is built."""
        if steps is not None and max_steps is not None:
            raise ValueError("give either steps or max_steps, not both")
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is None:
                continue
            if not isinstance(value, numbers.Real):
                raise TypeError(f"{name} must be a positive number, not {value!r}")
            if value <= 0:
                raise ValueError(f"{name} must be positive, not {value}")

    def _job(self, mode):
        """Returns the job of a verb, for one host; a subclass may run it on several hosts."""
        several = hosts.find().number
        if several > 1:
            raise RuntimeError(
                f"TF_CONFIG names {several} hosts, but an Estimator runs on one: each host would "
                "train its own model in the same model_dir. Unset TF_CONFIG, or use a TPUEstimator "
                "with use_tpu=True and a master (local, gpu, rehearse:N)"
            )
        return self._exporting_job(mode)

    def _exporting_job(self, mode):
        """Returns the job of a mode's graph in a SavedModel: without batch size, TPU and hosts."""
        return Job(
            mode=mode,
            model_fn=self._model_fn,
            params=self._params,
            config=self._config,
            tpu_rules=False,
            batch_size=None,
            tpu_params=False,
            warm_start=self._warm_start,
        )


def _runtime(job):
    """Returns the class that builds and runs a job's steps."""
    if job.master:
        return XlaStep
    return SessionStep if job.tpu_rules else LocalStep


def with_model_dir(config, model_dir):
    """Returns the checked config with the estimator's model_dir."""
    config = base_config.RunConfig() if config is None else config
    if not isinstance(config, base_config.RunConfig):
        raise ValueError(
            "config must be a tf.estimator.RunConfig or a bert_estimator.tpu.RunConfig, not "
            f"{type(config).__name__}"
        )
    for name in ("train_distribute", "eval_distribute", "experimental_distribute"):
        strategy = getattr(config, name)
        # With one replica, a strategy trains as no strategy does.
        if strategy is not None and getattr(strategy, "num_replicas_in_sync", None) != 1:
            raise ValueError(
                f"RunConfig.{name} only takes a strategy that has one replica. Leave it "
                "out, or use TPUEstimator(use_tpu=True) on all cores of "
                'RunConfig(master=...): "local" for TPUs, "gpu" for GPUs'
            )
    if model_dir and config.model_dir and model_dir != config.model_dir:
        raise ValueError(
            f"model_dir={model_dir!r} differs from config.model_dir={config.model_dir!r}: give one"
        )
    model_dir = model_dir or config.model_dir
    if not model_dir:
        model_dir = tempfile.mkdtemp()
        tf.logging.warning("model_dir is not given: using the temporary directory %s", model_dir)
    return config.replace(model_dir=model_dir)
