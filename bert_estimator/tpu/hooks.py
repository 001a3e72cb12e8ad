"""Drives SessionRunHooks around loops of steps, as MonitoredSession does around a session.run."""

import collections

import tensorflow.compat.v1 as tf

HookRun = collections.namedtuple("HookRun", ["fetches", "feed_dict", "options", "run_metadata"])
HookRun.__doc__ = """What the hooks want evaluated at a loop's end, in one `session.run`.

Fields: fetches (a dict, possibly empty), feed_dict, options (RunOptions or None), run_metadata.
"""


class HookDriver:
    """Calls hooks in the order of `tf.train.MonitoredSession`: begin, after_create_session,
    before_run and after_run around every loop, end.

    Args:
      hooks: list of `tf.train.SessionRunHook`.
    """

    def __init__(self, hooks):
        self._hooks = list(hooks)
        self.stop_requested = False

    def begin(self):
        for hook in self._hooks:
            hook.begin()

    def after_create_session(self, session, coordinator):
        for hook in self._hooks:
            hook.after_create_session(session, coordinator)

    def around(self, session, original_fetches, run_loop):
        """Runs one loop of steps with the hooks around it.

        Args:
          original_fetches: what `run_context.original_args` shows to the hooks.
          run_loop: function of a `HookRun` that runs the loop and returns (result, values), the
            values of `HookRun.fetches` seen at the loop's end.

        Returns:
          The result of `run_loop`.
        """
        context = tf.train.SessionRunContext(tf.train.SessionRunArgs(original_fetches), session)
        fetches, feed_dict, options = {}, {}, None
        for hook in self._hooks:
            request = hook.before_run(context)
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
        result, values = run_loop(HookRun(fetches, feed_dict, options, metadata))
        for hook in self._hooks:
            hook.after_run(
                context,
                tf.train.SessionRunValues(
                    results=values.get(hook), options=options, run_metadata=metadata
                ),
            )
        self.stop_requested |= context.stop_requested
        return result

    def end(self, session):
        for hook in self._hooks:
            hook.end(session)
