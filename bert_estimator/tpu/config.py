"""RunConfig, TPUConfig, InputPipelineConfig, TPUClusterResolver: how an estimator runs, and where.

Names, arguments, defaults and meaning are as in `tf.compat.v1.estimator.tpu`. Values are checked on
construction, so that a wrong value is found before a graph is built.
"""

import copy
import inspect
import itertools
import numbers
import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_estimator.cluster import cluster_task
from bert_estimator.command_line.choices import CORES_PER_REPLICA
from bert_estimator.system import paths
from bert_estimator.tpu.call import checked, positive_int


class InputPipelineConfig:
    """Says how `input_fn` is deployed over hosts and cores (see `TPUConfig`)."""

    PER_SHARD_V1 = 1
    PER_HOST_V1 = 2
    PER_HOST_V2 = 3
    BROADCAST = 4
    SLICED = 5


_INPUT_MODES = {
    value: name for name, value in vars(InputPipelineConfig).items() if not name.startswith("_")
}


@checked
class TPUConfig(NamedTuple):
    """Holds the part of a `RunConfig` that is about TPUs.

    Attributes:
      iterations_per_loop: training steps between two visits of the hooks (int >= 1), or a time
        such as "30s", "5m", "1h" from which the number is tuned.
      num_shards: number of replicas; by default as many as the cores allow. One replica is one
        core, or `num_cores_per_replica` cores.
      num_cores_per_replica: number of cores that share one model: a power of two up to 128.
      per_host_input_for_training: an `InputPipelineConfig` value; True means PER_HOST_V1, False
        PER_SHARD_V1.
      tpu_job_name: name of the TPU worker job; by default TF_CONFIG's `tpu_worker_job_name`.
      initial_infeed_sleep_secs: seconds that the infeed waits before it draws the first batch.
      input_partition_dims: spatial partition of the inputs; needs PER_HOST_V2.
      eval_training_input_configuration: PER_HOST_V1 or SLICED.
      experimental_host_call_every_n_steps: the host call runs at global steps divisible by this.
      experimental_allow_per_host_v2_parallel_get_next: accepted for compatibility.
      experimental_feed_hook: accepted for compatibility.

    Raises:
      ValueError, TypeError: a value is not allowed; the text names the argument.
    """

    iterations_per_loop: int | str = 2
    num_shards: int | None = None
    num_cores_per_replica: int | None = None
    per_host_input_for_training: bool | int = True
    tpu_job_name: str | None = None
    initial_infeed_sleep_secs: int | None = None
    input_partition_dims: Sequence | None = None
    eval_training_input_configuration: int = InputPipelineConfig.PER_HOST_V1
    experimental_host_call_every_n_steps: int = 1
    experimental_allow_per_host_v2_parallel_get_next: bool = False
    experimental_feed_hook: Callable | None = None

    def _settled(self, replaced):
        settled = {"iterations_per_loop": _loop_length(self.iterations_per_loop)}
        for name in (
            "num_shards",
            "initial_infeed_sleep_secs",
            "experimental_host_call_every_n_steps",
        ):
            if getattr(self, name) is not None:
                settled[name] = positive_int(getattr(self, name), f"TPUConfig {name}")
        if self.num_cores_per_replica not in (None, *CORES_PER_REPLICA):
            raise ValueError(
                "TPUConfig: num_cores_per_replica must be 1, 2, 4, 8, 16, 32, 64, 128; got "
                f"{self.num_cores_per_replica!r}"
            )
        settled["per_host_input_for_training"] = _input_mode(self.per_host_input_for_training)
        if self.eval_training_input_configuration not in (
            InputPipelineConfig.PER_HOST_V1,
            InputPipelineConfig.SLICED,
        ):
            raise ValueError(
                "TPUConfig: eval_training_input_configuration must be PER_HOST_V1 or SLICED; got "
                f"{self.eval_training_input_configuration!r}"
            )
        if self.input_partition_dims is not None:
            self._check_partition(settled["per_host_input_for_training"])
        if self.tpu_job_name is None:
            service = cluster_task.tf_config().get("service") or {}
            settled["tpu_job_name"] = service.get("tpu_worker_job_name")
        return settled

    def _check_partition(self, input_mode):
        dims = self.input_partition_dims
        if not isinstance(dims, list | tuple):
            raise TypeError(f"TPUConfig: input_partition_dims must be a list/tuple, not {dims!r}")
        if len(dims) not in (1, 2):
            raise ValueError(
                "TPUConfig: input_partition_dims must be a list/tuple with one or two elements: "
                f"for the features, and for the labels; it has {len(dims)}"
            )
        if input_mode != InputPipelineConfig.PER_HOST_V2:
            raise ValueError(
                "TPUConfig: input_partition_dims is only supported in PER_HOST_V2 mode, not in "
                f"{_INPUT_MODES[input_mode]}"
            )
        if self.num_cores_per_replica is None:
            raise ValueError(
                "TPUConfig: input_partition_dims requires setting num_cores_per_replica"
            )


