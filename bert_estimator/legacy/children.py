"""Processes that a TF1 script starts by `multiprocessing`, by the methods spawn and forkserver.

Such a process is a new Python, which first runs the script's top level with `__name__`
"__mp_main__". TensorFlow has to be made what it is for the script there, too, before that.
"""

import contextlib
import importlib
import multiprocessing.spawn
import os
import runpy
from collections.abc import Iterator
from typing import Any

import bert_estimator.legacy
from bert_estimator.legacy import modules

# Holds which main module the parent has, as multiprocessing says it: KIND=NAME.
_VARIABLE = "BERT_ESTIMATOR_LEGACY_MAIN"
# Holds the version of TensorFlow that the parent's script has: 1 or 2.
_VERSION = "BERT_ESTIMATOR_LEGACY_TENSORFLOW"
_BY_NAME, _BY_PATH = "init_main_from_name", "init_main_from_path"
_CHILDREN = "bert_estimator.legacy.children"
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@contextlib.contextmanager
def following() -> Iterator[None]:
    """Surrounds a script's run: the processes that it starts run TensorFlow 1, too."""
    before = multiprocessing.spawn.get_preparation_data
    multiprocessing.spawn.get_preparation_data = _through_children(before)
    try:
        yield
    finally:
        multiprocessing.spawn.get_preparation_data = before


def become_main(namespace: dict[str, Any]) -> None:
    """Fills the namespace of a child's main module as plain Python would, on TensorFlow 1."""
    bert_estimator.legacy.install(tf2=os.environ[_VERSION] == "2")
    multiprocessing.spawn.get_preparation_data = _through_children(
        multiprocessing.spawn.get_preparation_data
    )
    content = _run(*os.environ[_VARIABLE].split("=", 1))
    namespace.clear()
    namespace.update(content)


def _through_children(get_preparation_data):
    """Returns a `get_preparation_data` whose processes have this module run the main module."""

    def get(name):
        data = get_preparation_data(name)
        # multiprocessing would run the script in plain Python. It runs this module instead, which
        # reads in the environment what to run.
        mains = [(key, data.pop(key)) for key in (_BY_NAME, _BY_PATH) if key in data]
        os.environ[_VERSION] = "2" if modules.is_of_2() else "1"
        os.environ[_VARIABLE] = "=".join(*mains or [(_BY_NAME, "__main__")])
        data[_BY_NAME] = _CHILDREN
        if _ROOT not in data["sys_path"]:
            data["sys_path"] = [*data["sys_path"], _ROOT]
        return data

    return get


def _run(kind, main):
    """Runs a main module as `multiprocessing.spawn.prepare` does; returns its namespace."""
    if kind == _BY_PATH:
        return runpy.run_path(main, run_name="__mp_main__")
    if f".{main}".endswith(".__main__"):  # of packages and directories; these are not run again
        return {}
    return runpy.run_module(main, run_name="__mp_main__", alter_sys=True)


if __name__ == "__mp_main__":
    # Not by this run's own functions, whose namespace becomes the main module's.
    importlib.import_module(_CHILDREN).become_main(globals())
