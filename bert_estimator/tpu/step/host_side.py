"""The host's side of a step under TPU rules: it feeds the step, and receives what that sends."""

import collections
import functools
from collections.abc import Callable

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.tpu import errors
from bert_estimator.tpu.spec import (
    EstimatorSpec,
    ModeKeys,
    TPUEstimatorSpec,
    call_scaffold_fn,
    with_metric_pairs,
)
from bert_estimator.tpu.step import feeds, variable_versions
from bert_estimator.tpu.step.inputs import Inputs

# How many seconds a thread may take to end. A draw or a host function that takes longer is cut off
# when the session is closed.
JOIN_SECS = 1

_ON_CHIEF = ("host_call", "outside_compilation")  # host functions that have effects


def static_inputs(job, input_fn: Callable, start_step: int) -> Inputs:
    """Calls an input_fn, and checks that a compiled program can take its batches."""
    inputs = Inputs(input_fn, job.mode, job.input_params(start_step), job.config)
    job.check_data(is_dataset=inputs.initializer is not None)
    inputs.check_static_shapes()
    return inputs


def host_spec(spec: TPUEstimatorSpec, placeholders: list[tf.Tensor]) -> EstimatorSpec:
    """Returns the `EstimatorSpec` that the verbs see, for a model that runs under TPU rules; its
    scaffold must not depend on `placeholders`, which feed the step."""
    return EstimatorSpec(
        spec.mode,
        loss=spec.loss,
        train_op=spec.train_op,
        scaffold=call_scaffold_fn(spec.scaffold_fn, placeholders),
        predictions=spec.predictions,
        training_hooks=spec.training_hooks,
        evaluation_hooks=spec.evaluation_hooks,
        prediction_hooks=spec.prediction_hooks,
    )


class HostSide:
    """Draws a step's batches, and runs the host functions that receive what the step sends; these
    must not depend on `placeholders`, which feed the step."""

    def __init__(self, job, spec, placeholders, start_step):
        tpu_config = job.tpu_config
        self._job, self._placeholders = job, placeholders
        every = tpu_config.experimental_host_call_every_n_steps
        self._host_call_every = every if every and job.mode == ModeKeys.TRAIN else 1
        self._infeed_delay_secs = tpu_config.initial_infeed_sleep_secs or 0
        self.infeed, self._outfeeds = None, []
        # functions: each a `HostFunction` or the like. scalars: tensors of the step, for the log
        # line. metric_values: tensors of the host, to read after the last step.
        self.functions, self.scalars, self.metric_values = [], {}, {}
        self.predicted = collections.deque()  # that arrived
        # The last step whose values arrived, and the error of all host functions.
        self.step, self.error = start_step, errors.FirstError()
        self._add_functions(spec)

    def _add_functions(self, spec):
        mode = self._job.mode
        if spec.host_call is not None and len(spec.host_call[1]):
            self._add_host_function("host_call", spec.host_call)
            self.scalars = scalar_tensors(spec.host_call)
        if mode == ModeKeys.EVAL and spec.eval_metrics is not None:
            pair = with_metric_pairs(spec.eval_metrics)
            function = self._add_host_function("eval_metrics", pair)
            self.metric_values, function.operations = split_metrics(function.result)
            # Metrics that are read after the last step must not wait for another update.
            variable_versions.order(
                function.operations, updates_first=True, apart=[self.metric_values]
            )
        if mode == ModeKeys.PREDICT:
            predictions = feeds.Predictions(spec.predictions)
            self.predicted = predictions.waiting
            self.functions.append(predictions)

    def _add_host_function(self, name, pair):
        replicas = 1 if self._job.same_batch else self._job.num_replicas
        self.functions.append(feeds.HostFunction(name, pair, self._placeholders, replicas))
        return self.functions[-1]

    @property
    def tensors(self) -> list[list[tf.Tensor]]:
        """Returns the tensors that the step sends: a list for each host function."""
        return [function.tensors for function in self.functions]

    @property
    def operations(self) -> list:
        """Returns the operations that run for each step: a structure for each host function."""
        return [function.operations for function in self.functions]

    def start(
        self,
        session: tf.Session,
        draw: Callable,
        limit: int | None,
        start_step: int | None = None,
        depth: int = feeds.INFEED_DEPTH,
    ) -> None:
        """Starts the threads, also after `stop`: the infeed draws at most `limit` batches (None:
        all), for the steps after the global step `start_step` (None: `step`)."""
        if start_step is not None:
            self.step = start_step
        self._outfeeds = []
        self.infeed = feeds.Infeed(draw, limit, self._infeed_delay_secs, depth)
        self.infeed.start()
        for function in self.functions:
            receive = functools.partial(function.run, session)
            self._outfeeds.append(feeds.Outfeed(receive, self.error))
            self._outfeeds[-1].start()

    def next_batch(self, interrupted: Callable[[], bool]):
        """Returns the next batch, or None if `interrupted()` becomes true."""
        # An error of a host function belongs to an earlier step, so it is raised first, even while
        # this waits for data or when the data has ended.
        batch = self.infeed.get(lambda: interrupted() or bool(self.error))
        self.error.raise_if_any()
        return batch

    def send(self, values: list[list]) -> None:
        """Hands the arrays of one step to the host functions: a list of arrays for each."""
        for feed, function, sent in zip(self._outfeeds, self.functions, values, strict=True):
            every = self._host_call_every if function.name == "host_call" else 1
            if function.name in _ON_CHIEF and not self._job.hosts.is_chief:
                continue  # The chief gets the values of all cores, so only the chief writes.
            if self.step % every == 0:
                feed.put(sent)
        self.step += 1

    def reached(self, global_step: int) -> None:
        """Sets `step`, after steps that need not have raised the global step by one each."""
        # For each step in which the global step did not rise, another batch may be drawn.
        self.infeed.raise_limit(self.step - global_step)
        self.step = global_step

    def drain(self) -> None:
        """Waits until the host functions have received all values; raises their first error."""
        for feed in self._outfeeds:
            feed.drain()

    def stop(self) -> None:
        """Asks the threads to end, and waits a moment for them."""
        threads = [*self._outfeeds, self.infeed] if self.infeed is not None else []
        # All are asked before the first is waited for: one may wait for another.
        for thread in threads:
            thread.stop()
        for thread in threads:
            thread.join(JOIN_SECS)

    def ends_training(self, loss: float) -> bool:
        """Returns whether training cannot go on after a step with this loss."""
        return self._job.mode == ModeKeys.TRAIN and not np.isfinite(loss)


def split_metrics(metrics: dict | None) -> tuple[dict, list]:
    """Splits a dict of metrics into a dict of value tensors and a list of update operations."""
    metrics = metrics or {}
    return {k: value for k, (value, _) in metrics.items()}, [u for _, u in metrics.values()]


def scalar_tensors(host_call: tuple | None) -> dict[str, tf.Tensor]:
    """Returns the one-value float tensors in the dict of a host_call; the log line shows them."""
    if host_call is None or not isinstance(host_call[1], dict):
        return {}
    tensors = {key: tf.convert_to_tensor(value) for key, value in host_call[1].items()}
    return {
        key: tensor
        for key, tensor in tensors.items()
        if tensor.dtype.is_floating and tensor.shape.num_elements() == 1
    }


def scalar_values(scalars: dict[str, np.ndarray]) -> dict[str, float]:
    """Converts a dict of one-value arrays to a dict of floats."""
    return {key: float(np.reshape(value, [])) for key, value in scalars.items()}
