"""Errors that cross threads, and errors of training itself. The first error wins."""

import contextlib
import threading

import tensorflow.compat.v1 as tf


class NanLossDuringTrainingError(tf.train.NanLossDuringTrainingError):
    """The loss of a training step is not a finite number."""

    __str__ = RuntimeError.__str__  # TensorFlow's says the same of all


class NonFiniteWeightsError(RuntimeError):
    """A weight is not a finite number, so no checkpoint was written over the last good one."""


class NoWholeCheckpointError(ValueError):
    """A training has come far, and none of its checkpoints can be read."""


class FirstError:
    """Keeps the first error of several threads, so that the cause is raised, not what it caused.

    A cancellation is what closing a session does to whoever waits in it: any other error outranks
    it, whichever came first.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._error = None

    @contextlib.contextmanager
    def recorded(self):
        """Runs a thread's body: its exception is recorded rather than printed and lost."""
        try:
            yield
        except BaseException as error:
            self.record(error)

    def record(self, error):
        with self._lock:
            if self._error is None or _is_cancellation(self._error) > _is_cancellation(error):
                self._error = error

    def __bool__(self):
        return self._error is not None

    def raise_if_any(self):
        if self._error is not None:
            raise self._error


def _is_cancellation(error):
    return isinstance(error, tf.errors.CancelledError)
