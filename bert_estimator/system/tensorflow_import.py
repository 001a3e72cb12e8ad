"""How commands import TensorFlow: without its start-up messages, and without Keras and jax."""

import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

from bert_estimator.system import memory, native_log, standard_streams

# TensorFlow's own import also imports Keras (one of the two), and jax for TensorFlow Lite's
# converter. It takes over 50 % longer with them, and TensorFlow works without them.
_EAGER = ("keras.src.optimizers", "tf_keras.src.optimizers", "jax")


def prepare() -> None:
    """Makes the next import of TensorFlow quiet and quick. Call it before TensorFlow is imported.

    What the import makes stays, so Python's garbage collector leaves it alone. Besides, all threads
    of the process share one arena of memory (see `malloc`), and standard streams that are closed
    are opened (see `standard_streams`).

    `tf.keras` imports Keras when it is first used. jax can be imported afterwards, but
    `tf.lite.TFLiteConverter.experimental_from_jax` does not work in this process.
    """
    standard_streams.prepare()
    memory.share_one_arena()
    native_log.quiet()
    sys.meta_path.insert(0, _WithoutEager())


class _WithoutEager(importlib.abc.MetaPathFinder):
    """Finds TensorFlow, once, and hides Keras and jax from it while it is being imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = functools.partial(_without_eager, execute)
        return spec


def _without_eager(execute, module):
    hidden = [name for name in _EAGER if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # None: an import of it fails
    try:
        with memory.paused():
            execute(module)
        gc.freeze()  # Later collections don't search what was imported.
    except ImportError as error:
        if _is_interrupted(error):
            raise KeyboardInterrupt from error
        raise
    finally:
        for name in hidden:
            del sys.modules[name]


def _is_interrupted(error):
    """Returns whether Ctrl-C is behind an error: TensorFlow's C++ modules make an error of it."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__
    return False
