"""A step under TPU rules on the session runtime: a `session.run` that is fed placeholders.

The infeed's thread draws batches ahead of the steps. Host functions receive what the steps send, on
threads of their own. Hooks run between loops of steps, as they do on a TPU.
"""

import contextlib
import functools

import tensorflow.compat.v1 as tf

from bert_estimator.graph import patches
from bert_estimator.graph.graph_walk import is_computed_from
from bert_estimator.tpu.replicas import replica, replica_operations
from bert_estimator.tpu.spec import ModeKeys
from bert_estimator.tpu.step import initial_values, outside_compilation, variable_versions
from bert_estimator.tpu.step.hooks import check_feeds, values_for_hooks
from bert_estimator.tpu.step.host_side import HostSide, host_spec, scalar_values, static_inputs
from bert_estimator.tpu.step.interface import LoopLength, LoopResult, Step
from bert_estimator.tpu.step.summaries import StepSummaries


class SessionStep(Step):
    """Runs a step with `use_tpu=True` in a session, on one core; see `interface.Step`."""

    def __init__(self, job, input_fn, start_step):
        self._job = job
        self._inputs = static_inputs(job, input_fn, start_step)
        self._placeholders = []

        def placeholder(tensor):
            self._placeholders.append(tf.placeholder(tensor.dtype, tensor.shape))
            return self._placeholders[-1]

        features, labels = self._inputs.replaced(placeholder)
        on_host, is_training = [], job.mode == ModeKeys.TRAIN
        with (
            replica.Replica(1, 0, lambda tensor: tensor, on_host.extend).entered(),
            replica_operations.replaced(),
            # As on a TPU: reads of other variables than resources may see any update.
            tf.variable_scope(
                tf.get_variable_scope(), use_resource=True, auxiliary_name_scope=False
            ),
            patches.biases_summed_in_float32() if is_training else contextlib.nullcontext(),
        ):
            spec = job.call_model_fn(features, labels)
        variables = [*tf.global_variables(), *tf.local_variables()]
        # A session could feed them, but cores compute initial values before the first batch.
        initial_values.check(variables, self._placeholders)
        self._host = HostSide(job, spec, self._placeholders, start_step)
        self.metric_values, self.predicted = self._host.metric_values, self._host.predicted
        self.spec = host_spec(spec, self._placeholders)
        self._loop_length = LoopLength(job.tpu_config.iterations_per_loop)
        self.update = self.spec.train_op if is_training else None
        self._fetches = [
            # The mode decides what a step does, whatever the spec carries.
            self.spec.train_op if is_training else [],
            self.spec.loss,
            self._host.scalars,
            self._host.tensors,
            tf.group(*outside_compilation.effects(on_host)),
        ]
        # The host's operations run after the step, in runs of their own.
        apart = [*self._host.operations, self.metric_values]
        variable_versions.order(self._fetches, updates_first=not is_training, apart=apart)
        self._summaries = None  # once `add_summaries` was called
        self._summarized = []  # what every step computes for the summaries
        self._session, self._run = None, None  # once started

    @property
    def waited_secs(self):
        return self._host.infeed.waited_secs

    def add_summaries(self, config):
        self._summaries = StepSummaries(config, self._inputs, self.spec.scaffold)
        if self._summaries.in_every_step(self.spec.loss):
            self._summarized = self._summaries.tensors
        return []

    def start(self, session, limit=None, start_step=None):
        if self._inputs.initializer is not None:
            session.run(self._inputs.initializer)
        self._session = session
        fetches = [self._fetches, self._summarized]
        self._run = session.make_callable(fetches, feed_list=self._placeholders)
        self._host.start(session, self._inputs.drawer(session), limit, start_step)

    def run_loop(self, iterations, hook_run, visit):
        check_feeds(hook_run.feed_dict, tf.nest.flatten(self._fetches))
        result, summary = LoopResult([], {}, {}, None), None
        interrupted = functools.partial(visit, result)
        due = self._summaries is not None and self._summaries.are_due(self._host.step, iterations)
        with self._loop_length.timed(result.losses):
            for i in range(iterations):
                batch = self._next_batch(interrupted)
                if batch is None:
                    break
                is_last = i == iterations - 1
                if is_last and (hook_run.options is not None or (due and not self._summarized)):
                    fetched, values = self._run_last_step(batch, hook_run, due)
                else:
                    fetched, values = self._run(*batch)
                _, loss, scalars, sent, _ = fetched
                # A histogram of values that are not finite fails. Its error would hide the loss's.
                if is_last and due and not self._host.ends_training(loss):
                    given = dict(zip(self._summaries.tensors, values, strict=True))
                    summary = self._summaries.write(self._session, given)
                self._host.send(sent)
                result.add(float(loss), scalar_values(scalars))
                # If training has failed, the rest of the loop is not run.
                if interrupted() or self._host.ends_training(loss):
                    break
        result = result._replace(summary=summary)
        return result, values_for_hooks(hook_run, self._session, self.element_of_step)

    def _run_last_step(self, batch, hook_run, due):
        """Runs the last step of a loop, with the hooks' options, and the summaries if they are due;
        returns the values of the fetches and of the summaries' tensors."""
        return self._session.run(
            [self._fetches, self._summaries.tensors if due else []],
            dict(zip(self._placeholders, batch, strict=True)),
            hook_run.options,
            hook_run.run_metadata,
        )

    def _next_batch(self, interrupted):
        try:
            return self._host.next_batch(interrupted)
        except Exception:
            self._host.drain()  # If an earlier step failed, this raises its error.
            raise

    def reached(self, global_step):
        self._host.reached(global_step)

    def element_of_step(self, fetch):
        with contextlib.suppress(KeyError, ValueError):
            element = tf.get_default_graph().as_graph_element(fetch)
            return element if is_computed_from(element, self._placeholders) else None

    def finish(self, session):
        self._host.drain()

    def stop(self, session):
        self._host.stop()