def _loop_length(value):
    """Returns iterations_per_loop as an int, or as a time."""
    if isinstance(value, str) and re.fullmatch(r"[1-9][0-9]*[smh]?", value):
        return int(value) if value.isdecimal() else value
    is_int = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if is_int and value >= 1:
        return int(value)
    raise ValueError(
        f"Invalid TPUConfig `iterations_per_loop` value {value!r}: must be positive integer value, "
        'or a time: a positive number followed by s, m or h, such as "30s"'
    )


def _input_mode(value):
    """Returns per_host_input_for_training as an `InputPipelineConfig` value."""
    if isinstance(value, bool):
        return InputPipelineConfig.PER_HOST_V1 if value else InputPipelineConfig.PER_SHARD_V1
    if value not in list(_INPUT_MODES):
        raise ValueError(
            f"TPUConfig: per_host_input_for_training must be True, False or one of "
            f"InputPipelineConfig.{{{', '.join(_INPUT_MODES.values())}}}, not {value!r}"
        )
    return value


_DEFAULT_SAVE_SECS = 600
_SAVE_INTERVALS = ("save_checkpoints_steps", "save_checkpoints_secs")
_UNSET = object()


# What each argument of RunConfig is checked by: functions of a value that is not None, and of the
# argument's name.
def _not_negative(value, name, bound=">= 0"):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"RunConfig: {name} must be a number or None, not {value!r}")
    if value < 0 or (value == 0 and bound == "> 0"):
        raise ValueError(f"RunConfig: {name} should be {bound}, but is {value!r}")


def _positive(value, name):
    _not_negative(value, name, bound="> 0")


def _integer(value, name):
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"RunConfig: {name} must be integer, not {value!r}")


def _directory(value, name):
    if value == "":
        raise ValueError(
            f"RunConfig: {name} should be non-empty: give a directory, or None for a temporary one"
        )
    try:
        paths.check_no_pattern(value or "")
    except ValueError as error:
        raise ValueError(f"RunConfig: {name}={value!r} {error}") from None


def _config_proto(value, name):
    if not isinstance(value, tf.ConfigProto):
        raise ValueError(
            f"RunConfig: {name} must be instance of ConfigProto, not {type(value).__name__}"
        )


def _device_function(value, name):
    if not callable(value) or list(inspect.signature(value).parameters) != ["op"]:
        raise ValueError(
            f'RunConfig: {name} must be callable with exactly one argument "op"; it is {value!r}'
        )


def _protocol(value, name):
    if value not in ("grpc", "grpc+verbs"):
        raise ValueError(f"RunConfig: {name} should be grpc or grpc+verbs, not {value!r}")


def _delay(value, name):
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"RunConfig: {name} must be an integer if set, not {value!r}")


