"""Imports modules of the tensorflow-estimator package on today's TensorFlow.

The package's last release, 2.15, needs a TensorFlow that has tf.estimator. Its heads and canned
estimators are imported from where it is installed. What lies beneath them (Estimator, RunConfig,
EstimatorSpec, exports, training) comes from this project, by the table in `names.py`.
"""

import builtins
import functools
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import types
from collections.abc import Callable
from typing import Any

PACKAGE = "tensorflow_estimator.python.estimator"
INSTALL = "needs the tensorflow-estimator package: pip install 'bert-estimator[estimator]'"


@functools.cache
def folder() -> str | None:
    """Returns the folder of the installed package's `PACKAGE`; None if it is not installed."""
    try:
        distribution = importlib.metadata.distribution("tensorflow-estimator")
    except importlib.metadata.PackageNotFoundError:
        return None
    return str(distribution.locate_file(PACKAGE.replace(".", "/")))


def lacks(module: str) -> bool:
    """Returns whether a module would come from the package, which is not installed."""
    return module.startswith(PACKAGE + ".") and folder() is None


def member(module: str, name: str) -> Any:
    """Returns a name of a module of the package, as TensorFlow 1's programs see it."""
    if folder() is None:
        raise ImportError(f"{PACKAGE}.{module} {INSTALL}")
    return getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)


def estimator_export(*args: str, **kwargs: Any) -> Callable:
    """Returns a decorator without effect: canned estimators name their place in TensorFlow."""
    return lambda exported: exported


def spec_of(name: str) -> importlib.machinery.ModuleSpec | None:
    """Returns how to import the package's module of a full name; None if the package lacks it."""
    if not name.startswith(PACKAGE + ".") or folder() is None:
        return None
    packages = name.removeprefix(PACKAGE + ".").split(".")[:-1]
    # The package's TPUEstimator needs TensorFlow's own TPU runtime.
    if packages[:1] == ["tpu"]:
        return None
    spec = importlib.machinery.PathFinder.find_spec(name, [os.path.join(folder(), *packages)])
    if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
        spec.loader = _Loader(spec.loader.name, spec.loader.path)
    return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module for which `import tensorflow` gives TensorFlow 2's names."""

    def exec_module(self, module: types.ModuleType) -> None:
        # The package is written for these names: TensorFlow 1's are `tf.compat.v1.X` in it. An
        # `__import__` of the module's own leaves `import tensorflow` in the script alone.
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


def _import(
    name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
) -> types.ModuleType:
    if name == "tensorflow" and level == 0 and not fromlist:
        return importlib.import_module("tensorflow.compat.v2")
    return builtins.__import__(name, globals, locals, fromlist, level)
