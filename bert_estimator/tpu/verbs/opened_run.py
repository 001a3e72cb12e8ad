"""Opens a run for the verbs: a graph with a step built in it, a session, and the hooks."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

import tensorflow.compat.v1 as tf
from tensorflow.python.ops import summary_ops_v2

from bert_estimator.graph import graph_walk, patches
from bert_estimator.system import memory, ticker
from bert_estimator.tpu import warm_start
from bert_estimator.tpu.spec import ModeKeys
from bert_estimator.tpu.step import feeds
from bert_estimator.tpu.step.hooks import HookDriver
from bert_estimator.tpu.verbs import checkpoints, interrupts

# How many seconds a session may take to close. A busy machine needs a while, but nobody wants to
# wait for an input_fn that hangs.
_CLOSE_SECS, _CLOSE_SECS_OF_HUNG_INPUT = 60, 2

# The collections of operations that check that variables are initialized.
_READINESS = (tf.GraphKeys.READY_OP, tf.GraphKeys.READY_FOR_LOCAL_INIT_OP)

# TensorFlow's collection of the tensor by which its hooks read the global step.
_GLOBAL_STEP_READS = "global_step_read_op_cache"


class BuiltRun:
    """Builds a job's step in a graph of its own, with the random seed and the global step; after
    `add_hooks`, it may run in sessions of the graph."""

    def __init__(self, job, step_class: type, input_fn: Callable, start_step: int):
        patches.read_on_request()
        self.job, self.graph = job, tf.Graph()
        with memory.paused(), self._saying("Building the model"), self.building():
            tf.set_random_seed(job.config.tf_random_seed)
            # By the TPU's rules the global step is a resource, even after
            # tf.disable_v2_behavior(). In local mode it is what all other variables are.
            is_resource = True if job.tpu_rules else None
            with tf.variable_scope(tf.get_variable_scope(), use_resource=is_resource):
                self._global_step = tf.train.create_global_step()
            self.step = step_class(job, input_fn, start_step)

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Makes the graph the default graph, on the devices that the configuration asks for."""
        with self.graph.as_default(), tf.device(self.job.config.device_fn):
            yield

    def _saying(self, doing):
        return ticker.every(self.job.config.log_every_secs, ticker.so_far(doing))

    def add_hooks(self, checkpoint: str | None, make_hooks: Callable) -> None:
        """Adds what sessions run besides the step: the saver, and what the hooks add."""
        step = self.step
        with memory.paused(), self.building():
            if checkpoint is None:
                # It replaces initializers, so it comes before the saver and the hooks take them.
                warm_start.apply(self.job.warm_start)
            self._holds_all = checkpoints.ensure_saver(step.spec.scaffold, self.job.config)
            steps_read_before = tf.get_collection(_GLOBAL_STEP_READS)
            hooks = make_hooks(step)
            self.driver = HookDriver(hooks, step.element_of_step, self.job.hosts.number == 1)
            self._init_ops = summary_ops_v2.summary_writer_initializer_op()
            # After the model_fn and the hooks, which make the writers.
            self._flush_ops = feeds.summary_writer_flush_ops()
            self.driver.begin()
            if checkpoint is None:
                warm_start.read_after_restoring()
            # A hook may have given operations, too.
            self._scaffold = _scaffold_of(self.job, step)
            self._is_default = self._holds_all and _skip_readiness(step.spec.scaffold)
            # A fetch that hooks run, too, takes no time when it is run again. A read that the
            # model_fn made is not taken: it may wait for something of the step.
            reads = [] if steps_read_before else tf.get_collection(_GLOBAL_STEP_READS)
            self._global_step = reads[0] if reads else self._global_step

    @contextlib.contextmanager
    def session_of(self, checkpoint: str | None) -> Iterator[tf.Session]:
        """Gives a session with the variables of a checkpoint, or with their initial values."""
        with contextlib.ExitStack() as at_end:
            with self._having_values_of(checkpoint):
                opened = opened_session(self.job, self._scaffold, checkpoint, self._is_default)
                session = at_end.enter_context(opened)
            # The graph is not the default graph in the caller's block: a generator may leave the
            # block for a while.
            yield session

    def restore(self, session: tf.Session, checkpoint: str) -> None:
        """Gives the variables of a session the values that a new session would have."""
        with self._having_values_of(checkpoint):
            self._scaffold.saver.restore(session, checkpoint)
            session.run(self._scaffold.local_init_op, self._scaffold.local_init_feed_dict)

    @contextlib.contextmanager
    def _having_values_of(self, checkpoint):
        """Surrounds the restoring of a checkpoint, which is checked before."""
        what = "Initializing" if checkpoint is None else "Restoring"
        with self.graph.as_default(), self._saying(f"{what} the variables"):
            if checkpoint and self._holds_all:
                checkpoints.check_restorable(checkpoint, tf.global_variables())
            if checkpoint:
                checkpoints.warn_unless_finite(checkpoint, tf.global_variables())
            yield

    @contextlib.contextmanager
    def running(
        self, session: tf.Session, finishing: Callable = contextlib.nullcontext
    ) -> Iterator["BuiltRun"]:
        """Gives this run while it is in a session whose variables have their values."""
        with contextlib.ExitStack() as at_end:
            at_end.callback(setattr, self, "session", None)  # It may hold values on devices.
            with self.graph.as_default():
                # What hooks see.
                self.session = session = self.step.host_session(session)
                # The callbacks run in the reverse order: the hooks' context ends first, then the
                # queues' threads, then the step's.
                at_end.callback(self.step.stop, session)
                session.run(self._init_ops)
                coordinator = tf.train.Coordinator()
                # The input_fn may have made queues.
                if tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS):
                    tf.train.start_queue_runners(session, coordinator)
                at_end.callback(coordinator.request_stop)
                at_end.enter_context(finishing())
                self.driver.after_create_session(session, coordinator)
            yield self

    def global_step(self) -> int:
        """Returns the present value of the global step."""
        return int(self.session.run(self._global_step))

    def end(self) -> None:
        """Calls the hooks' `end`, and flushes the event writers."""
        self.driver.end(self.session)
        self.session.run(self._flush_ops)


