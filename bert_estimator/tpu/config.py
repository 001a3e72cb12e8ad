"""RunConfig, TPUConfig and InputPipelineConfig: how an estimator runs, not what it computes.

Names, arguments, defaults and meaning are those of `tf.compat.v1.estimator.tpu`. Everything is
checked on construction, so that a wrong value is found before any graph is built.
"""

import collections
import copy
import inspect
import numbers
import re

import tensorflow.compat.v1 as tf

from bert_estimator.tpu.program import cluster_task

_DEFAULT_SAVE_SECS = 600
_UNSET = object()

_RUN_CONFIG_DEFAULTS = dict(
    model_dir=None,
    tf_random_seed=None,
    save_summary_steps=100,
    save_checkpoints_steps=_UNSET,
    save_checkpoints_secs=_UNSET,
    session_config=None,
    keep_checkpoint_max=5,
    keep_checkpoint_every_n_hours=10000,
    log_step_count_steps=100,
    train_distribute=None,
    device_fn=None,
    protocol=None,
    eval_distribute=None,
    experimental_distribute=None,
    experimental_max_worker_delay_secs=None,
    session_creation_timeout_secs=7200,
    checkpoint_save_graph_def=True,
)


class InputPipelineConfig:
    """How `input_fn` is deployed over hosts and cores (see `TPUConfig`)."""

    PER_SHARD_V1 = 1
    PER_HOST_V1 = 2
    PER_HOST_V2 = 3
    BROADCAST = 4
    SLICED = 5


_INPUT_MODES = {
    value: name for name, value in vars(InputPipelineConfig).items() if not name.startswith("_")
}


