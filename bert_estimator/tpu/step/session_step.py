"""The session runtime: a step is one `session.run` of a TF1 graph on this machine's CPU or GPU.

Two classes with one interface, which training and evaluation drive (and which a runtime that
compiles the step implements as well):

    step = FedStep(job, input_fn, start_step)      # builds the graph
    step.spec, step.metric_values                  # an EstimatorSpec; tensors to read at the end
    step.element_of_step(fetch)                    # what of the step a hook means and cannot have
    hooks = step.add_summaries(config)             # how v1 summaries get written
    session = step.host_session(session)           # as hooks see it: it has the step's variables
    step.start(session, limit)
    iterations = step.loop_length(now, stop_step)
    result, hook_values = step.run_loop(iterations, hook_run, interrupted)
    step.predicted                                 # deque of predictions nobody has taken yet
    step.waited_secs                               # for input, in total
    step.finish(session)                           # all host work done, first error raised
    step.stop(session)                             # also after an error; waits for nobody long

`FedStep` keeps the TPU's rules (`use_tpu=True`): batches come from the infeed, host functions get
every step's tensors, hooks see the end of a loop. `LocalStep` is what `use_tpu=False` means in
upstream: hooks take part in each step, and the input is part of the graph.
"""

import collections
import contextlib
import functools

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.tpu import errors
from bert_estimator.tpu.graph_walk import is_computed_from
from bert_estimator.tpu.spec import (
    EstimatorSpec,
    ModeKeys,
    TPUEstimatorSpec,
    call_scaffold_fn,
    check_metrics,
)
from bert_estimator.tpu.step import infeed, outfeed
from bert_estimator.tpu.step.hooks import error_of_fetch
from bert_estimator.tpu.step.inputs import Inputs
from bert_estimator.tpu.step.loop_length import LoopLength

LoopResult = collections.namedtuple("LoopResult", ["losses", "scalars", "summary"])
LoopResult.__doc__ = """What one loop of steps gave.

Fields: losses (a float for every step run), scalars (dict name -> float, the last step's one-value
host_call tensors), summary (serialized v1 summaries of the last step, or None).
"""

# A draw or a host function that takes longer to end is cut off when the session is closed.
JOIN_SECS = 1


class LocalStep:
    """`use_tpu=False`: one step a loop, evaluated together with what the hooks fetch."""

    def __init__(self, job, input_fn, start_step):
        params = job.input_params(start_step)
        self._inputs = Inputs(input_fn, job.mode, params, job.config, job.tpu_params)
        spec = job.call_model_fn(self._inputs.features, self._inputs.labels)
        host_call = spec.host_call if isinstance(spec, TPUEstimatorSpec) else None
        self._scalars = _scalar_tensors(host_call)
        self.spec = spec.as_estimator_spec() if isinstance(spec, TPUEstimatorSpec) else spec
        self.metric_values, updates = _split_metrics(self.spec.eval_metric_ops)
        self._operation = self.spec.train_op if job.mode == ModeKeys.TRAIN else updates
        self._predictions = [self.spec.predictions] if job.mode == ModeKeys.PREDICT else []
        self.predicted = collections.deque()

    waited_secs = None  # the input is part of the step: what it takes cannot be told apart

    def element_of_step(self, fetch):
        return None  # hooks take part in the step, and may fetch all of it

    def add_summaries(self, config):
        """Returns the hooks that write v1 summaries."""
        if not config.save_summary_steps or not config.model_dir:
            return []
        return [
            tf.train.SummarySaverHook(
                save_steps=config.save_summary_steps,
                output_dir=config.model_dir,
                scaffold=self.spec.scaffold,
            )
        ]

    def host_session(self, session):
        return session

    def start(self, session, limit=None):
        if self._inputs.initializer is not None:
            session.run(self._inputs.initializer)
        self._session = session

    def loop_length(self, step, stop_step):
        return 1

    def run_loop(self, iterations, hook_run, interrupted):
        fetches = [
            self._operation,
            self.spec.loss,
            self._scalars,
            self._predictions,
            hook_run.fetches,
        ]
        try:
            _, loss, scalars, predictions, hook_values = self._session.run(
                fetches, hook_run.feed_dict, hook_run.options, hook_run.run_metadata
            )
        except (tf.errors.OutOfRangeError, StopIteration) as error:
            raise infeed.EndOfInput from error
        self.predicted += predictions
        return LoopResult([float(loss)], _last_values(scalars), None), hook_values

    def finish(self, session):
        pass

    def stop(self, session):
        pass


