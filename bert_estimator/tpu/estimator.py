"""TPUEstimator: validates what it is asked and delegates to training and evaluation."""

import copy
import numbers
import os
import tempfile

import tensorflow.compat.v1 as tf

from bert_estimator.tpu import (
    call,
    checkpoints,
    devices,
    evaluation,
    session_runtime,
    training,
    xla_runtime,
)
from bert_estimator.tpu.config import InputPipelineConfig, RunConfig
from bert_estimator.tpu.job import Job
from bert_estimator.tpu.spec import ModeKeys

_RESERVED_PARAMS = ("batch_size", "context")


class TPUEstimator:
    """Trains and evaluates a model described by a `model_fn`, on whatever there is to run it.

    As `tf.compat.v1.estimator.tpu.TPUEstimator`. With `use_tpu=True` the TPU's rules hold even
    where no TPU is found and this machine's CPU or GPU stands in: static shapes,
    `params["batch_size"]` per core, hooks between loops of `iterations_per_loop` steps, host
    calls for every step. With `use_tpu=False` the program is an ordinary TF1 graph: hooks see
    every step, shapes may be dynamic, and the end of the data ends training quietly.

    Args:
      model_fn: function of (features, labels, mode, params, config), taken by name; `features`
        and `params` are obligatory. Returns a `TPUEstimatorSpec`.
      model_dir: where checkpoints and events go; config.model_dir, or a temporary directory, if
        None.
      config: a `bert_estimator.tpu.RunConfig`.
      params: dict (or HParams) for model_fn and input_fn, which get a deep copy with
        `batch_size` and `use_tpu` added.
      use_tpu: whether the TPU's rules hold.
      train_batch_size, eval_batch_size, predict_batch_size: global batch sizes.
      eval_on_tpu: whether evaluation runs under TPU rules too.
      units_per_example: what else to log a rate of, as a dict such as {"tokens": 128}.

    Raises:
      ValueError, TypeError: for arguments that cannot work, before anything is built.
    """

    def __init__(
        self,
        model_fn=None,
        model_dir=None,
        config=None,
        params=None,
        use_tpu=True,
        train_batch_size=None,
        eval_batch_size=None,
        predict_batch_size=None,
        batch_axis=None,
        eval_on_tpu=True,
        *,
        units_per_example=None,
    ):
        if not isinstance(config, RunConfig):
            raise ValueError(
                "config must be a bert_estimator.tpu.RunConfig, not "
                f"{type(config).__name__}: RunConfig(tpu_config=TPUConfig(...))"
            )
        for name in _RESERVED_PARAMS:
            if params is not None and name in params:
                raise ValueError(f"params[{name!r}] is reserved: TPUEstimator sets it itself")
        if use_tpu and train_batch_size is None:
            raise ValueError("train_batch_size must be given with use_tpu=True")
        sizes = {
            "train_batch_size": train_batch_size,
            "eval_batch_size": eval_batch_size,
            "predict_batch_size": predict_batch_size,
        }
        for name, size in sizes.items():
            if size is not None and use_tpu:
                _check_positive_int(size, name)
        if batch_axis is not None:
            raise ValueError("batch_axis is not supported: batches are split along axis 0")
        tpu_config = config.tpu_config
        if use_tpu and tpu_config.num_cores_per_replica is not None and (
            tpu_config.per_host_input_for_training == InputPipelineConfig.PER_SHARD_V1
        ):
            raise ValueError("num_cores_per_replica cannot be used with PER_SHARD_V1 input")
        for name in ("train_distribute", "eval_distribute", "experimental_distribute"):
            if getattr(config, name) is not None:
                raise ValueError(
                    f"RunConfig.{name} is not supported: the cores are TPUEstimator's own business"
                )
        call.check_model_fn(model_fn, params)
        self._model_fn = model_fn
        self._config = _with_model_dir(config, model_dir)
        self._params = copy.deepcopy(params if params is not None else {})
        self._use_tpu = use_tpu
        self._eval_on_tpu = eval_on_tpu
        self._batch_sizes = {
            ModeKeys.TRAIN: train_batch_size,
            ModeKeys.EVAL: eval_batch_size,
            ModeKeys.PREDICT: predict_batch_size,
        }
        self._units_per_example = units_per_example
        self._warned = set()

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
                self._model_fn, features, labels, mode, self.params, config
            )

        return bound

    def train(self, input_fn, hooks=None, steps=None, max_steps=None, saving_listeners=None):
        """Trains; returns self.

        Args:
          input_fn: function of `params` (and `mode`, `config`) that returns a Dataset, (features,
            labels) tensors, or features.
          hooks: `tf.train.SessionRunHook`s.
          steps: how many steps from where training starts.
          max_steps: the global step to end at: nothing happens where it is reached already. With
            neither, training ends with the data (not possible with use_tpu=True).
          saving_listeners: `tf.train.CheckpointSaverListener`s.

        Raises:
          ValueError, TypeError: before anything is built. See `training.train` for the rest.
        """
        self._check_steps(ModeKeys.TRAIN, steps, max_steps)
        hooks = _checked_hooks(hooks)
        for listener in saving_listeners or ():
            if not isinstance(listener, tf.train.CheckpointSaverListener):
                raise TypeError(
                    f"saving_listeners must be tf.train.CheckpointSaverListener, not {listener!r}"
                )
        if self._use_tpu and steps is None and max_steps is None:
            raise ValueError("train needs steps or max_steps with use_tpu=True")
        job = self._job(ModeKeys.TRAIN)
        training.train(
            job, _runtime(job), input_fn, hooks, list(saving_listeners or ()), steps, max_steps
        )
        return self

    def evaluate(self, input_fn, steps=None, hooks=None, checkpoint_path=None, name=None):
        """Evaluates a checkpoint; returns a dict of `loss`, the metrics and `global_step`.

        Args:
          steps: number of batches; None means until the data ends (not with TPU rules).
          checkpoint_path: None means the newest whole checkpoint of model_dir.
          name: results go to `model_dir/eval_<name>` rather than `model_dir/eval`.
        """
        self._check_steps(ModeKeys.EVAL, steps)
        hooks = _checked_hooks(hooks)
        if self._tpu_rules(ModeKeys.EVAL) and steps is None:
            raise ValueError("evaluate needs steps with use_tpu=True")
        if self._tpu_rules(ModeKeys.EVAL) and self._batch_sizes[ModeKeys.EVAL] is None:
            raise ValueError("evaluate needs eval_batch_size with use_tpu=True")
        job = self._job(ModeKeys.EVAL)
        return evaluation.evaluate(
            job, _runtime(job), input_fn, hooks, steps, checkpoint_path, self.eval_dir(name)
        )

    def global_step(self):
        """Returns the step training would go on from: the newest whole checkpoint's, or 0."""
        return checkpoints.global_step_of(checkpoints.newest_whole(self.model_dir))

    def latest_checkpoint(self):
        """Returns the path prefix of the newest checkpoint in model_dir, or None."""
        return tf.train.latest_checkpoint(self.model_dir)

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

    def _tpu_rules(self, mode):
        return self._use_tpu and (mode != ModeKeys.EVAL or self._eval_on_tpu)

    def _check_steps(self, mode, steps, max_steps=None):
        if steps is not None and max_steps is not None:
            raise ValueError("give either steps or max_steps, not both")
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is None:
                continue
            if self._tpu_rules(mode):
                _check_positive_int(value, name)
            elif not isinstance(value, numbers.Real):
                raise TypeError(f"{name} must be a positive number, not {value!r}")
            elif value <= 0:
                raise ValueError(f"{name} must be positive, not {value}")

    def _job(self, mode):
        tpu_rules = self._tpu_rules(mode)
        master, num_replicas = self._cores(mode) if tpu_rules else ("", 1)
        return Job(
            mode=mode,
            model_fn=self._model_fn,
            params=self._params,
            config=self._config,
            tpu_rules=tpu_rules,
            batch_size=self._batch_sizes[mode],
            num_replicas=num_replicas,
            master=master,
            units_per_example=self._units_per_example,
        )

    def _cores(self, mode):
        """Returns (master, number of cores), after checking what depends on them.

        Raises:
          RuntimeError: the cores asked for by name cannot be reached.
          ValueError: the batch, or the input mode, does not fit them.
        """
        tpu_config = self._config.tpu_config
        master = self._config.master if mode == ModeKeys.TRAIN else self._config.evaluation_master
        cores = len(devices.find(master)) if master else 1
        if tpu_config.num_cores_per_replica not in (None, 1):
            raise RuntimeError(
                f"num_cores_per_replica={tpu_config.num_cores_per_replica}: splitting a model over "
                "cores is not supported"
            )
        shards, size = tpu_config.num_shards, self._batch_sizes[mode]
        if not master:
            self._warn_once(
                "No TPU was found: running on this machine's CPU or GPU (session runtime, one "
                "core). The TPU's rules hold all the same."
            )
            if shards is not None and shards > 1:
                self._warn_once(f"num_shards={shards}, but one core stands in for all of them.")
        elif shards not in (None, cores):
            raise ValueError(f"num_shards={shards}, but master={master!r} has {cores} cores")
        elif tpu_config.per_host_input_for_training != InputPipelineConfig.PER_HOST_V1:
            raise ValueError(
                f"master={master!r}: of TPUConfig.per_host_input_for_training only PER_HOST_V1 is "
                "supported on it, where input_fn gives the global batch"
            )
        divisor = shards or cores
        if size is not None and size % divisor:
            reason = f"num_shards={shards}" if shards else f"the {cores} cores of {master!r}"
            raise ValueError(
                f"The batch size {size} (mode {mode!r}) must be divisible by {reason}"
            )
        self._warn_of_save_interval(mode)
        return master, cores

    def _warn_of_save_interval(self, mode):
        tpu_config = self._config.tpu_config
        if (
            mode == ModeKeys.TRAIN
            and self._config.save_checkpoints_steps
            and isinstance(tpu_config.iterations_per_loop, int)
            and self._config.save_checkpoints_steps % tpu_config.iterations_per_loop
        ):
            self._warn_once(
                f"save_checkpoints_steps={self._config.save_checkpoints_steps} is no multiple of "
                f"iterations_per_loop={tpu_config.iterations_per_loop}: a checkpoint is "
                "written at the first loop's end that is as many steps after the last one."
            )

    def _warn_once(self, message):
        if message not in self._warned:
            self._warned.add(message)
            tf.logging.warning("%s", message)


def _runtime(job):
    """Returns the class that builds and runs a job's steps."""
    if job.master:
        return xla_runtime.XlaStep
    return session_runtime.FedStep if job.tpu_rules else session_runtime.LocalStep


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


def _checked_hooks(hooks):
    for hook in hooks or ():
        if not isinstance(hook, tf.train.SessionRunHook):
            raise TypeError(f"hooks must be tf.train.SessionRunHook objects, not {hook!r}")
    return list(hooks or ())


def _check_positive_int(value, name):
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a positive integer, not {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be a positive integer, not {value!r}")
