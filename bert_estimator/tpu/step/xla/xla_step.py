"""A step on the XLA runtime: one program per core, fed and drained by the host's threads.

The model is built in a graph of its own, for one core's share of the batch. The infeed's thread
copies each batch to the devices. A loop only starts chunks of steps on the devices, and a thread
waits for the chunks' results. The variables stay on the devices. The session that hooks see copies
the variables that it needs.
"""

import functools
import math
import time

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.cluster import hosts
from bert_estimator.tpu.program import devices
from bert_estimator.tpu.program.core_mesh import CoreMesh
from bert_estimator.tpu.program.lowered_step import DeviceLoop
from bert_estimator.tpu.spec import EstimatorSpec, ModeKeys
from bert_estimator.tpu.step import feeds
from bert_estimator.tpu.step.hooks import check_feeds, values_for_hooks
from bert_estimator.tpu.step.host_side import JOIN_SECS, HostSide, host_spec, static_inputs
from bert_estimator.tpu.step.interface import LoopLength, LoopResult, Step
from bert_estimator.tpu.step.summaries import DeviceSummaries, StepSummaries
from bert_estimator.tpu.step.xla.device_session import DeviceSession
from bert_estimator.tpu.step.xla.step_graph import StepGraph


class CoreModel:
    """Builds a job's model on one core's share of the batch, in a graph of its own; the tensors of
    `inputs` have the shapes of one host's batch."""

    def __init__(self, job, inputs):
        self._job = job
        self.graph = StepGraph(job.num_replicas, job.cores_per_replica, job.num_update_shards)
        features, labels = inputs.replaced(
            lambda tensor: self.graph.placeholder(tensor.dtype, self._core_shape(tensor))
        )
        with self.graph.building():
            self.spec = spec = job.call_model_fn(features, labels)
            self._check_exchanges()
            checked = EstimatorSpec(spec.mode, spec.predictions, spec.loss, spec.train_op)
            # What updates the variables is in the step's graph.
            self._loss, self.update = checked.loss, checked.train_op
        config = job.config
        writes = job.mode == ModeKeys.TRAIN and config.model_dir and config.save_summary_steps
        self.summaries = DeviceSummaries(self.graph.summaries() if writes else [])
        # In the session's graph, for hooks and summaries: the mean over the cores.
        self.loss_holder = tf.placeholder_with_default(np.float32(0), [], "mean_loss")

    @property
    def results(self):
        """Returns what every step computes, apart from what it sends."""
        # The mode decides what a step does, whatever the spec carries.
        return [self._loss, self.update if self._job.mode == ModeKeys.TRAIN else None]

    def session_spec(self):
        """Returns the spec for the session's graph, without tensors of the step's graph."""
        train_op = tf.no_op() if self.spec.train_op is not None else None
        return self.spec._replace(loss=self.loss_holder, train_op=train_op, predictions={})

    def lower(self, scalars: list[tf.Tensor], sent: list[tf.Tensor]):
        """Lowers the step; its outputs are the loss, the scalars, the tensors that are sent to the
        host (each has a batch axis), and the tensors that the summaries are made of."""
        # Casts and reshapes must be in the step's graph, and in the replica's context.
        with self.graph.building():
            # With a first axis of one, the cores' values can be put side by side.
            outputs = [tf.reshape(t, [1]) for t in (tf.cast(self._loss, tf.float32), *scalars)]
            outputs += [*sent, *(tensor[tf.newaxis] for tensor in self.summaries.tensors)]
        updates_first = self._job.mode != ModeKeys.TRAIN
        return self.graph.lower(outputs, self.results[1], updates_first)

    def _check_exchanges(self):
        """Checks that the replicas' weights stay equal, or are slices on the cores of one host."""
        job = self._job
        if self.graph.is_mesh and job.hosts.number > 1:
            raise ValueError(
                f"model_fn splits its weights over the cores of {job.hosts.number} hosts, as "
                "mesh-tensorflow's SimdMeshImpl does. Only the cores of one host can be a mesh: "
                "run without a cluster"
            )
        if job.mode != ModeKeys.TRAIN or job.num_replicas == 1 or self.graph.is_mesh:
            return
        if not self.graph.has_sums:
            raise ValueError(
                "CrossShardOptimizer must be used for model training on several cores: nothing in "
                f"model_fn sums over the {job.num_replicas} replicas, so each would train "
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


# One chunk waits while the devices work on another, so that they can go on with it at once.
_CHUNKS_WAITING = 1

# If the input fails on one of several hosts, it waits this long for the chunks that it has started:
# if one of them failed, that error came first. They may never end, since another host may never
# start them.
_CHUNKS_SECS = 10


class XlaStep(Step):
    """Runs a step on the cores that the job's master names; see `interface.Step`."""

    def __init__(self, job, input_fn, start_step):
        self._job, self._alone = job, job.hosts.number == 1
        self._inputs = static_inputs(job, input_fn, start_step)
        self._model = CoreModel(job, self._inputs)
        placeholders = self._model.graph.inputs
        self._host = HostSide(job, self._model.spec, placeholders, start_step)
        self._host.functions += self._model.graph.host_computations(
            [self._model.results, *self._host.tensors, *self._host.scalars.values()],
            1 if job.same_batch else job.num_replicas,
        )
        self.metric_values, self.predicted = self._host.metric_values, self._host.predicted
        self.spec = host_spec(self._model.session_spec(), placeholders)
        self._loop_length = LoopLength(job.tpu_config.iterations_per_loop)
        self._sent_structure = [len(tensors) for tensors in self._host.tensors]
        # After the host functions are built, which say what the step sends.
        self.lowered = self._model.lower(
            list(self._host.scalars.values()),
            [tensor for tensors in self._host.tensors for tensor in tensors],
        )
        self.variables, self.update = self._model.graph.variables, self._model.update
        self._summaries = None  # once `add_summaries` was called
        # These are set by `host_session`. The threads use a session that does not wait for the end
        # of a loop; hooks see the other one.
        self._threads_session, self._session = None, None
        self._device_loop = None  # once started
        self._chunks = None  # once started
        # The results of the chunks of the current loop; the thread of `self._chunks` writes them.
        self._result, self._last = LoopResult([], {}, {}, None), []
        self._chunks_started, self._chunks_ended, self._idle_since = 0, 0, 0.0
        self.waited_secs = 0.0

    def add_summaries(self, config):
        self._summaries = StepSummaries(config, self._inputs, self.spec.scaffold)
        return []

    def host_session(self, session):
        self._threads_session = session
        # In each session anew: the counters are not in checkpoints.
        session.run([counter.initializer for counter in self._model.graph.counters])
        self._session = DeviceSession(session, self.variables)
        return self._session

    def start(self, session, limit=None, start_step=None):
        session, job = self._threads_session, self._job
        if self._inputs.initializer is not None:
            session.run(self._inputs.initializer)
        # Evaluation runs all steps in one loop; prediction runs one step in each loop.
        longest_of = {ModeKeys.TRAIN: self._loop_length.most(), ModeKeys.EVAL: math.inf}
        longest_loop = longest_of.get(job.mode, 1)
        self._device_loop = DeviceLoop(
            self.lowered,
            CoreMesh(
                devices.find(job.master),
                job.cores_per_replica,
                job.sharding,
                self.lowered.num_shards,
            ),
            longest_loop,
            ends_at_nan=job.mode == ModeKeys.TRAIN,
            same_batch=job.same_batch,
            num_last=len(self._model.summaries.tensors),
        )
        draw = self._inputs.drawer(session, job.draws_per_step)
        self._chunks = feeds.Outfeed(self._receive, self._host.error, _CHUNKS_WAITING)
        self._chunks.start()
        self._host.start(
            session,
            lambda: self._device_loop.put_batch(draw()),
            limit,
            start_step,
            max(feeds.INFEED_DEPTH, self._device_loop.most_steps),
        )

    def run_loop(self, iterations, hook_run, visit):
        check_feeds(hook_run.feed_dict, self._model.graph.taken_from_session())
        self._result, summary = LoopResult([], {}, {}, None), None
        due = self._summaries is not None and self._summaries.are_due(self._host.step, iterations)
        with self._loop_length.timed(self._result.losses), hosts.together():
            with self._session.on_devices(self._device_loop.put_state) as state:
                self._start_chunks(iterations, state, functools.partial(visit, self._result))
                self._chunks.drain()
            # Host functions may read variables, and their thread must not wait for the next loop.
            self._session.bring(self._host.operations)
        # A histogram of values that are not finite fails. Its error would hide the loss's.
        losses = self._result.losses
        if due and losses and not self._host.ends_training(losses[-1]):
            # With the values of core 0.
            last = [np.asarray(value.addressable_shards[0].data)[0] for value in self._last]
            given = {self._model.loss_holder: losses[-1], **self._model.summaries.feed(last)}
            summary = self._summaries.write(self._session, given)
        result = self._result._replace(summary=summary)
        known = {self._model.loss_holder: losses[-1]} if losses else None
        return result, values_for_hooks(hook_run, self._session, self.element_of_step, known)

    def _start_chunks(self, iterations, state, interrupted):
        """Starts the chunks of a loop, one ahead of the chunk that the devices work on."""
        while iterations and not interrupted():
            batches = self._next_batches(min(iterations, self._device_loop.most_steps), interrupted)
            if not batches:
                return
            state[:], chunk = self._device_loop.run(state, batches)
            self._chunks_started += 1
            self._chunks.put(chunk)
            iterations -= len(batches)
            # DeviceLoop does not run steps after a loss that is not finite. Several hosts must
            # start the same chunks, so they do not look at the loss here.
            losses = self._result.losses
            if self._alone and losses and self._host.ends_training(losses[-1]):
                return

    def _next_batches(self, number, interrupted):
        """Returns a list of the next batches, at most `number`; it is shorter, or empty, if
        `interrupted()` becomes true or an error comes."""
        # It always waits for the first batch, and for more only while the devices are busy. With
        # several hosts an error is raised at once: a shorter chunk would wait for the other hosts
        # in vain.
        batches, start = [], time.perf_counter()

        def enough():
            if not self._alone:  # All hosts must start chunks of the same length.
                return interrupted()
            is_late = batches and self._is_idle() and not self._host.infeed.has_batch()
            return interrupted() or is_late

        try:
            while len(batches) < number:
                batch = self._next_batch(enough)
                if batch is None:
                    break
                batches.append(batch)
        except Exception:
            # The batches before the error are used first. The next call raises it again.
            if not batches or self._host.error or not self._alone:
                raise
        if self._is_idle():
            # Steps waited for input only since the devices had nothing to do.
            now = time.perf_counter()
            self.waited_secs += now - max(start, self._idle_since)
        return batches

    def _next_batch(self, interrupted):
        try:
            return self._host.next_batch(interrupted)
        except Exception:
            # If an earlier step failed, its error is raised.
            if self._alone:
                self.finish(self._session)
            else:
                self._chunks.drain(_CHUNKS_SECS)
            raise

    def _is_idle(self):
        return self._chunks_started == self._chunks_ended

    def _receive(self, chunk):
        """Waits for a chunk, and hands what its steps sent to the host functions."""
        outputs = [np.asarray(value) for value in chunk.outputs]
        first = 1 + len(self._host.scalars)
        # If all replicas work on the same batch, only the first replica's rows are kept.
        shares = self._job.num_replicas if self._job.same_batch else 1
        outputs[first:] = [value[:, : value.shape[1] // shares] for value in outputs[first:]]
        count = int(chunk.count)
        self._idle_since = time.perf_counter()
        self._chunks_ended += 1
        self._last = chunk.last
        for i in range(count):
            values = iter([output[i] for output in outputs])
            # Each core has the mean over its rows, and all have equally many.
            loss = float(np.mean(next(values), dtype=np.float64))
            scalars = {name: float(next(values)[0]) for name in self._host.scalars}
            self._host.send([[next(values) for _ in range(n)] for n in self._sent_structure])
            self._result.add(loss, scalars)

    def reached(self, global_step):
        self._host.reached(global_step)

    def element_of_step(self, fetch):
        return self._model.graph.own_element(fetch)

    def finish(self, session):
        self._chunks.drain()
        self._host.drain()

    def stop(self, session):
        if self._chunks is None:
            return
        self._chunks.stop()
        self._host.stop()
        self._chunks.join(JOIN_SECS)
        self._session, self._last = None, []  # They hold the values on the devices.