class TPUConfig(
    collections.namedtuple(
        "TPUConfig",
        [
            "iterations_per_loop",
            "num_shards",
            "num_cores_per_replica",
            "per_host_input_for_training",
            "tpu_job_name",
            "initial_infeed_sleep_secs",
            "input_partition_dims",
            "eval_training_input_configuration",
            "experimental_host_call_every_n_steps",
            "experimental_allow_per_host_v2_parallel_get_next",
            "experimental_feed_hook",
        ],
    )
):
    """The TPU part of a `RunConfig`.

    Args:
      iterations_per_loop: training steps between two visits of the hooks (int >= 1), or a time
        such as "30s", "5m", "1h" from which the number is tuned.
      num_shards: number of replicas; defaults to those found. One replica is one core, or
        `num_cores_per_replica` cores.
      num_cores_per_replica: cores one model is split over: a power of two up to 128.
      per_host_input_for_training: an `InputPipelineConfig` value; True means PER_HOST_V1, False
        PER_SHARD_V1.
      tpu_job_name: name of the TPU worker job, where it cannot be inferred.
      initial_infeed_sleep_secs: seconds the infeed waits before it draws the first batch.
      input_partition_dims: spatial partition of the inputs; needs PER_HOST_V2.
      eval_training_input_configuration: PER_HOST_V1 or SLICED.
      experimental_host_call_every_n_steps: the host call runs at global steps divisible by this.
      experimental_allow_per_host_v2_parallel_get_next: accepted for compatibility.
      experimental_feed_hook: accepted for compatibility.

    Raises:
      ValueError, TypeError: for a value outside the above; the message names the argument.
    """

    __slots__ = ()

    def __new__(
        cls,
        iterations_per_loop=2,
        num_shards=None,
        num_cores_per_replica=None,
        per_host_input_for_training=True,
        tpu_job_name=None,
        initial_infeed_sleep_secs=None,
        input_partition_dims=None,
        eval_training_input_configuration=InputPipelineConfig.PER_HOST_V1,
        experimental_host_call_every_n_steps=1,
        experimental_allow_per_host_v2_parallel_get_next=False,
        experimental_feed_hook=None,
    ):
        if isinstance(iterations_per_loop, str):
            if not re.fullmatch(r"[1-9][0-9]*[smh]", iterations_per_loop):
                raise ValueError(
                    f"TPUConfig.iterations_per_loop={iterations_per_loop!r}: a time must be a "
                    'positive number followed by s, m or h, such as "30s"'
                )
        elif not isinstance(iterations_per_loop, int) or iterations_per_loop < 1:
            raise ValueError(
                f"TPUConfig.iterations_per_loop={iterations_per_loop!r}: must be a positive "
                'integer, or a time such as "30s"'
            )
        if num_shards is not None:
            _check_positive_int(num_shards, "TPUConfig.num_shards")
        if num_cores_per_replica is not None and num_cores_per_replica not in (
            1,
            2,
            4,
            8,
            16,
            32,
            64,
            128,
        ):
            raise ValueError(
                f"TPUConfig.num_cores_per_replica={num_cores_per_replica!r}: must be a power of "
                "two from 1 to 128"
            )
        if per_host_input_for_training is True:
            per_host_input_for_training = InputPipelineConfig.PER_HOST_V1
        elif per_host_input_for_training is False:
            per_host_input_for_training = InputPipelineConfig.PER_SHARD_V1
        elif per_host_input_for_training not in _INPUT_MODES:
            raise ValueError(
                f"TPUConfig.per_host_input_for_training={per_host_input_for_training!r}: must be "
                f"True, False or one of InputPipelineConfig.{{{', '.join(_INPUT_MODES.values())}}}"
            )
        if eval_training_input_configuration not in (
            InputPipelineConfig.PER_HOST_V1,
            InputPipelineConfig.SLICED,
        ):
            raise ValueError(
                "TPUConfig.eval_training_input_configuration="
                f"{eval_training_input_configuration!r}: must be InputPipelineConfig.PER_HOST_V1 "
                "or InputPipelineConfig.SLICED"
            )
        if input_partition_dims is not None:
            if len(input_partition_dims) not in (1, 2):
                raise ValueError(
                    "TPUConfig.input_partition_dims: must have one element (features) or two "
                    f"(features and labels), not {len(input_partition_dims)}"
                )
            if per_host_input_for_training != InputPipelineConfig.PER_HOST_V2:
                raise ValueError("TPUConfig.input_partition_dims needs PER_HOST_V2 input")
            if num_cores_per_replica is None:
                raise ValueError("TPUConfig.input_partition_dims needs num_cores_per_replica")
        if initial_infeed_sleep_secs is not None:
            _check_positive_int(initial_infeed_sleep_secs, "TPUConfig.initial_infeed_sleep_secs")
        if experimental_host_call_every_n_steps is not None:
            _check_positive_int(
                experimental_host_call_every_n_steps,
                "TPUConfig.experimental_host_call_every_n_steps",
            )
        if tpu_job_name is None:
            tpu_job_name = _service().get("tpu_worker_job_name")
        return super().__new__(
            cls,
            iterations_per_loop=iterations_per_loop,
            num_shards=num_shards,
            num_cores_per_replica=num_cores_per_replica,
            per_host_input_for_training=per_host_input_for_training,
            tpu_job_name=tpu_job_name,
            initial_infeed_sleep_secs=initial_infeed_sleep_secs,
            input_partition_dims=input_partition_dims,
            eval_training_input_configuration=eval_training_input_configuration,
            experimental_host_call_every_n_steps=experimental_host_call_every_n_steps,
            experimental_allow_per_host_v2_parallel_get_next=(
                experimental_allow_per_host_v2_parallel_get_next
            ),
            experimental_feed_hook=experimental_feed_hook,
        )