@contextlib.contextmanager
def opened_run(
    job,
    step_class: type,
    input_fn: Callable,
    checkpoint: str | None,
    make_hooks: Callable,
    finishing: Callable = contextlib.nullcontext,
) -> Iterator[BuiltRun]:
    """Builds a job's step and opens a session, which is closed at the end, even after an error.

    Args:
      checkpoint: path prefix of the checkpoint to restore, or None: then variables have their
        initial values, or the values of the job's warm start.
      make_hooks: function of the built step that returns the list of hooks, in the order of their
        visits. It may still add operations to the graph, which is then finalized.
      finishing: function that returns a context manager, called when the variables have their
        values. It surrounds all that the hooks do in the session, and is left before the session is
        closed.
    """
    run = BuiltRun(job, step_class, input_fn, checkpoints.global_step_of(checkpoint))
    run.add_hooks(checkpoint, make_hooks)
    with run.session_of(checkpoint) as session, run.running(session, finishing):
        yield run


class KeptRun:
    """Opens a run for one checkpoint after the other: the graph is built once, and its session
    stays open. The input_fn must return a Dataset, which starts over for each checkpoint."""

    def __init__(self, job, step_class: type, input_fn: Callable):
        self._job, self._step_class, self._input_fn = job, step_class, input_fn
        self._session = None  # while it is open
        self._run, self._release = None, []
        self._at_end = contextlib.ExitStack()
        interrupts.close(self)

    @contextlib.contextmanager
    def opened(self, checkpoint: str | None, make_hooks: Callable) -> Iterator[BuiltRun]:
        """Does the same as `opened_run`, and calls `make_hooks` when it builds the graph: the same
        hooks serve every checkpoint, with one call of `begin`."""
        try:
            # Initial values come from a new graph: random operations do not repeat their values in
            # a session.
            if checkpoint is None or self._session is None:
                self.close()
                self._open(checkpoint, make_hooks)
            else:
                self._run.restore(self._session, checkpoint)
            with self._run.running(self._session) as run:
                yield run
            # Between two checkpoints the memory of the variables is free.
            self._session.run(self._release)
        except BaseException:
            # After an error the state of the session is unknown, so the graph is built anew.
            self.close()
            raise

    def _open(self, checkpoint, make_hooks):
        def make_hooks_and_release(step):
            if not step.restarts:
                raise ValueError(
                    "kept_evaluation needs an input_fn that returns a Dataset: tensors would go on "
                    "where the last evaluation ended. Return a Dataset, or call evaluate for each "
                    "checkpoint"
                )
            variables = [v.handle for v in tf.global_variables() if hasattr(v, "handle")]
            self._release = [tf.raw_ops.DestroyResourceOp(resource=handle) for handle in variables]
            return make_hooks(step)

        start_step = checkpoints.global_step_of(checkpoint)
        self._run = BuiltRun(self._job, self._step_class, self._input_fn, start_step)
        self._run.add_hooks(checkpoint, make_hooks_and_release)
        self._session = self._at_end.enter_context(self._run.session_of(checkpoint))

    def close(self) -> None:
        """Closes the session, if it is open; the next checkpoint opens another one."""
        self._session, self._run, self._release = None, None, []
        self._at_end.close()


