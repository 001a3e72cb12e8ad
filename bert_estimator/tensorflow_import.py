"""How commands import TensorFlow: without its start-up messages, and without Keras."""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

from bert_estimator import native_log

# TensorFlow imports one of these at the end of its own import, which takes almost half as long
# again, and goes on if it is not installed.
_EAGER_KERAS = ("keras.src.optimizers", "tf_keras.src.optimizers")


def prepare() -> None:
    """Has this process import TensorFlow quietly and quickly. It must not be imported yet.

    `tf.keras` imports Keras when it is first used.
    """
    native_log.quiet()
    sys.meta_path.insert(0, _WithoutKeras())


class _WithoutKeras(importlib.abc.MetaPathFinder):
    """Finds TensorFlow, once, and hides Keras from it while it is being imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = functools.partial(_without_keras, execute)
        return spec


def _without_keras(execute, module):
    hidden = [name for name in _EAGER_KERAS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # None: an import of it fails
    try:
        execute(module)
    finally:
        for name in hidden:
            del sys.modules[name]
