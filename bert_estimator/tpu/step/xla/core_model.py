"""Builds a model_fn on one core's share of the batch, and lowers its step."""

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.tpu.spec import EstimatorSpec, ModeKeys, TPUEstimatorSpec
from bert_estimator.tpu.step import inputs as input_partition
from bert_estimator.tpu.step.summaries import DeviceSummaries
from bert_estimator.tpu.step.xla.step_graph import StepGraph


class CoreModel:
    """Builds a job's model on one core's share of the batch, in a graph of its own.

    Args:
      job: the `Job`.
      inputs: the `Inputs`, whose tensors have the shapes of one host's batch.

    Attributes:
      graph: the `StepGraph`.
      spec: what the model_fn returned. Its tensors are in the step's graph.
      loss_holder: a placeholder in the session's graph for the mean loss over the cores.
      summaries: the `DeviceSummaries` of the model.
      partition: how the graph's inputs are split over the cores of a replica; see `DeviceLoop`.

    Raises:
      ValueError: a batch cannot be split among the cores; or the model is trained on several
        cores, but does not sum anything over them.
    """

    def __init__(self, job, inputs):
        self._job = job
        self.graph = StepGraph(job.num_replicas, job.cores_per_replica, job.num_update_shards)
        features, labels = inputs.replaced(
            lambda tensor: self.graph.placeholder(tensor.dtype, self._core_shape(tensor))
        )
        parts = input_partition.parts_of_inputs(job, features, labels)
        self.partition = parts if any(parts) else None
        with self.graph.building():
            spec = job.call_model_fn(features, labels)
            if job.mode == ModeKeys.TRAIN and job.num_replicas > 1:
                self._check_sums()
            checked = EstimatorSpec(spec.mode, spec.predictions, spec.loss, spec.train_op)
            self._loss, self._train_op = checked.loss, checked.train_op
            if isinstance(spec, TPUEstimatorSpec):
                spec = spec._replace(
                    host_call=_with_tensors(spec.host_call),
                    eval_metrics=_with_tensors(spec.eval_metrics),
                )
        self.spec = spec
        config = job.config
        writes = job.mode == ModeKeys.TRAIN and config.model_dir and config.save_summary_steps
        self.summaries = DeviceSummaries(self.graph.summaries() if writes else [])
        self.loss_holder = tf.placeholder_with_default(np.float32(0), [], "mean_loss")

    @property
    def update(self):
        """Returns what updates the variables, in the step's graph."""
        return self._train_op

    def session_spec(self):
        """Returns the spec for the session's graph, without tensors of the step's graph."""
        train_op = tf.no_op() if self.spec.train_op is not None else None
        replaced = {"loss": self.loss_holder, "train_op": train_op, "predictions": {}}
        if isinstance(self.spec, EstimatorSpec):
            replaced["eval_metric_ops"] = {}  # nothing in TRAIN asks for them
        return self.spec._replace(**replaced)

    def lower(self, scalars: list[tf.Tensor], sent: list[tf.Tensor]):
        """Lowers the step.

        Args:
          scalars: list of one-value tensors of the step.
          sent: list of tensors that the step sends to the host; each has a batch axis.

        Returns:
          A `LoweredStep`. Its outputs are, in this order: the loss, the scalars, the tensors that
          are sent, and the tensors that the summaries are made of.
        """
        with self.graph.building():
            # With a first axis of one, the cores' values can be put side by side.
            outputs = [tf.reshape(t, [1]) for t in (tf.cast(self._loss, tf.float32), *scalars)]
            outputs += [*sent, *(tensor[tf.newaxis] for tensor in self.summaries.tensors)]
        # The mode decides what a step does, whatever the spec carries.
        update = self._train_op if self._job.mode == ModeKeys.TRAIN else None
        return self.graph.lower(outputs, update)

    def _check_sums(self):
        """Checks that the model sums something, so that the replicas' weights stay equal."""
        if not self.graph.has_sums:
            raise ValueError(
                "CrossShardOptimizer must be used for model training on several cores: nothing in "
                f"model_fn sums over the {self._job.num_replicas} replicas, so each would train "
                "its own weights. Wrap the optimizer in "
                "bert_estimator.tpu.CrossShardOptimizer, or sum with cross_replica_sum"
            )

    def _core_shape(self, tensor):
        """Returns the shape of one core's share of a tensor that input_fn gives."""
        if tensor.dtype == tf.string:
            raise ValueError(
                f"{tensor.name}, from input_fn, holds strings, which a core cannot take: drop "
                "them in input_fn, or turn them into numbers"
            )
        shape = tensor.shape.as_list()
        if self._job.same_batch:
            return shape
        cores = self._job.replicas_a_host // self._job.draws_per_step
        if not shape or shape[0] % cores:
            raise ValueError(
                f"{tensor.name} has shape {tensor.shape}: its first dimension must be the batch, "
                f"divisible by the {cores} cores"
            )
        return [shape[0] // cores, *shape[1:]]


def _with_tensors(pair):
    """Returns a spec's (function, values) pair with arrays and variables turned into tensors."""
    if pair is None:
        return None
    function, values = pair
    if isinstance(values, dict):
        return function, {key: tf.convert_to_tensor(value) for key, value in values.items()}
    return function, [tf.convert_to_tensor(value) for value in values]