class FedStep:
    """`use_tpu=True`: loops of steps fed by the infeed and drained by the outfeed."""

    def __init__(self, job, input_fn, start_step):
        self._job = job
        self._inputs = Inputs(input_fn, job.mode, job.input_params(start_step), job.config)
        job.check_data(is_dataset=self._inputs.initializer is not None)
        self._inputs.check_static_shapes()
        spec = self._build_model()
        _check_device_spec(spec)
        self._functions = []  # (HostFunction or Predictions, its operations)
        self._scalars = {}
        self.metric_values = {}
        if isinstance(spec, TPUEstimatorSpec):
            replicas = 1 if job.same_batch else job.num_replicas
            if spec.host_call is not None and len(spec.host_call[1]):
                function = outfeed.HostFunction(
                    "host_call", spec.host_call, self._placeholders, replicas
                )
                self._scalars = _scalar_tensors(spec.host_call)
                operations = [] if function.result is None else function.result
                self._functions.append((function, operations))
            if job.mode == ModeKeys.EVAL and spec.eval_metrics is not None:
                function = outfeed.HostFunction(
                    "eval_metrics", spec.eval_metrics, self._placeholders, replicas
                )
                check_metrics(function.result, "eval_metrics: metric_fn's result")
                self.metric_values, updates = _split_metrics(function.result)
                self._functions.append((function, updates))
            if job.mode == ModeKeys.PREDICT:
                predictions = outfeed.Predictions(spec.predictions)
                self.predicted = predictions.waiting
                self._functions.append((predictions, []))
        self.spec = self._host_spec(spec)
        tpu_config = job.config.tpu_config
        self._host_call_every = tpu_config.experimental_host_call_every_n_steps or 1
        self._loop_length = LoopLength(tpu_config.iterations_per_loop)
        self._summary_op, self._summary_every = None, None
        self._step = start_step
        self._infeed, self._outfeeds = None, []
        self._host_error = errors.FirstError()
        self._infeed_delay_secs = tpu_config.initial_infeed_sleep_secs or 0

    def _build_model(self):
        """Builds the model on placeholders for a batch; returns its spec."""
        features, labels, self._placeholders = self._inputs.placeholders()
        return self._job.call_model_fn(features, labels)

    def _host_spec(self, spec):
        """Returns the `EstimatorSpec` that training and evaluation see of a device's spec."""
        if isinstance(spec, EstimatorSpec):
            tf.logging.warning(
                "EstimatorSpec.scaffold is ignored with use_tpu=True; use scaffold_fn"
            )
            return EstimatorSpec(
                spec.mode,
                loss=spec.loss,
                train_op=spec.train_op,
                training_hooks=spec.training_hooks,
            )
        return EstimatorSpec(
            spec.mode,
            loss=spec.loss,
            train_op=spec.train_op,
            scaffold=call_scaffold_fn(spec.scaffold_fn, self._placeholders),
            predictions=spec.predictions,
            training_hooks=spec.training_hooks,
            evaluation_hooks=spec.evaluation_hooks,
            prediction_hooks=spec.prediction_hooks,
        )

    def add_summaries(self, config):
        """Notes that v1 summaries are due every so many steps; the last step of a loop carries
        them, so no hook is needed."""
        self._summary_every = config.save_summary_steps if config.model_dir else None
        if self._summary_every:
            summaries = self._inputs.without_drawing(tf.get_collection(tf.GraphKeys.SUMMARIES))
            self._summary_op = tf.summary.merge(summaries) if summaries else None
            # One that waits for the step's update is made within the step.
            made = [each for each in summaries if each.op.control_inputs]
            given = [each for each in summaries if not each.op.control_inputs]
            self._summarized = made + [tensor for each in given for tensor in each.op.inputs]
        return []

    def host_session(self, session):
        return session

    def start(self, session, limit=None):
        """Starts the infeed (at most `limit` batches) and the outfeed."""
        if self._inputs.initializer is not None:
            session.run(self._inputs.initializer)
        self._open(session)
        self._start_threads(session, self._inputs.drawer(session), limit)

    def _start_threads(self, session, draw, limit, depth=infeed.DEPTH):
        self._infeed = infeed.Infeed(draw, limit, self._infeed_delay_secs, depth)
        self._infeed.start()
        for function, operations in self._functions:
            receive = functools.partial(function.run, session, operations)
            self._outfeeds.append(outfeed.Outfeed(receive, self._host_error))
            self._outfeeds[-1].start()

    def _open(self, session):
        """Prepares the step in a session whose variables have their values."""
        self._session = session
        self._fetches = [
            self.spec.train_op if self._job.mode == ModeKeys.TRAIN else [],
            self.spec.loss,
            self._scalars,
            [function.tensors for function, _ in self._functions],
        ]
        self._run = session.make_callable(self._fetches, feed_list=self._placeholders)

    def _run_step(self, batch):
        """Runs a step on a batch; returns its loss, scalars, and each host function's values."""
        return self._run(*batch)[1:]

    def _run_last_step(self, batch, hook_run, due):
        """As `_run_step`, for the last step of a loop: with the hooks' options, and the summaries
        if they are due."""
        values, summarized = self._session.run(
            [self._fetches, self._summarized if due else []],
            dict(zip(self._placeholders, batch, strict=True)),
            hook_run.options,
            hook_run.run_metadata,
        )
        loss, summary = values[1], None
        # A histogram of what is not finite fails, and would hide the loss that is not.
        if due and not self._has_failed(loss):
            feed = dict(zip(self._summarized, summarized, strict=True))
            summary = self._session.run(self._summary_op, feed)
        return *values[1:], summary

    @property
    def waited_secs(self):
        return self._infeed.waited_secs

    def loop_length(self, step, stop_step):
        return min(self._loop_length.get(), stop_step - step)

    def run_loop(self, iterations, hook_run, interrupted):
        losses, scalars, summary = [], {}, None
        due = self._summary_due(iterations)
        with self._loop_length.timed(iterations):
            for i in range(iterations):
                batch = self._next_batch(interrupted)
                if batch is None:
                    break
                if i == iterations - 1 and (due or hook_run.options is not None):
                    loss, scalars, sent, summary = self._run_last_step(batch, hook_run, due)
                else:
                    loss, scalars, sent = self._run_step(batch)
                self._send(sent)
                self._step += 1
                losses.append(float(loss))
                # A training that has failed is not continued to the loop's end.
                if interrupted() or self._has_failed(loss):
                    break
        return LoopResult(losses, _last_values(scalars), summary), self._hook_values(hook_run)

    def _summary_due(self, iterations):
        return self._summary_op is not None and (
            self._step // self._summary_every != (self._step + iterations) // self._summary_every
        )

    def finish(self, session):
        for feed in self._outfeeds:
            feed.drain()

    def stop(self, session):
        threads = [*self._outfeeds, self._infeed] if self._infeed is not None else []
        for thread in threads:
            thread.stop()
        for thread in threads:
            thread.join(JOIN_SECS)

    def _next_batch(self, interrupted):
        """Returns a batch, or None if interrupted. An error of a host function, which belongs to
        a step before, is raised first: neither a wait nor the end of the data hides it."""
        try:
            batch = self._infeed.get(lambda: interrupted() or bool(self._host_error))
        except Exception:
            self.finish(self._session)
            raise
        self._host_error.raise_if_any()
        return batch

    def _has_failed(self, loss):
        return self._job.mode == ModeKeys.TRAIN and not np.isfinite(loss)

    def _send(self, sent):
        for feed, (function, _), values in zip(self._outfeeds, self._functions, sent, strict=True):
            every = self._host_call_every if function.name == "host_call" else 1
            if function.name == "host_call" and not self._job.hosts.is_chief:
                continue  # it has every core's values, and what it writes is written once
            if self._step % every == 0:
                feed.put(values)

    def element_of_step(self, fetch):
        """Returns the step's tensor or operation that a hook fetches, or None if it is none."""
        with contextlib.suppress(KeyError, ValueError):
            element = tf.get_default_graph().as_graph_element(fetch)
            return element if is_computed_from(element, self._placeholders) else None

    def _hook_values(self, hook_run):
        if not hook_run.fetches:
            return {}
        try:
            return self._session.run(hook_run.fetches, hook_run.feed_dict)
        except (tf.errors.InvalidArgumentError, LookupError, ValueError) as error:
            for hook, fetches in hook_run.fetches.items():
                for fetch in tf.nest.flatten(fetches):
                    element = self.element_of_step(fetch)
                    if element is not None:
                        raise error_of_fetch(hook, element) from error
            raise


