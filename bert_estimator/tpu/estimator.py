"""TPUEstimator: an Estimator that follows the TPU's rules, on TPU, GPU or CPU cores."""

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from bert_estimator.cluster import hosts
from bert_estimator.system import lock
from bert_estimator.tpu.base_estimator import Estimator
from bert_estimator.tpu.call import positive_int
from bert_estimator.tpu.config import InputPipelineConfig, RunConfig
from bert_estimator.tpu.job import Job
from bert_estimator.tpu.program import devices
from bert_estimator.tpu.serving import ExportSavedModelApiVersion
from bert_estimator.tpu.spec import ModeKeys, TPUEstimatorSpec
from bert_estimator.tpu.step.xla import step_graph
from bert_estimator.tpu.verbs import exporting, interrupts
from bert_estimator.tpu.warm_start import WarmStartSettings

_RESERVED_PARAMS = ("batch_size", "context")
_VERBS = {
    ModeKeys.TRAIN: ("train", "train_batch_size"),
    ModeKeys.EVAL: ("evaluate", "eval_batch_size"),
    ModeKeys.PREDICT: ("predict", "predict_batch_size"),
}


class TPUEstimator(Estimator):
    """Trains, evaluates, predicts with and exports a model described by a `model_fn`.

    It works as `tf.compat.v1.estimator.tpu.TPUEstimator` does. With `use_tpu=True` the TPU's rules
    hold even if there is no TPU, and this machine's CPU or GPU is used instead: shapes are static,
    `params["batch_size"]` is per core, hooks run between loops of `iterations_per_loop` steps, and
    host calls run for every step. With `use_tpu=False` it works as an `Estimator`.

    Args:
      model_fn: function with the arguments `features`, `labels`, `mode`, `params` and `config`, or
        some of them; it must take `features` and `params`. It returns a `TPUEstimatorSpec`.
      model_dir: directory of checkpoints and events. None means config.model_dir, or else a
        temporary directory.
      config: a `bert_estimator.tpu.RunConfig`.
      params: dict (or HParams). model_fn and input_fn get deep copies of it, to which `batch_size`
        and `use_tpu` are added.
      use_tpu: whether the TPU's rules hold.
      train_batch_size, eval_batch_size, predict_batch_size: global batch sizes.
      batch_axis: under TPU rules, the axis of the batch in each tensor of an input_fn: None, or
        zeros, since another axis is not supported.
      eval_on_tpu: whether evaluation runs under TPU rules too.
      export_to_tpu: accepted without effect: a SavedModel's second graph, with TensorFlow's own TPU
        operations, is not written.
      export_to_cpu: whether a SavedModel gets the graph that any TensorFlow can run.
      warm_start_from: see `Estimator`.
      embedding_config_spec: must be None, since TPU embeddings are not supported.
      export_saved_model_api_version: accepted without effect: it is about the graph for TPUs.
      units_per_example: dict such as {"tokens": 128}: further rates in the log lines.
      sharding: list of (pattern, axis). It says which variables are split over the cores of a
        replica if `TPUConfig.num_cores_per_replica` is more than 1. If several patterns are found
        in a variable's name, the first one counts whose axis can be split evenly over the cores; if
        none can, it is an error. If the axis is None, or no pattern is found, every core has a
        full copy.

    Raises:
      ValueError, TypeError: for arguments that cannot work, before anything is built.

    Example, of a weight that learns the mean of its batches:

      >>> import tensorflow.compat.v1 as tf
      >>> from bert_estimator import tpu
      >>> def model_fn(features, mode, params):
      ...     weight = tf.get_variable("weight", [], initializer=tf.zeros_initializer())
      ...     loss = tf.reduce_mean((features - weight) ** 2)
      ...     optimizer = tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.5))
      ...     train_op = optimizer.minimize(loss, tf.train.get_global_step())
      ...     return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)
      >>> def input_fn(params):
      ...     return tf.data.Dataset.from_tensors(tf.fill([params["batch_size"]], 3.0)).repeat()
      >>> config = tpu.RunConfig(model_dir="run", tpu_config=tpu.TPUConfig(iterations_per_loop=2))
      >>> estimator = tpu.TPUEstimator(
      ...     model_fn, config=config, train_batch_size=8, eval_batch_size=8
      ... )
      >>> estimator = estimator.train(input_fn, max_steps=4)
      >>> float(estimator.get_variable_value("weight"))
      3.0
      >>> float(estimator.evaluate(input_fn, steps=1)["loss"])
      0.0
    """

    def __init__(
        self,
        model_fn: Callable | None = None,
        model_dir: str | None = None,
        config: RunConfig | None = None,
        params=None,
        use_tpu: bool = True,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        batch_axis: list[int] | None = None,
        eval_on_tpu: bool = True,
        export_to_tpu: bool = True,
        export_to_cpu: bool = True,
        warm_start_from: str | WarmStartSettings | None = None,
        embedding_config_spec: None = None,
        export_saved_model_api_version: ExportSavedModelApiVersion = ExportSavedModelApiVersion.V1,
        *,
        units_per_example: dict[str, int] | None = None,
        sharding: Sequence[tuple[str, int | None]] = (),
    ):
        self._batch_sizes = {
            ModeKeys.TRAIN: train_batch_size,
            ModeKeys.EVAL: eval_batch_size,
            ModeKeys.PREDICT: predict_batch_size,
        }
        # All checks come before `super().__init__`, which may make a temporary directory.
        _check_arguments(config, params, self._batch_sizes if use_tpu else None)
        axis = batch_axis if use_tpu else None
        _check_unsupported(axis, embedding_config_spec, export_saved_model_api_version)
        splits_model = use_tpu and config.tpu_config.num_cores_per_replica is not None
        per_shard = InputPipelineConfig.PER_SHARD_V1
        if splits_model and config.tpu_config.per_host_input_for_training == per_shard:
            raise ValueError("num_cores_per_replica cannot be used with PER_SHARD_V1 input")
        super().__init__(model_fn, model_dir, config, params, warm_start_from)
        self._use_tpu = use_tpu
        self._eval_on_tpu = eval_on_tpu
        self._export_to_cpu = export_to_cpu
        self._units_per_example = units_per_example
        self._sharding = tuple(sharding)
        self._warned = set()

    @property
    def model_fn(self):
        """Returns the model_fn with params bound, as Estimator's; it returns an `EstimatorSpec`."""
        bound = super().model_fn

        def of_estimator(features, labels, mode, config):
            spec = bound(features, labels, mode, config)
            return spec.as_estimator_spec() if isinstance(spec, TPUEstimatorSpec) else spec

        return of_estimator

    def lower(self, input_fn: Callable, num_cores: int, num_hosts: int = 1):
        """Lowers the training step for a number of cores, without running anything.

        Args:
          input_fn: as for `train`; only the shapes of its batches matter.
          num_cores: number of cores. `TPUConfig.num_cores_per_replica` of them share a model; the
            replicas share the global batch.
          num_hosts: number of machines that the cores belong to.

        Returns:
          A `LoweredStep`: to compile for a TPU that is not there, see `compile_report.report`.

        Raises:
          ValueError: the estimator has use_tpu=False; or the batch cannot be split over the cores,
            or the cores over the hosts; or `TPUConfig.num_shards` is another number.
        """
        self._check_lowers("lower")
        size = self._batch_sizes[ModeKeys.TRAIN]
        replicas = num_cores // self._cores_per_replica
        if num_cores % self._cores_per_replica or size % replicas:
            raise ValueError(
                f"train_batch_size={size} must be divisible by the {num_cores} cores, "
                f"{self._cores_per_replica} a replica"
            )
        if self._config.tpu_config.num_shards not in (None, replicas):
            raise ValueError(
                f"num_shards={self._config.tpu_config.num_shards}, but the step is lowered for "
                f"{num_cores} cores, {self._cores_per_replica} a replica"
            )
        if num_hosts < 1 or num_cores % num_hosts:
            raise ValueError(f"num_hosts={num_hosts} must divide the number of cores, {num_cores}")
        # Without a master, no devices are looked for; but the job is then made for one core a
        # replica.
        job = self._job(ModeKeys.TRAIN, ("", replicas))
        job = dataclasses.replace(
            job, cores_per_replica=self._cores_per_replica, update_groups=num_hosts
        )
        return exporting.lower(job, input_fn)

    def export_training_program(self, input_fn: Callable, directory: str, num_batches: int = 4):
        """Writes the training step as a program that runs without TensorFlow.

        The program is for this estimator's cores. It has the state that `train` would start from:
        the newest checkpoint, or the initial values. Run it with
        `python -m bert_estimator.tpu.run_program DIRECTORY`.

        Args:
          input_fn: as for `train`.
          directory: where to write it; it is created if needed.
          num_batches: number of batches to write with it.

        Raises:
          ValueError: the estimator has use_tpu=False; or cores share more than a batch, see
            `exporting.check_exportable`.
          lock.InUseError: another process writes in the directory.
        """
        self._check_lowers("export_training_program")
        job = self._job(ModeKeys.TRAIN)
        exporting.check_exportable(job)  # the lock would already make the directory
        with lock.held(directory):
            exporting.export_program(job, input_fn, num_batches).save(directory)

    def _check_lowers(self, method):
        if not self._use_tpu:
            raise ValueError(
                f"{method} needs an estimator with use_tpu=True: with use_tpu=False the model_fn "
                "is built by other rules (shapes may be dynamic, and params need no batch_size), "
                "so that it is not the program that runs on cores"
            )

    @property
    def _cores_per_replica(self):
        return self._config.tpu_config.num_cores_per_replica or 1

    def _tpu_rules(self, mode):
        return self._use_tpu and (mode != ModeKeys.EVAL or self._eval_on_tpu)

    def _check_call(self, mode, steps=None, max_steps=None):
        if not self._tpu_rules(mode):
            super()._check_call(mode, steps, max_steps)
            return
        # Upstream's TPUEstimator takes only integers, and its Estimator any positive number.
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is not None:
                positive_int(value, name)
        super()._check_call(mode, steps, max_steps)
        if mode == ModeKeys.TRAIN and steps is None and max_steps is None:
            raise ValueError("train needs steps or max_steps with use_tpu=True")
        if mode == ModeKeys.EVAL and steps is None:
            raise ValueError("evaluate needs steps with use_tpu=True")
        if self._batch_sizes[mode] is None:
            verb, name = _VERBS[mode]
            raise ValueError(f"{verb} needs {name} with use_tpu=True")

    def _job(self, mode, placement=None):
        """Returns the job of a verb, on the (master, number of replicas) given or those found."""
        tpu_rules = self._tpu_rules(mode)
        master, num_replicas = placement or (self._placement(mode) if tpu_rules else ("", 1))
        several = hosts.find()
        if several.number > 1:
            self._check_several(mode, master, num_replicas, several)
        return Job(
            mode=mode,
            model_fn=self._model_fn,
            params=self._params,
            config=self._config.without_gpus() if master else self._config,
            tpu_rules=tpu_rules,
            batch_size=self._batch_sizes[mode],
            num_replicas=num_replicas,
            master=master,
            hosts=several,
            warm_start=self._warm_start,
            cores_per_replica=self._cores_per_replica if master else 1,
            sharding=self._sharding,
            units_per_example=self._units_per_example,
        )

    def _check_several(self, mode, master, num_replicas, several):
        """Checks that several hosts can run a verb together."""
        if not master:
            raise RuntimeError(
                f"TF_CONFIG names {several.number} hosts, but there are no cores that they could "
                "share: with use_tpu=True and a master (local, gpu, rehearse:N) they train one "
                "model"
            )
        if mode == ModeKeys.PREDICT:
            raise RuntimeError(
                f"TF_CONFIG names {several.number} hosts, but predict runs on one: unset it"
            )
        # The other hosts go on with the training, and would wait for this one without end.
        if mode == ModeKeys.EVAL and interrupts.in_one():
            raise RuntimeError(
                f"TF_CONFIG names {several.number} hosts, and one of them evaluates during the "
                "training, for example in a saving listener: the others cannot take part. Evaluate "
                "after train, or in an evaluator task"
            )
        if isinstance(self._config.tpu_config.iterations_per_loop, str):
            raise ValueError(
                f"TPUConfig.iterations_per_loop={self._config.tpu_config.iterations_per_loop!r}: "
                "several hosts must agree on the steps of a loop; give a number"
            )
        if num_replicas % several.number:
            raise ValueError(
                f"master={master!r}: {num_replicas} replicas of {self._cores_per_replica} core(s) "
                f"cannot be shared evenly by the {several.number} hosts of TF_CONFIG. "
                "num_cores_per_replica must divide the number of cores of each host, since all "
                "cores of a replica are on one host"
            )

    def _exporting_job(self, mode):
        if not self._export_to_cpu:
            raise ValueError(
                "export_to_cpu=False leaves nothing to export: the graph of TensorFlow's TPU "
                "operations (export_to_tpu) is not written here"
            )
        return dataclasses.replace(super()._exporting_job(mode), tpu_params=True)

    def _placement(self, mode):
        """Returns (master, number of replicas), after checking what depends on them."""
        tpu_config = self._config.tpu_config
        master = self._config.cores_of(mode != ModeKeys.TRAIN) or devices.default_master()
        # The session runtime has one core, whatever num_shards and num_cores_per_replica say.
        cores = 1
        if master:
            found = devices.find(master, self._config.session_creation_timeout_secs)
            cores = len(found)
            # Only the XLA runtime needs a TensorFlow that can lower graphs, so it is checked here.
            step_graph.check_tensorflow()
            if found[0].platform == "gpu":
                self._hide_gpus()
        per_replica = self._cores_per_replica
        shards, size = tpu_config.num_shards, self._batch_sizes[mode]
        input_mode = tpu_config.per_host_input_for_training
        if not master:
            self._warn_once(
                "No TPU was found: running on this machine's CPU or GPU (session runtime, one "
                "core). The TPU's rules still hold."
            )
            if shards is not None and shards > 1:
                self._warn_once(f"num_shards={shards}, but one core stands in for {shards}.")
            if per_replica > 1:
                self._warn_once(
                    f"num_cores_per_replica={per_replica}, but one core holds the whole model."
                )
        elif cores % per_replica:
            raise ValueError(
                f"num_cores_per_replica={per_replica} does not divide the {cores} cores of "
                f"master={master!r}"
            )
        elif shards not in (None, cores // per_replica):
            raise ValueError(
                f"num_shards={shards}, but master={master!r} has {cores} cores"
                + (f", {per_replica} a replica" if per_replica > 1 else "")
            )
        elif mode == ModeKeys.TRAIN and input_mode == InputPipelineConfig.PER_SHARD_V1:
            raise ValueError(
                f"master={master!r}: TPUConfig.per_host_input_for_training=PER_SHARD_V1 (False) is "
                "not supported on it. PER_HOST_V2 gives each core a batch of its own too"
            )
        replicas = cores // per_replica if master else 1
        # Without a TPU, num_shards still says how a batch is divided: a program that cannot run on
        # the TPU is found out here.
        divisor = shards or replicas
        if size is not None and size % divisor and input_mode != InputPipelineConfig.BROADCAST:
            what = "cores" if per_replica == 1 else "replicas"
            reason = f"num_shards={shards}" if shards else f"the {replicas} {what} of {master!r}"
            raise ValueError(f"The batch size {size} (mode {mode!r}) must be divisible by {reason}")
        return master, replicas

    def _hide_gpus(self):
        """Keeps TensorFlow's eager runtime, which lowers graphs, from taking the GPUs' memory."""
        # Sessions do without GPUs anyway. TensorFlow cannot show GPUs again that it was told to
        # hide.
        try:
            tf.config.set_visible_devices([], "GPU")
        except RuntimeError:  # The eager runtime has started.
            self._warn_once(
                "TensorFlow already uses this machine's GPUs in this process, perhaps most of "
                "their memory. If the training runs out of it, train in a new process."
            )

    def _warn_once(self, message):
        if message not in self._warned:
            self._warned.add(message)
            tf.logging.warning("%s", message)


def _check_arguments(config, params, batch_sizes):
    """Checks the configuration and params, and under TPU rules the batch sizes, a dict by mode."""
    if not isinstance(config, RunConfig):
        raise ValueError(
            "config must be a bert_estimator.tpu.RunConfig, not "
            f"{type(config).__name__}: RunConfig(tpu_config=TPUConfig(...))"
        )
    for name in _RESERVED_PARAMS:
        if params is not None and name in params:
            raise ValueError(f"params[{name!r}] is reserved: TPUEstimator sets it itself")
    if batch_sizes is None:
        return
    if batch_sizes[ModeKeys.TRAIN] is None:
        raise ValueError("train_batch_size must be given with use_tpu=True")
    for mode, (_, name) in _VERBS.items():
        if batch_sizes[mode] is not None:
            positive_int(batch_sizes[mode], name)


def _check_unsupported(batch_axis, embedding_config_spec, export_version):
    if any(batch_axis or ()):
        raise ValueError(
            f"batch_axis={list(batch_axis)} is not supported: the batch must be the first axis of "
            "every tensor that input_fn returns. Leave the argument out, and transpose in model_fn"
        )
    if embedding_config_spec is not None:
        raise ValueError(
            "embedding_config_spec is not supported: tables on the TPU's own embedding "
            "hardware are TensorFlow's TPU operations. Use tf.nn.embedding_lookup"
        )
    if export_version not in tuple(ExportSavedModelApiVersion):
        raise ValueError(
            f"export_saved_model_api_version={export_version!r}: must be an "
            "ExportSavedModelApiVersion, V1 or V2"
        )
