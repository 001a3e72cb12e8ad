"""A step with `use_tpu=False`: one `session.run`, which also runs the hooks' fetches.

If the global step is a reference, as in TF1 scripts, its reads and its update are ordered here.
TensorFlow 1 lets what is computed from the global step race with its update: a learning rate, or
the step of a host call. The race has an outcome that programs rely on:

1. An update that waits for the training, such as the update of
   `optimizer.apply_gradients(..., global_step)`, comes last.
2. An update that could run at once, beside the optimizer, comes first. NVIDIA's LAMB divides by
   `1 - beta**global_step`, which would be 0 before it.
3. But if TPUEstimator runs it, and it is `global_step.assign(global_step + 1)`, it comes between
   the reads: only the last read that was made before it sees the step counted. There, the global
   step is a resource in TensorFlow 1, and its executor runs the reads in this order. With
   google-research/bert's schedule the decay is of the step before, and the warm-up of the step
   after.

(TensorFlow 1.15.5 on two cores, google-research/bert's schedule in networks of five sizes: with
TPUEstimator, all steps of 14 trainings had this decay, and 93 % of the steps this warm-up; with
Estimator, 95 % of the steps of 14 trainings saw the step counted in both. With five reads or more
beside `global_step.assign(global_step + 1)`, each training of TPUEstimator has another outcome.)
"""

import collections
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator.graph import graph_walk, variable_uses
from bert_estimator.tpu.spec import FetchEveryStep, ModeKeys, TPUEstimatorSpec
from bert_estimator.tpu.step import feeds, variable_versions
from bert_estimator.tpu.step.host_side import scalar_tensors, scalar_values, split_metrics
from bert_estimator.tpu.step.inputs import Inputs
from bert_estimator.tpu.step.interface import LoopLength, LoopResult, Step
from bert_estimator.tpu.step.session import reference_updates
from bert_estimator.tpu.step.summaries import LocalSummaries


class LocalStep(Step):
    """Runs one step in each loop, together with the hooks' fetches; see `interface.Step`."""

    def __init__(self, job, input_fn, start_step):
        params = job.input_params(start_step)
        self._inputs = Inputs(input_fn, job.mode, params, job.config, job.tpu_params)
        spec = job.call_model_fn(self._inputs.features, self._inputs.labels)
        host_call = spec.host_call if isinstance(spec, TPUEstimatorSpec) else None
        if host_call is not None and job.mode == ModeKeys.TRAIN:
            # What a Python function gets of a tensor shares its memory, and may be kept by the
            # function.
            host_call = host_call[0], copied(host_call[1])
            spec = spec._replace(host_call=host_call)
        self._scalars = scalar_tensors(host_call)
        self.spec = spec.as_estimator_spec() if isinstance(spec, TPUEstimatorSpec) else spec
        self.metric_values, updates = split_metrics(self.spec.eval_metric_ops)
        # The mode decides what a step does, whatever the spec carries.
        self._operation = self.spec.train_op if job.mode == ModeKeys.TRAIN else updates
        self._predictions = [self.spec.predictions] if job.mode == ModeKeys.PREDICT else []
        if job.mode == ModeKeys.TRAIN:
            # First resources, then the global step, then other references: each sees the
            # dependencies that were added before, and does not contradict them.
            variable_versions.order([self._operation, self.spec.loss, self._scalars, host_call])
            hooks = [h for h in self.spec.training_hooks if isinstance(h, FetchEveryStep)]
            of_host = [hook.operations for hook in hooks]
            fetches = [self._operation, self.spec.loss, self._scalars, of_host]
            order(fetches, is_tpu_estimator=job.tpu_params)
            reference_updates.order(fetches)
        else:
            fetches = [self._operation, self.spec.loss, self._scalars, self._predictions]
            reference_updates.put_updates_first(fetches, apart=[self.metric_values])
        self.update = self.spec.train_op
        self.predicted = collections.deque()
        self._loop_length = LoopLength(1)
        self._session = None  # once started

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
        # A Python function in the step may raise StopIteration, which ends the data too.
        except (tf.errors.OutOfRangeError, StopIteration) as error:
            raise feeds.EndOfInput from error
        self.predicted += predictions
        values = scalar_values(scalars)
        return LoopResult([float(loss)], values, values, None), hook_values