def _check_device_spec(spec):
    """Checks a spec that TPU rules apply to, with upstream's exception types."""
    if isinstance(spec, TPUEstimatorSpec):
        return
    if spec.mode != ModeKeys.TRAIN:
        raise RuntimeError(
            f"With use_tpu=True model_fn must return a TPUEstimatorSpec in mode {spec.mode!r}: an "
            "EstimatorSpec's metrics cannot be moved to the host. Use eval_metrics=(fn, tensors)"
        )
    if spec.training_chief_hooks:
        raise ValueError("With use_tpu=True training_chief_hooks are not supported")


def _split_metrics(metrics):
    """Returns (dict of value tensors, list of update operations)."""
    metrics = metrics or {}
    return {k: value for k, (value, _) in metrics.items()}, [u for _, u in metrics.values()]


def _scalar_tensors(host_call):
    """The one-value float tensors of a host_call given as a dict: they go to the log line."""
    if host_call is None or not isinstance(host_call[1], dict):
        return {}
    tensors = {key: tf.convert_to_tensor(value) for key, value in host_call[1].items()}
    return {
        key: tensor
        for key, tensor in tensors.items()
        if tensor.dtype.is_floating and tensor.shape.num_elements() == 1
    }


def _last_values(scalars):
    return {key: float(np.reshape(value, [])) for key, value in scalars.items()}