class _Field:
    """An argument of a `RunConfig`, as a read-only attribute with a default and a check."""

    def __init__(self, default=None, check=None):
        self.default = default
        self._check = check

    def __set_name__(self, owner, name):
        self._name = name

    def __get__(self, config, owner=None):
        return self if config is None else config._values[self._name]

    def __set__(self, config, value):
        raise AttributeError(
            f"RunConfig.{self._name} cannot be set: config.replace({self._name}=...) returns a copy"
        )

    def check(self, value):
        if value is not None and self._check is not None:
            self._check(value, self._name)


class RunConfig:
    """Says how a program runs: directories, seeds, checkpoints, summaries, logs.

    All attributes are read-only. When a config is made, it reads TF_CONFIG, from which these
    attributes come: `task_type`, `task_id`, `is_chief`, `cluster_spec`, `num_ps_replicas`,
    `num_worker_replicas`, `global_id_in_cluster`, `service`, and the defaults of `master`,
    `evaluation_master` and `model_dir`. If a subclass overrides these properties, its values are
    used. A process that is not the chief trains without writing to `model_dir`; of several hosts,
    TF_CONFIG alone says which one is the chief.

    Args:
      tpu_config: a `TPUConfig`. None means the default one.
      evaluation_master: master for evaluation; by default TF_CONFIG's, or else `master`. An
        evaluator in a process of its own does not use `master`, to leave the trainer's cores alone.
      master: the cores to run on. None means TF_CONFIG's master, or else this machine.
      cluster: a cluster resolver. It cannot be given together with `master`.
      **kwargs: the fields below, by name.

    Attributes:
      model_dir, tf_random_seed: as in `tf.estimator`.
      save_checkpoints_steps, save_checkpoints_secs: how often checkpoints are saved; every 600 s
        if neither is given. If both are None, checkpoints are not saved.
      train_session_config: an addition to upstream: like session_config, for sessions that train.
        None means that they have the same settings as all sessions.
      log_step_count_steps: training is logged at the first end of a loop after so many steps: a
        line, the event file, and every `LogListener`.
      log_every_secs: an addition to upstream. If it is given, lines come by time instead, within
        loops too, and say how whatever is slow goes on; events and listeners still go by steps.
      train_distribute, eval_distribute, experimental_distribute: must be None for our estimators.

    Raises:
      ValueError: a value is outside its range; the text names the argument.
      TypeError: a value has the wrong type, or an argument is unknown.
    """

    model_dir = _Field(check=_directory)
    tf_random_seed = _Field(check=_integer)
    save_summary_steps = _Field(100, _not_negative)
    save_checkpoints_steps = _Field(_UNSET, _not_negative)
    save_checkpoints_secs = _Field(_UNSET, _not_negative)
    session_config = _Field(check=_config_proto)
    train_session_config = _Field(check=_config_proto)
    keep_checkpoint_max = _Field(5, _not_negative)
    keep_checkpoint_every_n_hours = _Field(10000, _positive)
    log_step_count_steps = _Field(100, _positive)
    log_every_secs = _Field(check=_positive)
    train_distribute = _Field()
    device_fn = _Field(check=_device_function)
    protocol = _Field(check=_protocol)
    eval_distribute = _Field()
    experimental_distribute = _Field()
    experimental_max_worker_delay_secs = _Field(check=_delay)
    session_creation_timeout_secs = _Field(7200, _positive)
    checkpoint_save_graph_def = _Field(True)

    def __init__(
        self,
        tpu_config: TPUConfig | None = None,
        evaluation_master: str | None = None,
        master: str | None = None,
        cluster=None,
        **kwargs,
    ):
        unknown = sorted(set(kwargs) - set(_FIELDS))
        if unknown:
            raise TypeError(f"RunConfig got unknown arguments {unknown}; known: {sorted(_FIELDS)}")
        if master is not None and cluster is not None:
            raise ValueError("RunConfig: give either master or cluster, not both")
        self._task = task = cluster_task.of_tf_config()
        self._values = {name: field.default for name, field in _FIELDS.items()} | kwargs
        _settle_save_interval(self._values)
        self._values["model_dir"] = _model_dir(self._values["model_dir"], task.model_dir)
        _check(self._values)
        self._tpu_config = _checked_tpu_config(tpu_config or TPUConfig())
        self._cluster = cluster
        self._cluster_spec = tf.train.ClusterSpec(task.cluster)
        if cluster is not None:
            session_config = self._values["session_config"]
            if session_config and session_config.HasField("cluster_def"):
                raise ValueError(
                    "RunConfig: session_config has a cluster_def, and cluster gives one: leave one "
                    "out"
                )
            self._cluster_spec = cluster.cluster_spec()
        if master is None:
            master = task.master if cluster is None else cluster.master()
        if evaluation_master is None:
            evaluates_apart = (
                task.evaluation_master
                or self.task_type == "evaluator"
                or not self._evaluates_on_master
            )
            evaluation_master = task.evaluation_master if evaluates_apart else master
        self._master, self._evaluation_master = master, evaluation_master

    # Whether `master` is the default of `evaluation_master`. It is not in `tf.estimator.RunConfig`.
    _evaluates_on_master = True

    tpu_config = property(lambda self: self._tpu_config)
    master = property(lambda self: self._master)
    evaluation_master = property(lambda self: self._evaluation_master)
    cluster = property(lambda self: self._cluster)
    cluster_spec = property(lambda self: self._cluster_spec)
    is_chief = property(lambda self: self._task.is_chief)
    task_type = property(lambda self: self._task.type)
    task_id = property(lambda self: self._task.index)
    global_id_in_cluster = property(lambda self: self._task.global_id)
    num_ps_replicas = property(lambda self: self._task.num_ps_replicas)
    num_worker_replicas = property(lambda self: self._task.num_worker_replicas)
    service = property(lambda self: self._task.service)

    def cores_of(self, evaluating: bool) -> str:
        """Returns the master that names cores to train or to evaluate on; "" if it names none.

        The address that TF_CONFIG's cluster gives this process names a host, but not cores.
        """
        master = self.evaluation_master if evaluating else self.master
        return "" if master == self._task.own_address else master

    def session_settings(self, training: bool = False) -> tf.ConfigProto:
        """Returns the settings of a session, a copy.

        They are `train_session_config` if it trains, or else `session_config`. If that is None,
        they are upstream's defaults (soft placement, one round of graph rewriting), without folding
        constants: TensorFlow would compute the initial value of every variable as a constant, on
        one core, and keep it in memory as long as the session.
        """
        settings = self.train_session_config if training else None
        settings = self.session_config if settings is None else settings
        if settings is not None:
            return copy.deepcopy(settings)
        config = tf.ConfigProto(allow_soft_placement=True)
        options, rewriting = config.graph_options, config.graph_options.rewrite_options
        rewriting.meta_optimizer_iterations = rewriting.ONE
        options.optimizer_options.opt_level = tf.OptimizerOptions.L0
        return config

    def without_gpus(self) -> "RunConfig":
        """Hides this machine's GPUs from TensorFlow; returns a copy whose sessions do without.

        TensorFlow would take all of their memory, which the XLA runtime needs.
        """
        tf.config.set_visible_devices([], "GPU")
        settings = {
            "session_config": self.session_settings(),
            "train_session_config": self.session_settings(training=True),
        }
        for config in settings.values():
            config.device_count["GPU"] = 0
        return self.replace(**settings)

    def replace(self, **kwargs) -> "RunConfig":
        """Returns a deep copy with the given fields changed; `tpu_config` may be one of them.

        Raises:
          ValueError: there is no such field, or a value cannot work.
        """
        changeable = [*_FIELDS, "tpu_config"]
        unknown = sorted(set(kwargs) - set(changeable))
        if unknown:
            raise ValueError(
                f"RunConfig: Replacing {', '.join(unknown)} is not supported. Allowed properties "
                f"are {changeable}"
            )
        new = copy.deepcopy(self)
        if "tpu_config" in kwargs:
            new._tpu_config = _checked_tpu_config(kwargs.pop("tpu_config"))
        # Giving one save interval turns the other off, as in the constructor.
        for interval, other in itertools.permutations(_SAVE_INTERVALS):
            if kwargs.get(interval) is not None and other not in kwargs:
                new._values[other] = None
        new._values.update(kwargs)
        _check(new._values)
        return new

    def __repr__(self):
        fields = dict(self._values, tpu_config=self._tpu_config, master=self._master)
        return f"RunConfig({', '.join(f'{k}={v!r}' for k, v in sorted(fields.items()))})"


