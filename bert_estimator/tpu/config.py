"""RunConfig, TPUConfig, InputPipelineConfig, TPUClusterResolver: how an estimator runs, and where.

Names, arguments, defaults and meaning are as in `tf.compat.v1.estimator.tpu`. Values are checked on
construction, so that a wrong value is found before a graph is built.
"""

import numbers
import os
import re
from collections.abc import Callable
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_estimator.cluster import cluster_task
from bert_estimator.command_line.choices import CORES_PER_REPLICA
from bert_estimator.tpu import base_config
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
      input_partition_dims: must be None, since inputs are not split over the cores of a replica.
      eval_training_input_configuration: PER_HOST_V1 or SLICED.
      experimental_host_call_every_n_steps: the host call runs at global steps divisible by this.
      experimental_allow_per_host_v2_parallel_get_next: accepted for compatibility.
      experimental_feed_hook: accepted for compatibility.

    Raises:
      ValueError, TypeError: a value is not allowed; the text names the argument.

    Example:

      >>> tpu.TPUConfig(iterations_per_loop="100").iterations_per_loop
      100
      >>> tpu.TPUConfig(num_cores_per_replica=3)
      Traceback (most recent call last):
        ...
      ValueError: TPUConfig: num_cores_per_replica must be 1, 2, 4, 8, 16, 32, 64, 128; got 3
    """

    iterations_per_loop: int | str = 2
    num_shards: int | None = None
    num_cores_per_replica: int | None = None
    per_host_input_for_training: bool | int = True
    tpu_job_name: str | None = None
    initial_infeed_sleep_secs: int | None = None
    input_partition_dims: None = None
    eval_training_input_configuration: int = InputPipelineConfig.PER_HOST_V1
    experimental_host_call_every_n_steps: int = 1
    experimental_allow_per_host_v2_parallel_get_next: bool = False
    experimental_feed_hook: Callable | None = None

    def _checked_values(self, replaced):
        changed = {"iterations_per_loop": _loop_length(self.iterations_per_loop)}
        for name in (
            "num_shards",
            "initial_infeed_sleep_secs",
            "experimental_host_call_every_n_steps",
        ):
            if getattr(self, name) is not None:
                changed[name] = positive_int(getattr(self, name), f"TPUConfig {name}")
        if self.num_cores_per_replica not in (None, *CORES_PER_REPLICA):
            raise ValueError(
                "TPUConfig: num_cores_per_replica must be 1, 2, 4, 8, 16, 32, 64, 128; got "
                f"{self.num_cores_per_replica!r}"
            )
        changed["per_host_input_for_training"] = _input_mode(self.per_host_input_for_training)
        if self.eval_training_input_configuration not in (
            InputPipelineConfig.PER_HOST_V1,
            InputPipelineConfig.SLICED,
        ):
            raise ValueError(
                "TPUConfig: eval_training_input_configuration must be PER_HOST_V1 or SLICED; got "
                f"{self.eval_training_input_configuration!r}"
            )
        if self.input_partition_dims is not None:
            raise ValueError(
                "TPUConfig: input_partition_dims is not supported: every core of a replica gets "
                "whole inputs. Leave it out; TPUEstimator(sharding=...) splits variables instead"
            )
        # As upstream, TF_CONFIG's entry counts if the argument is not given.
        if self.tpu_job_name is None:
            service = cluster_task.tf_config().get("service") or {}
            changed["tpu_job_name"] = service.get("tpu_worker_job_name")
        return changed


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


def _checked_tpu_config(tpu_config):
    if not isinstance(tpu_config, TPUConfig):
        raise TypeError(f"RunConfig: tpu_config must be a TPUConfig, not {tpu_config!r}")
    return tpu_config


class RunConfig(base_config.RunConfig):
    """Says how a TPUEstimator runs, and where: a `base_config.RunConfig` and what is about TPUs.

    Args:
      tpu_config: a `TPUConfig`. None means the default one.
      evaluation_master: master for evaluation; by default TF_CONFIG's, or else `master`. An
        evaluator in a process of its own does not use `master`, to leave the trainer's cores alone.
      master: the cores to run on. None means TF_CONFIG's master, or else this machine.
      cluster: a cluster resolver. It cannot be given together with `master`.
      **kwargs: the fields of a `base_config.RunConfig`, by name.

    Raises:
      ValueError, TypeError: as `base_config.RunConfig`; or both master and cluster are given.

    Example, of eight virtual cores of this machine's CPU:

      >>> config = tpu.RunConfig(master="rehearse:8", save_checkpoints_steps=500)
      >>> config.replace(save_checkpoints_secs=60).save_checkpoints_steps is None
      True
    """

    def __init__(
        self,
        tpu_config: TPUConfig | None = None,
        evaluation_master: str | None = None,
        master: str | None = None,
        cluster=None,
        **kwargs,
    ):
        if master is not None and cluster is not None:
            raise ValueError("RunConfig: give either master or cluster, not both")
        super().__init__(**kwargs)
        self._tpu_config = _checked_tpu_config(tpu_config or TPUConfig())
        self._cluster = cluster
        if cluster is not None:
            if self.session_config and self.session_config.HasField("cluster_def"):
                raise ValueError(
                    "RunConfig: session_config has a cluster_def, and cluster gives one: leave one "
                    "out"
                )
            self._cluster_spec = cluster.cluster_spec()
        if master is None:
            master = self._master if cluster is None else cluster.master()
        if evaluation_master is None:
            # An evaluator in a process of its own leaves the trainer's cores alone.
            evaluates_apart = self._evaluation_master or self.task_type == "evaluator"
            evaluation_master = self._evaluation_master if evaluates_apart else master
        self._master, self._evaluation_master = master, evaluation_master

    tpu_config = property(lambda self: self._tpu_config)
    cluster = property(lambda self: self._cluster)

    def replace(self, **kwargs) -> "RunConfig":
        """Returns a deep copy with the given fields changed; `tpu_config` may be one of them."""
        if "tpu_config" not in kwargs:
            return super().replace(**kwargs)
        tpu_config = _checked_tpu_config(kwargs.pop("tpu_config"))
        new = super().replace(**kwargs)
        new._tpu_config = tpu_config
        return new

    def _described(self):
        return dict(super()._described(), tpu_config=self._tpu_config)


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
        # Upstream's resolver takes a list of one name.
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
