"""Gives TensorFlow's timers a clock that nobody sets.

TensorFlow's hooks, savers and waits measure intervals by the wall clock. When that is set back by
an hour, no checkpoint is due by seconds for an hour.
"""

import importlib
import time

# These modules measure intervals with `time.time`. What files carry as a time is written elsewhere.
_MODULES = (
    "tensorflow.python.checkpoint.checkpoint_management",  # tf.train.CheckpointManager
    "tensorflow.python.summary.writer.event_file_writer",  # how often event files are flushed
    "tensorflow.python.training.basic_session_run_hooks",  # SecondOrStepTimer, for all hooks
    "tensorflow.python.training.checkpoint_utils",  # tf.train.checkpoints_iterator
    "tensorflow.python.training.coordinator",
    "tensorflow.python.training.saver",  # keep_checkpoint_every_n_hours
    "tensorflow.python.training.session_manager",
    "tensorflow.python.training.supervisor",
)

_AHEAD = time.time() - time.monotonic()  # of the monotonic clock, in seconds


def now() -> float:
    """Returns seconds since 1970, by the wall clock's setting when this module was imported."""
    return _AHEAD + time.monotonic()


def install() -> None:
    """Has TensorFlow's timers ask this clock. Only the first call has an effect."""
    for name in _MODULES:
        module = importlib.import_module(name)
        if module.time is time:
            module.time = _SteadyTime()


class _SteadyTime:
    """Stands for the module `time`, whose other functions it has."""

    time = staticmethod(now)

    def __getattr__(self, name):
        return getattr(time, name)
