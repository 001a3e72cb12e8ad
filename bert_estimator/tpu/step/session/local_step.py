"""A step with `use_tpu=False`: one `session.run`, which also runs the hooks' fetches.

TensorFlow 1's variables are references: an update such as `assign_sub` writes to the memory that
reads of the variable share. The optimizers of `tf.train` wait for the gradients that need the old
value. Programs that call `tf.gradients` and then `assign_sub` by themselves, such as
mesh-tensorflow's optimizers, let the two race. TensorFlow 1.15.5 nearly always runs the reads
first; today's executor often does not. (A network of two layers by mesh-tensorflow, trained for 8
steps on two busy cores: 7 of 7 trainings of TensorFlow 1.15.5 were equal; of today's, no two of 4.)

So here an update of a trained weight that depends on the batch waits for the reads that do not come
after it. The updates of one weight run one after the other, in the order in which they usually
become ready: first what does not depend on the batch (a decay, a clipping), then the rest, the
update with fewer operations before it first. What is not trained (the moving averages of a batch
normalization, counters) is left alone.

If the global step is a reference, as in TF1 scripts, its reads and its update are ordered, too.
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
import itertools
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator.graph import graph_walk, variable_uses
from bert_estimator.tpu.spec import FetchEveryStep, ModeKeys, TPUEstimatorSpec
from bert_estimator.tpu.step import feeds, variable_versions
from bert_estimator.tpu.step.host_side import scalar_tensors, scalar_values, split_metrics
from bert_estimator.tpu.step.inputs import Inputs
from bert_estimator.tpu.step.interface import LoopLength, LoopResult, Step
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
            order_global_step(fetches, is_tpu_estimator=job.tpu_params)
            order_references(fetches)
        else:
            fetches = [self._operation, self.spec.loss, self._scalars, self._predictions]
            put_updates_first(fetches, apart=[self.metric_values])
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


# Their output shares the memory of a reference.
_SHARE_MEMORY = ("Identity", "Reshape", "ExpandDims", "Squeeze")
# The outputs of these may share memory with an input, too, which depends on shapes and dtypes.
_MAY_SHARE_MEMORY = (*_SHARE_MEMORY, "Bitcast", "Cast", "CheckNumerics", "EnsureShape", "IdentityN",
                     "PreventGradient", "Slice", "Snapshot", "Split", "SplitV", "StopGradient",
                     "StridedSlice", "Transpose", "Unpack")  # fmt: skip
_REFERENCES = ("VariableV2", "Variable")

_UPDATES = ("Assign", "AssignAdd", "AssignSub", "CountUpTo")
_VARIABLES = ("VariableV2", "VarHandleOp")
_INTO_FRAMES = ("RefEnter", "RefSwitch")  # by which an update in a condition or a loop gets it


def order_global_step(fetches: Any, is_tpu_estimator: bool) -> None:
    """Has updates of the global step wait for what reads it, or the reads for the updates;
    `fetches` are what every step runs, and a TPUEstimator's step has rule 3."""
    global_step = tf.train.get_global_step()
    if hasattr(global_step, "handle"):  # a resource: `variable_versions` orders its reads
        return
    run, framed = _run_by(fetches)
    reads, updates = _uses_of_global_step(global_step, run)
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
                seeing = _last_made(seeing, reads, update, run)
            for reader in seeing:
                reader._add_control_input(update)
        after = set(graph_walk.all_after([update]))
        # Rule 1, and what rule 3 leaves: the update waits for all other reads.
        update._add_control_inputs([r for r in reads if r not in after and r not in before])


def _last_made(readers, reads, update, run):
    """Returns the readers of the last read, if it was made before an update, or an empty list."""
    number_of = {operation: number for number, operation in enumerate(run)}
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
        while isinstance(source, tf.Tensor) and source.op.type in _SHARE_MEMORY:
            source = source.op.inputs[0]
        shares = isinstance(source, tf.Tensor | tf.Variable) and source.op is global_step.op
        return tf.raw_ops.DeepCopy(x=tensor) if shares else tensor

    return tf.nest.map_structure(copy, tensors)


def _uses_of_global_step(global_step, run):
    """Returns a dict of the operations that read the global step -> the first operation by which
    each gets the value, and a list of the operations that update it, both of those in `run`."""
    reads, updates = {}, []
    (reference,), value = global_step.op.outputs, global_step.value().op
    for operation, _, first in _users(global_step.op, run, _SHARE_MEMORY, value):
        if operation.type in _UPDATES + _INTO_FRAMES and operation.inputs[0] is reference:
            updates.append(operation)
        elif operation.type not in _SHARE_MEMORY:
            reads[operation] = first
    return reads, updates


def order_references(fetches: Any) -> None:
    """Adds the control dependencies to the default graph, for a step that runs `fetches`; nothing
    waits for operations in a condition or a loop of the old kind."""
    run, framed = _run_by(fetches)
    weights = {v.op for v in tf.trainable_variables() if v.op.type in _REFERENCES}
    sources = {operation: _sources(operation) for operation in run}
    uses = [_uses(operation, run, framed) for operation in run if operation in weights]
    # Integers as sets of operations: a graph has thousands of them, and each is asked for all that
    # come before it.
    operations = dict.fromkeys(operation for use in uses for part in use for operation in part)
    bit_of = {operation: 1 << number for number, operation in enumerate(operations, start=1)}
    seen, depth = _seen(sources, bit_of)
    waiting = collections.defaultdict(list)  # update -> operations that it is to wait for

    def add(update, first):
        # One already comes after the other.
        if not (seen[update] & bit_of[first] or seen[first] & bit_of[update]):
            waiting[update].append(first)

    for readers, updates in uses:
        of_batch = [update for update in updates if seen[update] & _BATCH]
        for update in of_batch:
            for reader in readers:
                add(update, reader)
        others = [update for update in updates if update not in of_batch]
        # The order in which they usually become ready.
        in_turn = [*sorted(others, key=depth.get), *sorted(of_batch, key=depth.get)]
        for first, second in itertools.pairwise(in_turn):
            add(second, first)
    _wait(sources, waiting)


