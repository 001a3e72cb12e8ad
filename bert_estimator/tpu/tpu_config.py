"""TPUConfig and InputPipelineConfig: the part of a `RunConfig` that is about TPUs.

Names, arguments, defaults and meaning are as in `tf.compat.v1.estimator.tpu`. Values are checked on
construction, so that a wrong value is found before a graph is built.
"""

import numbers
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bert_estimator.cluster import cluster_task
from bert_estimator.command_line.choices import CORES_PER_REPLICA
from bert_estimator.tpu.checks import checked, positive_int


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
