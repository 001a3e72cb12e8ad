"""A step with `use_tpu=False`: one `session.run`, which also runs the hooks' fetches."""

import collections

import tensorflow.compat.v1 as tf

from bert_estimator.tpu.spec import FetchEveryStep, ModeKeys, TPUEstimatorSpec
from bert_estimator.tpu.step import feeds, variable_versions
from bert_estimator.tpu.step.host_side import scalar_tensors, scalar_values, split_metrics
from bert_estimator.tpu.step.inputs import Inputs
from bert_estimator.tpu.step.interface import LoopResult
from bert_estimator.tpu.step.session import global_step_reads
from bert_estimator.tpu.step.summaries import LocalSummaries


class LocalStep:
    """Runs one step in each loop, together with the hooks' fetches. See `interface.Step`."""

    waited_secs = None  # The input is part of the step, so its time cannot be measured apart.

    def __init__(self, job, input_fn, start_step):
        params = job.input_params(start_step)
        self._inputs = Inputs(input_fn, job.mode, params, job.config, job.tpu_params)
        spec = job.call_model_fn(self._inputs.features, self._inputs.labels)
        host_call = spec.host_call if isinstance(spec, TPUEstimatorSpec) else None
        if host_call is not None and job.mode == ModeKeys.TRAIN:
            host_call = host_call[0], global_step_reads.copied(host_call[1])
            spec = spec._replace(host_call=host_call)
        self._scalars = scalar_tensors(host_call)
        self.spec = spec.as_estimator_spec() if isinstance(spec, TPUEstimatorSpec) else spec
        self.metric_values, updates = split_metrics(self.spec.eval_metric_ops)
        # The mode decides what a step does, whatever the spec carries.
        self._operation = self.spec.train_op if job.mode == ModeKeys.TRAIN else updates
        if job.mode == ModeKeys.TRAIN:
            variable_versions.order([self._operation, self.spec.loss, self._scalars, host_call])
            hooks = [h for h in self.spec.training_hooks if isinstance(h, FetchEveryStep)]
            of_host = [hook.operations for hook in hooks]
            fetches = [self._operation, self.spec.loss, self._scalars, of_host]
            global_step_reads.order(fetches, is_tpu_estimator=job.tpu_params)
        self.update = self.spec.train_op
        self._predictions = [self.spec.predictions] if job.mode == ModeKeys.PREDICT else []
        self.predicted = collections.deque()
        self._session = None  # once started

    @property
    def restarts(self):
        return self._inputs.initializer is not None

    def add_summaries(self, config):
        if not config.save_summary_steps or not config.model_dir:
            return []
        return [
            LocalSummaries(
                self.spec.loss,
                save_steps=config.save_summary_steps,
                output_dir=config.model_dir,
                scaffold=self.spec.scaffold,
            )
        ]

    def host_session(self, session):
        # As upstream, the data starts before hooks see the session: k-means draws its first
        # clusters from it in a hook.
        if self._inputs.initializer is not None:
            session.run(self._inputs.initializer)
        return session

    def start(self, session, limit=None, start_step=None):
        self._session = session

    def loop_length(self, step, stop_step):
        return 1

    def run_loop(self, iterations, hook_run, visit):
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
            raise feeds.EndOfInput from error
        self.predicted += predictions
        values = scalar_values(scalars)
        return LoopResult([float(loss)], values, values, None), hook_values

    def element_of_step(self, fetch):
        return None  # Hooks take part in the step, and may fetch everything in it.

    def finish(self, session):
        pass  # Nothing runs between two steps.

    def stop(self, session):
        pass  # There are no threads.
