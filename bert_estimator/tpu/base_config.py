"""RunConfig: how an estimator runs, apart from what is about TPUs.

Names, arguments, defaults and meaning are as in `tf.estimator.RunConfig`. Values are checked on
construction, so that a wrong value is found before a graph is built.
"""

import copy
import functools
import inspect
import itertools
import numbers

import tensorflow.compat.v1 as tf

from bert_estimator.cluster import cluster_task
from bert_estimator.system import paths

_DEFAULT_SAVE_SECS = 600
_SAVE_INTERVALS = ("save_checkpoints_steps", "save_checkpoints_secs")
# None means that checkpoints are not saved by this interval, so it cannot mean "not given".
_UNSET = object()


# What each argument of RunConfig is checked by: functions of a value that is not None, and of the
# argument's name.
def _not_negative(value, name, bound=">= 0"):
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"RunConfig: {name} must be a number or None, not {value!r}")
    if value < 0 or (value == 0 and bound == "> 0"):
        raise ValueError(f"RunConfig: {name} should be {bound}, but is {value!r}")


_positive = functools.partial(_not_negative, bound="> 0")


def _integer(value, name, kind="integer"):
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"RunConfig: {name} must be {kind}, not {value!r}")


_delay = functools.partial(_integer, kind="an integer if set")  # in upstream's words


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

    It is `tf.estimator.RunConfig`. All attributes are read-only. When a config is made, it reads
    TF_CONFIG, from which these attributes come: `master`, `evaluation_master`, `task_type`,
    `task_id`, `is_chief`, `cluster_spec`, `num_ps_replicas`, `num_worker_replicas`,
    `global_id_in_cluster`, `service`, and the default of `model_dir`. If a subclass overrides these
    properties, its values are used. A process that is not the chief trains without writing to
    `model_dir`; of several hosts, TF_CONFIG alone says which one is the chief.

    Args:
      *args: the fields below in their order; upstream has the same order.
      **kwargs: fields by name.

    Attributes:
      model_dir, tf_random_seed: as in `tf.estimator`.
      save_checkpoints_steps, save_checkpoints_secs: how often checkpoints are saved; every 600 s
        if neither is given. If both are None, checkpoints are not saved.
      log_step_count_steps: training is logged at the first end of a loop after so many steps: a
        line, the event file, and every `LogListener`.
      train_distribute, eval_distribute, experimental_distribute: strategies of one replica.
      train_session_config: an addition to upstream: like session_config, for sessions that train.
        None means that they have the same settings as all sessions.
      log_every_secs: an addition to upstream. If it is given, lines come by time instead, within
        loops too, and say how whatever is slow goes on; events and listeners still go by steps.

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
    keep_checkpoint_max = _Field(5, _not_negative)
    keep_checkpoint_every_n_hours = _Field(10000, _positive)
    log_step_count_steps = _Field(100, _positive)
    train_distribute = _Field()
    device_fn = _Field(check=_device_function)
    protocol = _Field(check=_protocol)
    eval_distribute = _Field()
    experimental_distribute = _Field()
    experimental_max_worker_delay_secs = _Field(check=_delay)
    session_creation_timeout_secs = _Field(7200, _positive)
    checkpoint_save_graph_def = _Field(True)
    train_session_config = _Field(check=_config_proto)
    log_every_secs = _Field(check=_positive)

    def __init__(self, *args, **kwargs):
        if len(args) > len(_FIELDS):
            raise TypeError(f"RunConfig takes {len(_FIELDS)} arguments, but got {len(args)}")
        values = dict(zip(_FIELDS, args, strict=False))
        twice = sorted(set(values) & set(kwargs))
        if twice:
            raise TypeError(f"RunConfig got {twice} by position and by name")
        unknown = sorted(set(kwargs) - set(_FIELDS))
        if unknown:
            raise TypeError(f"RunConfig got unknown arguments {unknown}; known: {sorted(_FIELDS)}")
        # TF_CONFIG is read now, so that later changes of it do not change this config.
        self._task = task = cluster_task.of_tf_config()
        self._values = {name: field.default for name, field in _FIELDS.items()} | values | kwargs
        # The intervals that were not given are None, but if both were not, it is every 600 s.
        if all(self._values[name] is _UNSET for name in _SAVE_INTERVALS):
            self._values["save_checkpoints_secs"] = _DEFAULT_SAVE_SECS
        self._values.update({n: None for n in _SAVE_INTERVALS if self._values[n] is _UNSET})
        self._values["model_dir"] = _model_dir(self._values["model_dir"], task.model_dir)
        _check(self._values)
        self._cluster_spec = tf.train.ClusterSpec(task.cluster)
        self._master, self._evaluation_master = task.master, task.evaluation_master

    master = property(lambda self: self._master)
    evaluation_master = property(lambda self: self._evaluation_master)
    cluster_spec = property(lambda self: self._cluster_spec)
    is_chief = property(lambda self: self._task.is_chief)
    task_type = property(lambda self: self._task.type)
    task_id = property(lambda self: self._task.index)
    global_id_in_cluster = property(lambda self: self._task.global_id)
    num_ps_replicas = property(lambda self: self._task.num_ps_replicas)
    num_worker_replicas = property(lambda self: self._task.num_worker_replicas)
    service = property(lambda self: self._task.service)

    def cores_of(self, evaluating: bool) -> str:
        """Returns the master that names cores to train or to evaluate on; "" if it names none."""
        # The address that TF_CONFIG's cluster gives this process names a host, but not cores.
        master = self.evaluation_master if evaluating else self.master
        return "" if master == self._task.own_address else master

    def session_settings(self, training: bool = False) -> tf.ConfigProto:
        """Returns a copy of `train_session_config` for sessions that train, if it is given, or else
        of `session_config`; if that is None, upstream's defaults (soft placement, one round of
        graph rewriting)."""
        settings = self.train_session_config if training else None
        settings = self.session_config if settings is None else settings
        if settings is not None:
            return copy.deepcopy(settings)
        config = tf.ConfigProto(allow_soft_placement=True)
        options, rewriting = config.graph_options, config.graph_options.rewrite_options
        rewriting.meta_optimizer_iterations = rewriting.ONE
        # This folds no constants: TensorFlow would compute the initial value of every variable as a
        # constant, on one core, and keep it in memory as long as the session.
        options.optimizer_options.opt_level = tf.OptimizerOptions.L0
        return config

    def without_gpus(self) -> "RunConfig":
        """Returns a copy whose sessions do without this machine's GPUs: they would take all of the
        GPUs' memory, which the XLA runtime needs."""
        settings = {
            "session_config": self.session_settings(),
            "train_session_config": self.session_settings(training=True),
        }
        for config in settings.values():
            config.device_count["GPU"] = 0
        return self.replace(**settings)

    def replace(self, **kwargs) -> "RunConfig":
        """Returns a deep copy with the given fields changed; an unknown field or wrong value is a
        ValueError."""
        unknown = sorted(set(kwargs) - set(_FIELDS))
        if unknown:
            raise ValueError(
                f"RunConfig: Replacing {', '.join(unknown)} is not supported. Allowed properties "
                f"are {list(_FIELDS)}"
            )
        new = copy.deepcopy(self)
        # Giving one save interval turns the other off, as in the constructor.
        for interval, other in itertools.permutations(_SAVE_INTERVALS):
            if kwargs.get(interval) is not None and other not in kwargs:
                new._values[other] = None
        new._values.update(kwargs)
        _check(new._values)
        return new

    def _described(self):
        return dict(self._values, master=self._master)

    def __repr__(self):
        fields = sorted(self._described().items())
        return f"RunConfig({', '.join(f'{k}={v!r}' for k, v in fields)})"


_FIELDS = {name: field for name, field in vars(RunConfig).items() if isinstance(field, _Field)}


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
