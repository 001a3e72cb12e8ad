"""Estimator: the verbs on a model described by a model_fn, by local rules.

`TPUEstimator` is one of these with the TPU's rules on top.
"""

import copy
import numbers
import os
import tempfile

import tensorflow.compat.v1 as tf

from bert_estimator.tpu import call, checks, lock, warm_start
from bert_estimator.tpu.config import RunConfig
from bert_estimator.tpu.job import Job
from bert_estimator.tpu.program import hosts
from bert_estimator.tpu.spec import ModeKeys
from bert_estimator.tpu.step.local_step import LocalStep
from bert_estimator.tpu.step.session_step import SessionStep
from bert_estimator.tpu.step.xla_step import XlaStep
from bert_estimator.tpu.verbs import checkpoints, evaluation, exporting, prediction, training

# What a subclass may define anew, as upstream allows: the rest may change with any version.
_MAY_BE_OVERRIDDEN = ("model_fn", "latest_checkpoint")


class Estimator:
    """Trains, evaluates, predicts with and exports a model described by a `model_fn`.

    As `tf.compat.v1.estimator.Estimator`: a program is an ordinary TF1 graph on this machine,
    hooks see every step, shapes may be dynamic, and the end of the data ends training quietly.

    Args:
      model_fn: function of (features, labels, mode, params, config), taken by name; `features` is
        obligatory. Returns an `EstimatorSpec` or a `TPUEstimatorSpec`.
      model_dir: where checkpoints and events go; config.model_dir, or a temporary directory, if
        None.
      config: a `bert_estimator.tpu.RunConfig`; None: all defaults.
      params: dict (or HParams), of which model_fn and input_fn get a deep copy.
      warm_start_from: path of a checkpoint or SavedModel, or a `WarmStartSettings`: what variables
        begin with where model_dir has no checkpoint.

    Raises:
      ValueError: for arguments that cannot work, before anything is built.
    """

    _is_ours = True  # each class of which that is true may override what the one above it has

    def __init__(
        self, model_fn=None, model_dir=None, config=None, params=None, warm_start_from=None
    ):
        _check_members(type(self))
        config = RunConfig() if config is None else config
        if not isinstance(config, RunConfig):
            raise ValueError(
                "config must be a bert_estimator.tpu.RunConfig, not "
                f"{type(config).__name__}: RunConfig(tpu_config=TPUConfig(...))"
            )
        for name in ("train_distribute", "eval_distribute", "experimental_distribute"):
            if getattr(config, name) is not None:
                raise ValueError(
                    f"RunConfig.{name} is not supported: the cores are TPUEstimator's own business"
                )
        call.check_model_fn(model_fn, params)
        self._warm_start = warm_start.settings_of(warm_start_from)
        self._model_fn = model_fn
        self._config = _with_model_dir(config, model_dir)
        self._params = copy.deepcopy(params if params is not None else {})

    @property
    def model_dir(self):
        return self._config.model_dir

    @property
    def config(self):
        return copy.deepcopy(self._config)

    @property
    def params(self):
        return copy.deepcopy(self._params)

    @property
    def model_fn(self):
        """The model_fn bound to this estimator's params: takes (features, labels, mode, config)."""

        def bound(features, labels, mode, config):
            return call.call_model_fn(
                self._model_fn, features, labels, mode, self.params, config, needs_params=False
            )

        return bound

    def train(self, input_fn, hooks=None, steps=None, max_steps=None, saving_listeners=None):
        """Trains; returns self.

        Args:
          input_fn: function of `params`, `mode` and `config`, or of some of them, that returns a
            Dataset, (features, labels) tensors, or features.
          hooks: `tf.train.SessionRunHook`s.
          steps: how many steps from where training starts.
          max_steps: the global step to end at: nothing happens where it is reached already. With
            neither, training ends with the data (not possible with use_tpu=True).
          saving_listeners: `tf.train.CheckpointSaverListener`s. Of several hosts, the chief calls
            its own.

        Raises:
          ValueError, TypeError: before anything is built. See `training.train` for the rest.
          lock.InUseError: another process trains in model_dir.
        """
        self._check_trains()
        self._check_call(ModeKeys.TRAIN, steps, max_steps)
        hooks = list(checks.hooks(hooks, "hooks"))
        for listener in saving_listeners or ():
            if not isinstance(listener, tf.train.CheckpointSaverListener):
                raise TypeError(
                    f"saving_listeners must be tf.train.CheckpointSaverListener, not {listener!r}"
                )
        job = self._job(ModeKeys.TRAIN)
        input_fn, listeners = self._input_fn(job, input_fn), list(saving_listeners or ())
        with lock.held_by_chief(self.model_dir):
            training.train(job, _runtime(job), input_fn, hooks, listeners, steps, max_steps)
        return self

    def evaluate(self, input_fn, steps=None, hooks=None, checkpoint_path=None, name=None):
        """Evaluates a checkpoint; returns a dict of `loss`, the metrics and `global_step`.

        Args:
          steps: number of batches; None means until the data ends (not with TPU rules).
          checkpoint_path: None means the newest whole checkpoint of model_dir.
          name: results go to `model_dir/eval_<name>` rather than `model_dir/eval`.
        """
        self._check_call(ModeKeys.EVAL, steps)
        hooks = list(checks.hooks(hooks, "hooks"))
        job = self._job(ModeKeys.EVAL)
        return evaluation.evaluate(
            job,
            _runtime(job),
            self._input_fn(job, input_fn),
            hooks,
            steps,
            checkpoint_path,
            self.eval_dir(name),
        )

    def predict(
        self,
        input_fn,
        predict_keys=None,
        hooks=None,
        checkpoint_path=None,
        yield_single_examples=True,
    ):
        """Returns a generator of what the model predicts, in the order of the input.

        Args:
          input_fn: as for `train`; labels are dropped. Under TPU rules it must return a Dataset,
            which ends, and whose last batch may be smaller.
          predict_keys: names of the predictions to yield; None: all.
          checkpoint_path: None means the newest whole checkpoint of model_dir.
          yield_single_examples: False yields a batch of predictions at a time.
        """
        self._check_call(ModeKeys.PREDICT)
        hooks = list(checks.hooks(hooks, "hooks"))
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
        """Writes a SavedModel; returns its directory, bytes.

        Args:
          export_dir_base: the SavedModel is a directory of this one, named by the time.
          serving_input_receiver_fn: function without arguments that returns a
            `serving.ServingInputReceiver`.
          assets_extra: dict of path below `assets.extra` -> file to copy there.
          as_text: whether the graph is written as text.
          checkpoint_path: None means the newest whole checkpoint of model_dir, or else what
            training would be warm-started from.
          experimental_mode: a `ModeKeys` value: which mode's graph.

        Raises:
          ValueError: there is no checkpoint, no receiver function or no output.
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
        """As `export_saved_model`, with the graphs of several modes in one SavedModel.

        Args:
          input_receiver_fn_map: dict of `ModeKeys` value -> receiver function.
        """
        return self._export(
            export_dir_base, input_receiver_fn_map, assets_extra, as_text, checkpoint_path
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
        """The old name of `export_saved_model`.

        Args:
          strip_default_attrs: whether attributes with default values are left out of the graph,
            for older TensorFlows to read it.
        """
        if serving_input_receiver_fn is None:
            raise ValueError("serving_input_receiver_fn must be given")
        receivers = {ModeKeys.PREDICT: serving_input_receiver_fn}
        return self._export(
            export_dir_base, receivers, assets_extra, as_text, checkpoint_path, strip_default_attrs
        )

    def global_step(self):
        """Returns the step training would go on from: the newest whole checkpoint's, or 0."""
        return checkpoints.global_step_of(checkpoints.newest_whole(self.model_dir))

    def latest_checkpoint(self):
        """Returns the checkpoint that a call without checkpoint_path uses: the newest, or None.

        Raises:
          NoWholeCheckpointError: there are checkpoints of later steps than 0, all damaged.
        """
        return checkpoints.newest_whole(self.model_dir, quiet=True)

    def eval_dir(self, name=None):
        """Returns the directory that evaluation's events go to."""
        return os.path.join(self.model_dir, "eval" if not name else "eval_" + name)

    def get_variable_names(self):
        """Returns the names of the variables in the newest checkpoint."""
        return [name for name, _ in tf.train.list_variables(self._existing_checkpoint())]

    def get_variable_value(self, name):
        """Returns a variable's value in the newest checkpoint, as an array."""
        return tf.train.load_variable(self._existing_checkpoint(), name)

    def _existing_checkpoint(self):
        path = self.latest_checkpoint()
        if path is None:
            raise ValueError(f"There is no checkpoint in {self.model_dir}: train first")
        return path

    def _check_trains(self):
        """Checks that this process takes part in a training.

        Raises:
          ValueError: it does not, or TF_CONFIG's cluster cannot run here.
        """
        hosts.find()
        kind = self._config.task_type
        if kind in ("evaluator", "ps"):
            raise ValueError(
                f"Train has been called wrong configuration: the task type of this process is "
                f"{kind!r}, which does not train. Please use train_and_evaluate, which does what "
                "each task is for"
            )

    def _check_call(self, mode, steps=None, max_steps=None):
        """Checks the arguments that all verbs have, before anything is built."""
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
        """Returns the job of a verb; a subclass's may be that of several hosts."""
        several = hosts.find().number
        if several > 1:
            raise RuntimeError(
                f"TF_CONFIG names {several} hosts, but an Estimator runs on one, and each of them "
                "would train a model of its own in the same model_dir: unset it, or use a "
                "TPUEstimator, with use_tpu=True and a master (local, gpu, rehearse:N)"
            )
        return self._exporting_job(mode)

    def _input_fn(self, job, input_fn):
        """The input_fn of a job, as its runtime needs it."""
        return input_fn

    def _exporting_job(self, mode):
        """The job of a mode's graph in a SavedModel, which knows no batch, no TPU and no hosts."""
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

    def _export(
        self,
        export_dir_base,
        input_receiver_fn_map,
        assets_extra,
        as_text,
        checkpoint_path,
        strip_default_attrs=True,
    ):
        jobs = {mode: self._exporting_job(mode) for mode in input_receiver_fn_map}
        return exporting.export(
            jobs,
            input_receiver_fn_map,
            export_dir_base,
            checkpoint_path,
            assets_extra,
            as_text,
            strip_default_attrs,
        )