def put_updates_first(fetches: Any, apart: Any) -> None:
    """Orders a run that does not train, which may have variables of both kinds; the arguments are
    as for `variable_versions.order`."""
    variable_versions.order(fetches, updates_first=True, apart=apart)
    # The order is rule 5 of `variable_uses`, which TensorFlow 1.15.5 usually has, too.
    run, framed = _run_by(fetches)
    may_wait = variable_versions.may_wait_in(apart)
    sources = {operation: _sources(operation) for operation in run}
    waiting = collections.defaultdict(list)  # operation -> operations that it is to wait for
    pairs = []  # of an update and a reader that is to come after it
    for variable in (each for each in run if each.type in _REFERENCES):
        readers, updates = _uses(variable, run, framed)
        updates.sort(key=list(run).index)
        for first, second in itertools.pairwise(updates):
            if may_wait(second, first):
                waiting[second].append(first)
        for update in updates:
            before = set(graph_walk.all_before([update]))
            pairs += [(update, r) for r in readers if r not in before and may_wait(r, update)]
    if not pairs and not waiting:
        return
    together = {operation: [*before, *waiting[operation]] for operation, before in sources.items()}
    for update, reader in pairs:
        together[reader].append(update)
    # If all readers waited, some would wait for each other: in a circle, the update waits instead.
    circles = variable_uses.in_circles(together)
    for update, reader in pairs:
        first, second = (reader, update) if reader in circles else (update, reader)
        if may_wait(second, first):
            waiting[second].append(first)
    _wait(sources, waiting)


def _run_by(fetches):
    """Returns a dict whose keys are the operations that run for `fetches`, in order of
    construction, and the names of those in a condition or a loop of the old kind."""
    before = set(graph_walk.all_before(graph_walk.operations_of(fetches)))
    run = {each: None for each in tf.get_default_graph().get_operations() if each in before}
    return run, variable_versions.in_frames(run)


def _wait(sources, waiting):
    """Has operations wait for others, except where they would wait for each other in a circle;
    `sources` says what each waits for already, `waiting` what it is to wait for."""
    # Reads of two variables may each come after the update of the other one.
    circles = variable_uses.in_circles(
        {o: [*before, *waiting.get(o, ())] for o, before in sources.items()}
    )
    for operation, firsts in waiting.items():
        in_order = operation not in circles
        operation._add_control_inputs([o for o in firsts if in_order or o not in circles])


def _uses(variable, run, framed):
    """Returns two lists of operations: the readers of a variable, and its updates."""
    readers, updates = [], []
    for operation, tensor, _ in _users(variable, run, _MAY_SHARE_MEMORY):
        if operation.name not in framed:
            is_update = tensor.op is variable and _may_write(operation, tensor)
            (updates if is_update else readers).append(operation)
    return readers, updates


def _users(variable, run, sharing, value=None):
    """Yields (operation, tensor that it takes, first operation on the way, apart from `value`) of
    the operations in `run` that get a variable's memory, also through types that are `sharing`
    it."""
    known, waiting = set(), [(output, None) for output in variable.outputs]
    while waiting:
        tensor, first = waiting.pop()
        for operation in tensor.consumers():
            if operation not in known and operation in run:
                known.add(operation)
                start = first or (None if operation is value else operation)
                # What takes the output may read the memory later than the operation itself.
                if operation.type in sharing:
                    waiting += [(output, start) for output in operation.outputs]
                yield operation, tensor, start


def _may_write(operation, reference):
    """Returns whether an operation may write to a variable, whose reference is an input of it."""
    if operation.type == "IsVariableInitialized" or operation.type.startswith("Ref"):
        return False
    arguments = operation.op_def.input_arg
    if len(arguments) != len(operation.inputs):  # It has lists of inputs.
        return any(argument.is_ref for argument in arguments)
    pairs = zip(arguments, operation.inputs, strict=True)
    return any(argument.is_ref and tensor is reference for argument, tensor in pairs)


def _sources(operation):
    """Returns the operations that an operation waits for, apart from the last turn of a loop."""
    sources = [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    return [
        source for source in sources if source.type not in ("NextIteration", "RefNextIteration")
    ]


_BATCH = 1  # the bit that says that an operation depends on the batch, or on random numbers


def _seen(sources, bit_of):
    """Returns two dicts: operation -> the bits of the operations that it comes after, as one
    integer; and operation -> how many operations come before it, one after the other."""
    seen, depth = {}, {}
    for operation in variable_uses.sorted_by(sources):
        bits = _BATCH if _draws(operation) else 0
        for source in sources[operation]:
            bits |= seen[source] | bit_of.get(source, 0)
        seen[operation] = bits
        depth[operation] = max((depth[source] + 1 for source in sources[operation]), default=0)
    return seen, depth


def _draws(operation):
    """Returns whether an operation gives another value each time: a batch, or random numbers."""
    if operation.type.startswith("Placeholder"):
        return True
    takes_reference = any(argument.is_ref for argument in operation.op_def.input_arg)
    is_variable = operation.type in (*_REFERENCES, "VarHandleOp", *variable_uses.READERS)
    return operation.op_def.is_stateful and not (takes_reference or is_variable)
