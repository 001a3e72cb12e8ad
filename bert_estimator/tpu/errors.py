"""Errors of training, and a way to carry the first error of several threads to the caller."""

import contextlib
import threading
from collections.abc import Iterator

import tensorflow.compat.v1 as tf


class _ErrorAtStep(RuntimeError):
    def __init__(self, message: str, step: int | None = None):
        super().__init__(message)
        self.step = step


class NanLossDuringTrainingError(_ErrorAtStep, tf.train.NanLossDuringTrainingError):
    """The loss of a training step is not a finite number.

    Attributes:
      step: the global step after that training step.
    """

    __str__ = RuntimeError.__str__  # TensorFlow's class always prints the same text.


class NonFiniteWeightsError(_ErrorAtStep):
    """A weight is not a finite number, so the last good checkpoint was not replaced.

    Attributes:
      step: the global step at which the weight was seen.
    """


class DataEndedError(tf.errors.OutOfRangeError):
    """The data of a training or an evaluation by the TPU's rules ended before the steps did."""

    def __init__(self, message: str):
        super().__init__(None, None, message)


class NoWholeCheckpointError(ValueError):
    """A directory has checkpoints of a later step than 0, but none of them is complete."""


class CheckpointGoneError(ValueError):
    """A checkpoint was removed while it was opened, as the training that writes it does."""


class VariablesMissingError(tf.errors.NotFoundError, ValueError):
    """A checkpoint lacks variables of a model, which is TensorFlow's NotFoundError in a restore."""

    def __init__(self, message: str):
        tf.errors.NotFoundError.__init__(self, None, None, message)


class VariablesDifferError(tf.errors.InvalidArgumentError, ValueError):
    """A checkpoint's variables have other shapes or types; TensorFlow's InvalidArgumentError."""

    def __init__(self, message: str):
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)


class FirstError:
    """Keeps the first error of several threads, so that a cause is raised, not its effects."""

    def __init__(self):
        self._lock = threading.Lock()
        self._error = None

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Records the exception of the `with` statement's body, a thread's, and suppresses it."""
        try:
            yield
        except BaseException as error:
            self.record(error)

    def record(self, error: BaseException) -> None:
        with self._lock:
            # When an error closes the session, the threads that wait in it are cancelled, and a
            # cancellation may be recorded before its cause: so any other error replaces it.
            if self._error is None or _is_cancellation(self._error) > _is_cancellation(error):
                self._error = error

    def __bool__(self):
        return self._error is not None

    def raise_if_any(self) -> None:
        if self._error is not None:
            raise self._error


def _is_cancellation(error):
    return isinstance(error, tf.errors.CancelledError)