def _runtime(job):
    """Returns the class that builds and runs a job's steps."""
    if job.master:
        return XlaStep
    return SessionStep if job.tpu_rules else LocalStep


def _with_model_dir(config, model_dir):
    """Returns the config with model_dir settled."""
    if model_dir and config.model_dir and model_dir != config.model_dir:
        raise ValueError(
            f"model_dir={model_dir!r} differs from config.model_dir={config.model_dir!r}: give one"
        )
    model_dir = model_dir or config.model_dir
    if not model_dir:
        model_dir = tempfile.mkdtemp()
        tf.logging.warning("model_dir is not given: using the temporary directory %s", model_dir)
    return config.replace(model_dir=model_dir)


def _check_members(kind):
    """Checks that none of a user's classes, up to ours, overrides a member of an estimator."""
    for each in kind.__mro__:
        if vars(each).get("_is_ours"):
            return
        if each.__name__ == "TPUEstimator":
            continue  # a script's own copy of TPUEstimator, which upstream lets override anything
        overridden = [
            name
            for name, value in vars(each).items()
            if hasattr(Estimator, name)
            and not name.startswith("__")
            and name not in _MAY_BE_OVERRIDDEN
            and value is not getattr(Estimator, name)
        ]
        if overridden:
            raise ValueError(
                "Subclasses of Estimator cannot override members of Estimator: "
                f"{each.__name__} overrides {', '.join(sorted(overridden))}. Allowed are "
                f"{', '.join(_MAY_BE_OVERRIDDEN)}. Give what differs to the constructor"
            )