_FIELDS = {name: field for name, field in vars(RunConfig).items() if isinstance(field, _Field)}


def _settle_save_interval(values):
    """Sets the save intervals that were not given: to None, but if both were not, to 600 s."""
    if all(values[name] is _UNSET for name in _SAVE_INTERVALS):
        values["save_checkpoints_secs"] = _DEFAULT_SAVE_SECS
    values.update({name: None for name in _SAVE_INTERVALS if values[name] is _UNSET})


def _model_dir(model_dir, of_tf_config):
    """Returns the model_dir, which TF_CONFIG may name too."""
    if of_tf_config and model_dir and model_dir != of_tf_config:
        raise ValueError(
            f"`model_dir` provided in RunConfig construct, if set, must have the same value as the "
            f"model_dir in TF_CONFIG: they are {model_dir!r} and {of_tf_config!r}"
        )
    return model_dir if model_dir is not None else of_tf_config


def _check(values):
    if None not in [values[name] for name in _SAVE_INTERVALS]:
        raise ValueError(
            "RunConfig: `save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set: "
            "give either of them"
        )
    for name, field in _FIELDS.items():
        field.check(values[name])


def _checked_tpu_config(tpu_config):
    if not isinstance(tpu_config, TPUConfig):
        raise TypeError(f"RunConfig: tpu_config must be a TPUConfig, not {tpu_config!r}")
    return tpu_config