class RunConfig:
    """How, where and how often: directories, seeds, checkpoints, summaries, logs.

    Args:
      tpu_config: a `TPUConfig`; the default one if None.
      evaluation_master: master for evaluation; defaults to `master`.
      master: what to run on. "" or None: this machine's session runtime.
      cluster: a cluster resolver; not together with `master`.
      **kwargs: model_dir, tf_random_seed, save_summary_steps (100), save_checkpoints_steps,
        save_checkpoints_secs (600 s if neither is given; both None turns saving off),
        session_config, keep_checkpoint_max (5), keep_checkpoint_every_n_hours (10000),
        log_step_count_steps (100), device_fn, protocol, session_creation_timeout_secs (7200),
        checkpoint_save_graph_def (True), and the distribution arguments of `tf.estimator`.

    Raises:
      ValueError: for a value outside its range; the message names the argument.
    """

    def __init__(
        self, tpu_config=None, evaluation_master=None, master=None, cluster=None, **kwargs
    ):
        unknown = sorted(set(kwargs) - set(_RUN_CONFIG_DEFAULTS))
        if unknown:
            raise TypeError(
                f"RunConfig got unknown arguments {unknown}; known: {sorted(_RUN_CONFIG_DEFAULTS)}"
            )
        fields = dict(_RUN_CONFIG_DEFAULTS, **kwargs)
        _settle_save_interval(fields)
        if master is not None and cluster is not None:
            raise ValueError("RunConfig: give either master or cluster, not both")
        _settle_model_dir(fields)
        _check_run_config(fields)
        session_config = fields["session_config"]
        if cluster is not None and session_config and session_config.HasField("cluster_def"):
            raise ValueError(
                "RunConfig: session_config has a cluster_def, and cluster gives one: leave one out"
            )
        self._fields = fields
        self._tpu_config = tpu_config or TPUConfig()
        self._cluster = cluster
        if master is None:
            master = cluster.master() if cluster is not None else ""
        self._master = master
        self._task = cluster_task.of_tf_config()
        if evaluation_master is None:
            # An evaluator of its own leaves the trainer's cores alone.
            evaluation_master = master if self._task.trains else ""
        self._evaluation_master = evaluation_master
        self._cluster_spec = (
            cluster.cluster_spec() if cluster is not None else tf.train.ClusterSpec({})
        )

    model_dir = property(lambda self: self._fields["model_dir"])
    tf_random_seed = property(lambda self: self._fields["tf_random_seed"])
    save_summary_steps = property(lambda self: self._fields["save_summary_steps"])
    save_checkpoints_steps = property(lambda self: self._fields["save_checkpoints_steps"])
    save_checkpoints_secs = property(lambda self: self._fields["save_checkpoints_secs"])
    session_config = property(lambda self: self._fields["session_config"])
    keep_checkpoint_max = property(lambda self: self._fields["keep_checkpoint_max"])
    keep_checkpoint_every_n_hours = property(
        lambda self: self._fields["keep_checkpoint_every_n_hours"]
    )
    log_step_count_steps = property(lambda self: self._fields["log_step_count_steps"])
    train_distribute = property(lambda self: self._fields["train_distribute"])
    device_fn = property(lambda self: self._fields["device_fn"])
    protocol = property(lambda self: self._fields["protocol"])
    eval_distribute = property(lambda self: self._fields["eval_distribute"])
    experimental_distribute = property(lambda self: self._fields["experimental_distribute"])
    experimental_max_worker_delay_secs = property(
        lambda self: self._fields["experimental_max_worker_delay_secs"]
    )
    session_creation_timeout_secs = property(
        lambda self: self._fields["session_creation_timeout_secs"]
    )
    checkpoint_save_graph_def = property(lambda self: self._fields["checkpoint_save_graph_def"])
    tpu_config = property(lambda self: self._tpu_config)
    master = property(lambda self: self._master)
    evaluation_master = property(lambda self: self._evaluation_master)
    cluster = property(lambda self: self._cluster)
    cluster_spec = property(lambda self: self._cluster_spec)
    task = property(lambda self: self._task)
    is_chief = property(lambda self: self._task.trains and self.global_id_in_cluster == 0)
    task_type = property(lambda self: self._task.type)
    task_id = property(lambda self: self._task.index)
    global_id_in_cluster = property(lambda self: self._task.host)
    num_ps_replicas = property(lambda self: 0)
    num_worker_replicas = property(lambda self: max(1, len(self._task.addresses)))
    service = property(lambda self: _service() or None)

    def replace(self, **kwargs):
        """Returns a deep copy with the given fields changed; `tpu_config` may be one of them."""
        changeable = set(_RUN_CONFIG_DEFAULTS) | {"tpu_config"}
        unknown = sorted(set(kwargs) - changeable)
        if unknown:
            raise ValueError(
                f"RunConfig.replace cannot change {unknown}; it can change {sorted(changeable)}"
            )
        new = copy.deepcopy(self)
        if "tpu_config" in kwargs:
            new._tpu_config = kwargs.pop("tpu_config")
        # Giving one save interval turns the other off, as in the constructor.
        for given, other in (
            ("save_checkpoints_steps", "save_checkpoints_secs"),
            ("save_checkpoints_secs", "save_checkpoints_steps"),
        ):
            if kwargs.get(given) is not None and other not in kwargs:
                new._fields[other] = None
        new._fields.update(kwargs)
        _check_run_config(new._fields)
        return new

    def __repr__(self):
        fields = dict(self._fields, tpu_config=self._tpu_config, master=self._master)
        return f"RunConfig({', '.join(f'{k}={v!r}' for k, v in sorted(fields.items()))})"


