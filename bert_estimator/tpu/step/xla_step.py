"""The XLA runtime: the same steps as one program per core, fed and drained by the same threads.

What differs from `session_step.FedStep`: the model is built apart, for one core's share of the
batch. The infeed's thread brings each batch to the devices. A loop only starts chunks of steps
there, and a thread of their own waits for what they give. The variables stay on the devices; the
session that hooks see gets those that it needs.
"""

import math
import time

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.tpu.program import devices
from bert_estimator.tpu.program.core_mesh import CoreMesh
from bert_estimator.tpu.program.device_loop import DeviceLoop
from bert_estimator.tpu.spec import EstimatorSpec, ModeKeys, TPUEstimatorSpec
from bert_estimator.tpu.step import infeed, outfeed
from bert_estimator.tpu.step.device_session import DeviceSession
from bert_estimator.tpu.step.device_summaries import DeviceSummaries
from bert_estimator.tpu.step.session_step import JOIN_SECS, FedStep, LoopResult
from bert_estimator.tpu.step.step_graph import StepGraph

# A chunk that the devices work on, and one they can go on with at once.
_CHUNKS_WAITING = 1


class XlaStep(FedStep):
    """A step on the cores that the job's master names.

    Attributes:
      lowered: the `LoweredStep`. Its outputs are the loss, the scalars that are logged, what the
        host functions get, and what summaries take, one after the other.
    """

    def __init__(self, job, input_fn, start_step):
        super().__init__(job, input_fn, start_step)
        sent = [function.tensors for function, _ in self._functions]
        self._sent_structure = [len(tensors) for tensors in sent]
        with self._graph.building():
            # With a first axis of one, so that the cores' values can be put side by side.
            outputs = [tf.cast(self._core_loss, tf.float32), *self._scalars.values()]
            outputs = [tf.reshape(t, [1]) for t in outputs] + [t for each in sent for t in each]
            outputs += [t[tf.newaxis] for t in self._summaries.tensors]
        # The mode decides what a step does, whatever the spec carries.
        update = self._train_op if job.mode == ModeKeys.TRAIN else None
        self.lowered = self._graph.lower(outputs, update)
        self._chunks = outfeed.Outfeed(self._receive, self._host_error, _CHUNKS_WAITING)
        # What the chunks of the loop under way gave; the outfeed's thread writes it.
        self._losses, self._last_scalars, self._last = [], {}, []
        self._chunks_started, self._chunks_ended, self._idle_since = 0, 0, 0.0
        self._waited_secs = 0.0

    def _build_model(self):
        self._graph = StepGraph(self._job.num_replicas, self._job.cores_per_replica)
        features, labels = self._inputs.replaced(
            lambda tensor: self._graph.placeholder(tensor.dtype, self._core_shape(tensor))
        )
        self._placeholders = self._graph.inputs
        with self._graph.building():
            spec = self._job.call_model_fn(features, labels)
            if self._job.mode == ModeKeys.TRAIN and self._job.num_replicas > 1:
                self._check_sums()
            checked = EstimatorSpec(spec.mode, spec.predictions, spec.loss, spec.train_op)
            self._core_loss, self._train_op = checked.loss, checked.train_op
            if isinstance(spec, TPUEstimatorSpec):
                spec = spec._replace(
                    host_call=_with_tensors(spec.host_call),
                    eval_metrics=_with_tensors(spec.eval_metrics),
                )
        config = self._job.config
        writes = self._job.mode == ModeKeys.TRAIN and config.model_dir and config.save_summary_steps
        self._summaries = DeviceSummaries(self._graph.summaries() if writes else [])
        return spec

    def _host_spec(self, spec):
        """The step's tensors are out of the session's reach: a placeholder stands for the loss."""
        self._loss_holder = tf.placeholder_with_default(np.float32(0), [], "mean_loss")
        train_op = tf.no_op() if spec.train_op is not None else None
        spec = spec._replace(loss=self._loss_holder, train_op=train_op, predictions={})
        return super()._host_spec(spec)

    def host_session(self, session):
        # The threads use the session itself: they must not wait for the end of a loop.
        self._threads_session = session
        self._session = DeviceSession(session, self._graph.variables)
        return self._session

    def start(self, session, limit=None):
        session = self._threads_session
        if self._inputs.initializer is not None:
            session.run(self._inputs.initializer)
        job = self._job
        self._device_loop = DeviceLoop(
            self.lowered,
            CoreMesh(devices.find(job.master), job.cores_per_replica, job.sharding),
            self._longest_loop(),
            ends_at_nan=job.mode == ModeKeys.TRAIN,
            same_batch=job.same_batch,
            num_last=len(self._summaries.tensors),
        )
        draw = self._inputs.drawer(session, self._job.draws_per_step)
        self._chunks.start()
        self._start_threads(
            session,
            lambda: self._device_loop.put_batch(draw()),
            limit,
            max(infeed.DEPTH, self._device_loop.most_steps),
        )

    @property
    def waited_secs(self):
        return self._waited_secs

    def run_loop(self, iterations, hook_run, interrupted):
        self._losses, self._last_scalars, summary = [], {}, None
        due = self._summary_due(iterations)
        with self._loop_length.timed(iterations):
            with self._session.on_devices(self._device_loop.put_state) as state:
                self._start_chunks(iterations, state, interrupted)
                self._chunks.drain()
            self._session.bring([operations for _, operations in self._functions])
        # A histogram of what is not finite fails, and would hide the loss that is not.
        if due and self._losses and not self._has_failed(self._losses[-1]):
            of_core_0 = [np.asarray(value.addressable_shards[0].data)[0] for value in self._last]
            feed = {self._loss_holder: self._losses[-1], **self._summaries.feed(of_core_0)}
            summary = self._session.run(self._summary_op, feed)
        result = LoopResult(self._losses, self._last_scalars, summary)
        return result, self._hook_values(hook_run)

    def _start_chunks(self, iterations, state, interrupted):
        """Starts the chunks of a loop, one ahead of what the devices work on."""
        while iterations and not interrupted():
            batches = self._next_batches(min(iterations, self._device_loop.most_steps), interrupted)
            if not batches:
                return
            state[:], chunk = self._device_loop.run(state, batches)
            self._chunks_started += 1
            self._chunks.put(chunk)
            iterations -= len(batches)
            # Nothing has run after it; see DeviceLoop. Several hosts start the same chunks.
            alone = self._job.hosts.number == 1
            if alone and self._losses and self._has_failed(self._losses[-1]):
                return

    def _next_batches(self, number, interrupted):
        """Returns the next batches: as many as there are while the devices still work, or the
        first alone; fewer, or none, if interrupted or before an error."""
        batches, start = [], time.perf_counter()

        def enough():
            if self._job.hosts.number > 1:  # all of them start chunks of the same length
                return interrupted()
            return interrupted() or (batches and self._is_idle() and not self._infeed.has_batch())

        try:
            while len(batches) < number:
                batch = self._next_batch(enough)
                if batch is None:
                    break
                batches.append(batch)
        except Exception:
            # The steps before it are run first; the next call raises it again.
            if not batches or self._host_error:
                raise
        if self._is_idle():
            now = time.perf_counter()
            self._waited_secs += now - max(start, self._idle_since)
        return batches

    def _is_idle(self):
        return self._chunks_started == self._chunks_ended

    def _receive(self, chunk):
        """Waits for a chunk, and hands what its steps sent to the host functions."""
        outputs = [np.asarray(value) for value in chunk.outputs]
        first = 1 + len(self._scalars)
        # Where all cores work on the same batch, one of them speaks for all.
        shares = self._job.num_replicas if self._job.same_batch else 1
        outputs[first:] = [value[:, : value.shape[1] // shares] for value in outputs[first:]]
        count = int(chunk.count)
        self._idle_since = time.perf_counter()
        self._chunks_ended += 1
        self._last = chunk.last
        for each in range(count):
            values = iter([output[each] for output in outputs])
            loss = float(np.mean(next(values), dtype=np.float64))
            self._last_scalars = {name: float(next(values)[0]) for name in self._scalars}
            self._send([[next(values) for _ in range(n)] for n in self._sent_structure])
            self._step += 1
            self._losses.append(loss)

    def finish(self, session):
        self._chunks.drain()
        super().finish(session)

    def stop(self, session):
        self._chunks.stop()
        super().stop(session)
        self._chunks.join(JOIN_SECS)

    def _longest_loop(self):
        """Evaluation is one loop of all steps; prediction takes its steps one by one."""
        if self._job.mode == ModeKeys.TRAIN:
            return self._loop_length.most()
        return math.inf if self._job.mode == ModeKeys.EVAL else 1

    def element_of_step(self, fetch):
        return self._graph.own_element(fetch)

    def _check_sums(self):
        """Checks that the replicas' weights cannot drift apart."""
        if not self._graph.has_sums:
            raise ValueError(
                "CrossShardOptimizer must be used for model training on several cores: nothing in "
                f"model_fn sums over the {self._job.num_replicas} replicas, so that each would "
                "train weights of its own. Wrap the optimizer in "
                "bert_estimator.tpu.CrossShardOptimizer, or sum with cross_replica_sum"
            )

    def _core_shape(self, tensor):
        """The shape of one core's share of what input_fn gives."""
        if tensor.dtype == tf.string:
            raise ValueError(
                f"{tensor.name}, from input_fn, holds strings, which no core can take: drop them "
                "there, or turn them into numbers"
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
    """Returns the (function, tensors) pair of a spec, arrays and variables made tensors."""
    if pair is None:
        return None
    function, values = pair
    if isinstance(values, dict):
        return function, {key: tf.convert_to_tensor(value) for key, value in values.items()}
    return function, [tf.convert_to_tensor(value) for value in values]