class TPUClusterResolver:
    """Names the TPU to run on, as `tf.distribute.cluster_resolver.TPUClusterResolver` does.

    TensorFlow's resolver asks Google Cloud for the addresses of a TPU's workers. Here a program
    runs on the TPU's own machine and does not need addresses. The resolver only holds the name,
    which is looked up when a TPUEstimator needs cores.

    Args:
      tpu: "local", "gpu" or "rehearse:N". None means the environment variable `TPU_NAME`. "" does
        not name a TPU, like `RunConfig(master="")`.
      zone: accepted and ignored, as all arguments after it are.

    Raises:
      ValueError: `tpu` is None and `TPU_NAME` is not set.
    """

    def __init__(
        self,
        tpu=None,
        zone=None,
        project=None,
        job_name="worker",
        coordinator_name=None,
        coordinator_address=None,
        credentials="default",
        service=None,
        discovery_url=None,
        tpu_hardware_feature=None,
    ):
        if isinstance(tpu, list | tuple):
            (tpu,) = tpu
        name = (os.environ.get("TPU_NAME") or None) if tpu is None else tf.compat.as_str(tpu)
        if name is None:
            raise ValueError(
                "TPUClusterResolver: please provide a TPU name to connect to, as the argument tpu "
                "or in the environment variable TPU_NAME"
            )
        self._name = name

    def master(self, task_type=None, task_id=None, rpc_layer=None) -> str:
        """Returns the TPU's name, or "", in the form that `RunConfig(master=...)` takes."""
        return self._name

    get_master = master

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """Returns an empty `tf.train.ClusterSpec`, since the program does not talk to workers."""
        return tf.train.ClusterSpec({})

    def get_job_name(self) -> str:
        """Returns the job of the TPU's workers."""
        return "worker"