def _skip_readiness(scaffold):
    """Leaves the check that all variables are initialized out, if it cannot fail; returns whether
    all operations that initialize and check are the defaults."""
    # The defaults cover every variable, and so does our saver. The check takes two operations for
    # each variable, and runs twice.
    own = (scaffold.init_op, scaffold.local_init_op)
    collected = (tf.GraphKeys.INIT_OP, tf.GraphKeys.LOCAL_INIT_OP)
    if any(op is not None for op in own) or any(map(tf.get_collection, collected)):
        return False
    checks = (scaffold.ready_op, scaffold.ready_for_local_init_op)
    is_default = True
    for key, check in zip(_READINESS, checks, strict=True):
        if check is None and not tf.get_collection(key):
            # Or else the scaffold would make the check.
            tf.add_to_collection(key, tf.zeros([0], tf.string, name=key))
        else:
            is_default = False
    return is_default


def _scaffold_of(job, step):
    """Returns a step's scaffold, whose local_init_op initializes the variables of an evaluation."""
    scaffold = step.spec.scaffold
    own = [scaffold.local_init_op] if scaffold.local_init_op is not None else []
    own = own or tf.get_collection(tf.GraphKeys.LOCAL_INIT_OP)
    if job.mode != ModeKeys.EVAL or not own:
        return scaffold
    # The model_fn's own operation does not know the metrics' variables and the eval step.
    everything = tf.group(own, tf.train.Scaffold.default_local_init_op())
    return tf.train.Scaffold(local_init_op=everything, copy_from_scaffold=scaffold)


@contextlib.contextmanager
def opened_session(
    job, scaffold: tf.train.Scaffold, checkpoint: str | None, is_default: bool = False
) -> Iterator[tf.Session]:
    """Gives a session of the current graph with the variables of a checkpoint (None: with initial
    values); if `is_default`, initialization and checks are left out when there is nothing to do."""
    scaffold.finalize()
    # `tf.train.ChiefSessionCreator` does the same, but it also runs operations that do nothing. In
    # the graph of a large network, each run takes a tenth of a second.
    before = graph_walk.all_before(graph_walk.operations_of(scaffold.local_init_op))
    does_nothing = is_default and all(operation.type == "NoOp" for operation in before)
    manager = tf.train.SessionManager(
        local_init_op=None if does_nothing else scaffold.local_init_op,
        ready_op=None if is_default else scaffold.ready_op,
        ready_for_local_init_op=None if is_default else scaffold.ready_for_local_init_op,
        local_init_feed_dict=scaffold.local_init_feed_dict,
    )
    session = manager.prepare_session(
        master="",
        init_op=scaffold.init_op,
        saver=scaffold.saver,
        checkpoint_filename_with_path=checkpoint,
        config=job.config.session_settings(training=job.mode == ModeKeys.TRAIN),
        init_feed_dict=scaffold.init_feed_dict,
        init_fn=scaffold.init_fn,
    )
    with _closed_in_time(session):
        yield session


@contextlib.contextmanager
def _closed_in_time(session):
    """Closes a session after the block, but does not wait for it for ever."""
    # Closing waits for Python functions that run in the session, for example because a dataset
    # calls them ahead of time. If a function of an input_fn never returns, the caller must still
    # get the error.
    ends = threading.Event()

    def close():
        ends.wait()
        session.close()

    # The thread is there from the start, since a process that ends cannot start one.
    closing = threading.Thread(target=close, name="closing", daemon=True)
    closing.start()
    secs = _CLOSE_SECS
    try:
        yield
    except GeneratorExit:  # Nobody wants the rest of the data.
        secs = _CLOSE_SECS_OF_HUNG_INPUT
        raise
    finally:
        ends.set()
        # An infeed that outlived `stop` hangs in its draw.
        if any(thread.name == "infeed" for thread in threading.enumerate()):
            secs = _CLOSE_SECS_OF_HUNG_INPUT
        if not sys.is_finalizing():  # or else threads do not run any more
            closing.join(secs)
