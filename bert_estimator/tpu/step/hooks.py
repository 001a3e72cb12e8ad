"""Drives SessionRunHooks around loops of steps, as MonitoredSession does around a session.run."""

import collections
import contextlib
import re

import tensorflow.compat.v1 as tf

from bert_estimator.graph.graph_walk import is_computed_from
from bert_estimator.tpu import errors
from bert_estimator.tpu.step.feeds import EndOfInput

# A hook that raises one of these asks to stop, as in `tf.train.MonitoredSession`.
_ENDS = (StopIteration, tf.errors.OutOfRangeError)

HookRun = collections.namedtuple("HookRun", ["fetches", "feed_dict", "options", "run_metadata"])
HookRun.__doc__ = """Says what the hooks fetch at a loop's end, in one `session.run`.

Fields: fetches (a dict, possibly empty), feed_dict, options (RunOptions or None), run_metadata.
"""


class HookDriver:
    """Calls hooks in the order of `tf.train.MonitoredSession`: begin; after_create_session;
    before_run and after_run around every loop; end."""

    def __init__(self, hooks, element_of_step=lambda fetch: None, alone=True):
        self._hooks = list(hooks)
        # `element_of_step` returns what a tensor, an operation or a name means, if it is in the
        # step, where hooks cannot fetch it, else None. If not alone, several hosts must run the
        # same loops.
        self._element_of_step, self._alone = element_of_step, alone
        self._coordinator = tf.train.Coordinator()  # until `after_create_session` gets another
        self.stop_requested = False  # whether a hook has asked to stop, in this session

    def begin(self):
        """Calls the hooks' `begin`."""
        for hook in self._hooks:
            with self._explaining(hook):
                hook.begin()

    def after_create_session(self, session, coordinator):
        """Calls the hooks' `after_create_session`; if one asks the coordinator to stop, no step is
        run."""
        self._coordinator, self.stop_requested = coordinator, False
        for hook in self._hooks:
            with self._explaining(hook):
                hook.after_create_session(session, coordinator)
        self._heed_coordinator()

    def _heed_coordinator(self):
        """Raises the error that the coordinator was given, if any; notes a request to stop."""
        # Hooks and the threads of queues may give it an error, which is raised also in place of the
        # end of the input.
        self._coordinator.raise_requested_exception()
        self.stop_requested |= self._coordinator.should_stop()

    def around(self, session, original_fetches, run_loop):
        """Runs one loop of steps with the hooks around it, by a function of a `HookRun` that
        returns (result, values by hook); returns the result, or None if a hook stopped the run
        before it."""
        context = tf.train.SessionRunContext(tf.train.SessionRunArgs(original_fetches), session)
        hook_run = self._before_run(context)
        if hook_run is None:
            return None
        try:
            result, values = run_loop(hook_run)
        except EndOfInput:
            # Queues are closed when the coordinator is given an error, which looks like the end.
            self._coordinator.raise_requested_exception()
            raise
        self._after_run(context, hook_run, values)
        self.stop_requested |= context.stop_requested
        self._heed_coordinator()
        return result

    def _before_run(self, context):
        """Returns the `HookRun` that the hooks ask for; None to run no further loop."""
        fetches, feed_dict, options = {}, {}, None
        for hook in self._hooks:
            try:
                request = hook.before_run(context)
            except _ENDS as end:
                self._stop(hook, end)
                # With several hosts, the loop is run nevertheless: the others are running it.
                if self._alone:
                    self._heed_coordinator()
                    return None
                continue
            if request is None:
                continue
            if request.fetches is not None:
                fetches[hook] = request.fetches
            for tensor, value in (request.feed_dict or {}).items():
                if tensor in feed_dict:
                    raise RuntimeError(f"Two hooks feed the same tensor {tensor.name}")
                feed_dict[tensor] = value
            if request.options is not None:
                options = options or tf.RunOptions()
                options.MergeFrom(request.options)
        metadata = tf.RunMetadata() if options is not None else None
        return HookRun(fetches, feed_dict, options, metadata)

    def _after_run(self, context, hook_run, values):
        for hook in self._hooks:
            results = tf.train.SessionRunValues(
                results=values.get(hook),
                options=hook_run.options,
                run_metadata=hook_run.run_metadata,
            )
            try:
                hook.after_run(context, results)
            except _ENDS as end:
                self._stop(hook, end)

    def _stop(self, hook, end):
        """Notes that a hook asks to stop by one of `_ENDS`; warns if it may have been an error."""
        # It is an error of a hook that saves, such as a file that is too large, and if it comes
        # from a training or an evaluation that the hook runs.
        if isinstance(end, tf.errors.OutOfRangeError):
            saves = isinstance(hook, tf.train.CheckpointSaverHook)
            if saves or isinstance(end, errors.DataEndedError):
                raise end
            name, reason = type(hook).__name__, str(end.message or "").partition("\n")[0]
            tf.logging.warning("%s ends the run, by an OutOfRangeError: %s", name, reason)
        self.stop_requested = True

    def end(self, session):
        """Calls the hooks' `end`."""
        for hook in self._hooks:
            with self._explaining(hook):
                hook.end(session)

    @contextlib.contextmanager
    def _explaining(self, hook):
        """Raises an error that says so if the block fails at an element of the step itself."""
        try:
            yield
        except (KeyError, ValueError, tf.errors.InvalidArgumentError) as error:
            # TensorFlow's message quotes the name of the tensor or the operation.
            for name in re.findall(r"""['"]([^'" ]+)['"]""", str(error)):
                if (element := self._element_of_step(name)) is not None:
                    raise error_of_fetch(hook, element) from error
            raise


def values_for_hooks(hook_run, session, element_of_step, known=None):
    """Returns the values that the hooks fetch after a loop, a dict by hook; `known` are tensors
    whose values the step has computed."""
    if not hook_run.fetches:
        return {}
    try:
        return session.run(hook_run.fetches, {**(known or {}), **hook_run.feed_dict})
    except (tf.errors.InvalidArgumentError, LookupError, ValueError) as error:
        for hook, fetches in hook_run.fetches.items():
            for fetch in tf.nest.flatten(fetches):
                element = element_of_step(fetch)
                if element is not None:
                    raise error_of_fetch(hook, element) from error
        raise


def check_feeds(feed_dict, used):
    """Raises ValueError if hooks feed what the steps depend on, which do not get feeds; `used` are
    the session's tensors and operations that the steps use."""
    for fed in map(tf.get_default_graph().as_graph_element, feed_dict):
        if any(is_computed_from(each, [fed]) for each in used):
            raise ValueError(
                f"A hook feeds {fed.name}, on which the step depends. With use_tpu=True hooks run "
                "on the host, between loops, and cannot feed a step: make it a variable that the "
                "hook assigns, or use the hook with use_tpu=False only"
            )


def error_of_fetch(hook, element):
    """Returns the error for a hook that asks for a tensor or an operation of the step itself."""
    return ValueError(
        f"The hook {type(hook).__name__} fetches {element.name}, a tensor of the step itself. With "
        "use_tpu=True hooks run on the host, between loops: send the tensor out with host_call, or "
        "use the hook with use_tpu=False only"
    )
