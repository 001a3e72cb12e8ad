"""A job: everything that one call of an estimator's verb needs to know."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator.cluster.hosts import Hosts
from bert_estimator.graph import patches
from bert_estimator.tpu import base_config, call
from bert_estimator.tpu.config import InputPipelineConfig, TPUConfig
from bert_estimator.tpu.replicas import meshes, replica
from bert_estimator.tpu.spec import EstimatorSpec, ModeKeys, TPUEstimatorSpec, device_spec
from bert_estimator.tpu.warm_start import WarmStartSettings


@dataclasses.dataclass(frozen=True)
class Job:
    """Describes one call of train, evaluate, predict, lower, or an export."""

    mode: str  # a `ModeKeys` value
    model_fn: Callable
    params: Any
    config: base_config.RunConfig
    tpu_rules: bool  # whether the TPU's rules hold, on any runtime
    batch_size: int | None  # the global one, or None if the estimator has none
    num_replicas: int = 1  # which share the global batch
    master: str = ""  # names the cores; "" means the session runtime
    hosts: Hosts = dataclasses.field(default_factory=Hosts)  # the processes that run the job
    cores_per_replica: int = 1  # which share the model of a replica
    sharding: tuple = ()  # which variables these cores split; see `TPUEstimator`
    # Whether params get TPUEstimator's entries; then model_fn and input_fn must take params.
    tpu_params: bool = True
    warm_start: WarmStartSettings | None = None  # for variables without a checkpoint
    units_per_example: dict | None = None  # see `TPUEstimator`
    # How many groups of replicas share an update of the weights each; None means one for each host.
    update_groups: int | None = None

    @property
    def tpu_config(self) -> TPUConfig:
        """Returns the config's, or the default one: a plain Estimator's config does not have it."""
        return getattr(self.config, "tpu_config", None) or TPUConfig()

    @property
    def is_chief(self) -> bool:
        """Returns whether this process writes what a training writes: checkpoints and events."""
        # Of several hosts, the first is the chief. A process alone may be a worker of TF_CONFIG
        # that is not.
        alone = self.hosts.number == 1
        return self.config.is_chief if alone else self.hosts.is_chief

    @property
    def same_batch(self) -> bool:
        """Returns whether every replica gets the whole batch (BROADCAST)."""
        return self._input_mode == InputPipelineConfig.BROADCAST

    @property
    def draws_per_step(self) -> int:
        """Returns how many elements a host draws from its input for a step."""
        return self.replicas_a_host if self._input_mode == InputPipelineConfig.PER_HOST_V2 else 1

    @property
    def replicas_a_host(self) -> int:
        return self.num_replicas // self.hosts.number

    @property
    def num_update_shards(self) -> int:
        """Returns how many replicas, all of one host, share the update of the weights."""
        # Cores that share a model split the state by `sharding` instead.
        if self.mode != ModeKeys.TRAIN or self.cores_per_replica > 1:
            return 1
        return self.num_replicas // (self.update_groups or self.hosts.number)

    @property
    def replica_batch_size(self) -> int | None:
        """Returns the batch size of one replica's model, or None."""
        replicas = 1 if self.same_batch else self.num_replicas
        return self.batch_size // replicas if self.batch_size else None

    @property
    def input_batch_size(self) -> int | None:
        """Returns the batch size of `input_fn`, or None."""
        if self.same_batch or not self.batch_size:
            return self.batch_size
        # Each host calls its input_fn once, and draws a batch for all of its replicas, or for each.
        return self.batch_size // self.hosts.number // self.draws_per_step

    @property
    def _input_mode(self):
        if not self.tpu_rules:
            return None
        sliced = self.tpu_config.eval_training_input_configuration
        if self.mode != ModeKeys.TRAIN and sliced == InputPipelineConfig.SLICED:
            return sliced
        return self.tpu_config.per_host_input_for_training

    def check_data(self, is_dataset: bool) -> None:
        """Raises TypeError if the input mode does not allow what an `input_fn` returned."""
        if self.mode == ModeKeys.TRAIN and self._input_mode == InputPipelineConfig.PER_SHARD_V1:
            if is_dataset:
                raise TypeError(
                    "input_fn returned a Dataset, which per_host_input_for_training=PER_SHARD_V1 "
                    "(False) does not take: use PER_HOST_V2, or return tensors"
                )
        elif self._input_mode == InputPipelineConfig.PER_HOST_V2 and not is_dataset:
            raise TypeError(
                "input_fn must return a Dataset with per_host_input_for_training=PER_HOST_V2: use "
                "PER_HOST_V1 for tensors"
            )

    def call_model_fn(self, features, labels) -> EstimatorSpec | TPUEstimatorSpec:
        """Builds the model of one replica in the current graph; returns its spec."""
        # Each step has a graph of its own, whose variables are to get plain losses.
        patches.losses_at_once()
        context, placement = {}, contextlib.nullcontext()
        if self.tpu_rules:
            cores = replica.place_on_cores(self.cores_per_replica)
            placement = tf.get_default_graph().device(cores)
            context["context"] = call.TPUContext(
                self.num_replicas,
                self.hosts.number,
                # It marks a model_fn, in which all hosts run the same program.
                global_step=None,
                device_assignment=meshes.CoreAssignment(self.num_replicas, self.hosts.number),
            )
        with placement:
            spec = call.call_model_fn(
                self.model_fn,
                features,
                labels,
                self.mode,
                self._params(self.replica_batch_size, use_tpu=self.tpu_rules, **context),
                self.config,
                self.tpu_params,
            )
        if not isinstance(spec, EstimatorSpec | TPUEstimatorSpec):
            raise ValueError(
                "model_fn must return a TPUEstimatorSpec (or EstimatorSpec), not "
                f"{type(spec).__name__}"
            )
        return device_spec(spec) if self.tpu_rules else spec

    def input_params(self, start_step: int) -> Any:
        """Returns the params for `input_fn`, with the batch size and a `TPUContext`."""
        context = call.TPUContext(
            num_replicas=self.num_replicas,
            num_hosts=self.hosts.number,
            current_host=self.hosts.index,
            global_step=start_step,
        )
        entries = {"use_tpu": True} if self.tpu_rules else {}
        return self._params(self.input_batch_size, context=context, **entries)

    def _params(self, batch_size, **entries):
        if not self.tpu_params:
            return call.with_entries(self.params)
        if batch_size is not None:
            entries["batch_size"] = batch_size
        return call.with_entries(self.params, **entries)