def _settle_save_interval(fields):
    """Resolves the two save intervals: 600 s when neither was given, else only what was given."""
    steps, secs = fields["save_checkpoints_steps"], fields["save_checkpoints_secs"]
    if steps is _UNSET and secs is _UNSET:
        steps, secs = None, _DEFAULT_SAVE_SECS
    fields["save_checkpoints_steps"] = None if steps is _UNSET else steps
    fields["save_checkpoints_secs"] = None if secs is _UNSET else secs


def _settle_model_dir(fields):
    """Takes the model_dir of TF_CONFIG, where there is one."""
    given = cluster_task.tf_config().get("model_dir")
    if given == "":
        raise ValueError("TF_CONFIG: model_dir must not be empty")
    if given and fields["model_dir"] and fields["model_dir"] != given:
        raise ValueError(
            f"RunConfig.model_dir={fields['model_dir']!r} differs from TF_CONFIG's {given!r}"
        )
    fields["model_dir"] = fields["model_dir"] if fields["model_dir"] is not None else given


def _check_run_config(fields):
    if fields["save_checkpoints_steps"] is not None and fields["save_checkpoints_secs"] is not None:
        raise ValueError(
            "RunConfig: give either save_checkpoints_steps or save_checkpoints_secs, not both"
        )
    if fields["model_dir"] == "":
        raise ValueError('RunConfig.model_dir="": give a directory, or None for a temporary one')
    for name in (
        "save_summary_steps",
        "save_checkpoints_steps",
        "save_checkpoints_secs",
        "keep_checkpoint_max",
    ):
        _check_number(fields[name], name)
        if fields[name] is not None and fields[name] < 0:
            raise ValueError(f"RunConfig.{name}={fields[name]!r}: must be 0 or more")
    for name in (
        "log_step_count_steps",
        "keep_checkpoint_every_n_hours",
        "session_creation_timeout_secs",
    ):
        _check_number(fields[name], name)
        if fields[name] is not None and fields[name] <= 0:
            raise ValueError(f"RunConfig.{name}={fields[name]!r}: must be positive")
    seed = fields["tf_random_seed"]
    if seed is not None and not isinstance(seed, int):
        raise ValueError(f"RunConfig.tf_random_seed={seed!r}: must be an integer")
    session_config = fields["session_config"]
    if session_config is not None and not isinstance(session_config, tf.ConfigProto):
        raise ValueError(
            f"RunConfig.session_config: must be a tf.ConfigProto, not {type(session_config)}"
        )
    if fields["protocol"] not in (None, "grpc", "grpc+verbs"):
        raise ValueError(f"RunConfig.protocol={fields['protocol']!r}: must be grpc or grpc+verbs")
    device_fn = fields["device_fn"]
    if device_fn is not None and (
        not callable(device_fn) or list(inspect.signature(device_fn).parameters) != ["op"]
    ):
        raise ValueError("RunConfig.device_fn: must be a function of one argument named op")


def _check_number(value, name):
    if value is not None and not isinstance(value, numbers.Real):
        raise TypeError(f"RunConfig.{name}={value!r}: must be a number or None")


def _check_positive_int(value, name):
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r}: must be a positive integer")
    if value < 1:
        raise ValueError(f"{name}={value!r}: must be a positive integer")


def _service():
    service = cluster_task.tf_config().get("service", {})
    if not isinstance(service, dict):
        raise TypeError(f"TF_CONFIG: service must be a dict, not {service!r}")
    return service