_UPDATES = ("Assign", "AssignAdd", "AssignSub", "CountUpTo")
_VARIABLES = ("VariableV2", "VarHandleOp")
_INTO_FRAMES = ("RefEnter", "RefSwitch")  # by which an update in a condition or a loop gets it


def order(fetches: Any, is_tpu_estimator: bool) -> None:
    """Has updates of the global step wait for what reads it, or the reads for the updates;
    `fetches` are what every step runs, and a TPUEstimator's step has rule 3."""
    global_step = tf.train.get_global_step()
    if hasattr(global_step, "handle"):  # a resource: `variable_versions` orders its reads
        return
    run = set(graph_walk.all_before(graph_walk.operations_of(fetches)))
    reads, updates = _uses(global_step, run)
    operations = tf.get_default_graph().get_operations()
    framed = variable_versions.in_frames([o for o in operations if o in run])
    reads = {reader: read for reader, read in reads.items() if reader.name not in framed}
    # As in `variable_versions`, nothing waits for operations in a condition or a loop.
    for update in updates:
        before = set(graph_walk.all_before([update]))
        if update.type in _UPDATES and update.name not in framed and _may_run_at_once(before):
            # Rule 2: what could run at once comes first.
            seeing = [reader for reader in reads if reader not in before]
            own = [r for r in reads if r in before and r.type not in variable_uses.CALLERS]
            if is_tpu_estimator and own:
                # Rule 3.
                seeing = _last_made(seeing, reads, update, operations)
            for reader in seeing:
                reader._add_control_input(update)
        after = set(graph_walk.all_after([update]))
        # Rule 1, and what rule 3 leaves: the update waits for all other reads.
        update._add_control_inputs([r for r in reads if r not in after and r not in before])


def _last_made(readers, reads, update, operations):
    """Returns the readers of the last read, if it was made before an update, or an empty list."""
    number_of = {operation: number for number, operation in enumerate(operations)}
    last = max(readers, key=lambda reader: number_of[reads[reader]], default=None)
    if last is None or number_of[reads[last]] > number_of[update]:
        return []
    # Operations that a library function made in a name scope of its own, such as
    # `tf.train.piecewise_constant`, share a read.
    scope, scope_of_update = _scope(reads[last]), _scope(update)
    shares = [r for r in readers if _scope(reads[r]) == scope != scope_of_update]
    return shares or [last]


def _scope(operation):
    return operation.name.rpartition("/")[0]


def _may_run_at_once(before):
    """Returns whether operations depend on constants and counters alone, not on trained values."""
    sources = [operation for operation in before if not operation.inputs]
    trained = {variable.op for variable in tf.trainable_variables()}
    return all(
        source.type == "Const" or (source.type in _VARIABLES and source not in trained)
        for source in sources
    )


def copied(tensors: Any) -> Any:
    """Copies the tensors of a structure that share the memory of the global step."""
    global_step = tf.train.get_global_step()
    if hasattr(global_step, "handle"):
        return tensors

    def copy(tensor):
        source = tensor
        while isinstance(source, tf.Tensor) and source.op.type in reference_updates.SHARE_MEMORY:
            source = source.op.inputs[0]
        shares = isinstance(source, tf.Tensor | tf.Variable) and source.op is global_step.op
        return tf.raw_ops.DeepCopy(x=tensor) if shares else tensor

    return tf.nest.map_structure(copy, tensors)


def _uses(global_step, run):
    """Returns a dict of the operations that read the global step -> the first operation by which
    each gets the value, and a list of the operations that update it, both of those in `run`."""
    reads, updates, seen = {}, [], set()
    (reference,) = global_step.op.outputs
    of_variable = (global_step.op, global_step.value().op)
    tensors = [(reference, None)]
    while tensors:
        tensor, first = tensors.pop()
        for operation in tensor.consumers():
            if operation in seen or operation not in run:
                continue
            seen.add(operation)
            read = first or (None if operation in of_variable else operation)
            if operation.type in reference_updates.SHARE_MEMORY:
                tensors += [(output, read) for output in operation.outputs]
            elif operation.type in _UPDATES + _INTO_FRAMES and operation.inputs[0] is reference:
                updates.append(operation)
            else:
                reads[operation] = read
    return reads, updates
