"""The torture (`tests/torture`) kills runs within functions that it names."""

import importlib.util
import pathlib
import pydoc

import pytest

_PROCESS = pathlib.Path(__file__).parent.parent / "torture" / "process.py"


def test_the_named_functions_exist():
    pytest.importorskip("jax")
    spec = importlib.util.spec_from_file_location("torture_process", _PROCESS)
    process = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(process)
    for place, function in process.PLACES.items():
        assert callable(pydoc.locate(function.replace(":", "."))), place
