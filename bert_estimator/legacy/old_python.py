"""Puts names back that Python 3.7 had, and that Python 3.8 to 3.13 removed.

These are the names that training scripts use: a script for TensorFlow 1 was written for Python 3.7.
"""

import base64
import collections
import configparser
import fractions
import functools
import html
import html.parser
import importlib
import importlib.util
import inspect
import json
import locale
import math
import random
import shlex
import sys
import threading
import time
import types
import unittest
import xml.etree.ElementTree
from typing import Any

ArgSpec = collections.namedtuple("ArgSpec", "args varargs keywords defaults")


def getargspec(function: Any) -> ArgSpec:
    """Returns the arguments of a function that may be given by position."""
    # Python 3.7's refused annotations and arguments by keyword alone, which functions of libraries
    # have got meanwhile.
    return ArgSpec(*inspect.getfullargspec(function)[:4])


def load_source(name: str, pathname: str, file: Any = None) -> types.ModuleType:
    """Imports a file as a module of a name."""
    spec = importlib.util.spec_from_file_location(name, pathname)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def formatargspec(
    args: list[str], varargs: str | None = None, varkw: str | None = None, defaults: Any = None
) -> str:
    """Returns the text of arguments by position, such as "(a, b=2, *c, **d)"."""
    first_default = len(args) - len(defaults or ())
    texts = [
        name if index < first_default else f"{name}={defaults[index - first_default]!r}"
        for index, name in enumerate(args)
    ]
    texts += [f"*{varargs}"] * bool(varargs) + [f"**{varkw}"] * bool(varkw)
    return f"({', '.join(texts)})"


def make_suite(test_case: type[unittest.TestCase], prefix: str = "test") -> unittest.TestSuite:
    """Returns the tests of a class, whose names begin with the prefix."""
    loader = unittest.TestLoader()
    loader.testMethodPrefix = prefix
    return loader.loadTestsFromTestCase(test_case)


def _assert_dict_contains_subset(test_case, subset, dictionary, msg=None):
    test_case.assertEqual(dictionary, {**dictionary, **subset}, msg)


def _format(percent, value, grouping=False, monetary=False, *additional):
    return locale.format_string(percent, (value, *additional), grouping, monetary)


# (an object, a name that it had) -> what the name stands for.
_NAMES = {
    (inspect, "getargspec"): getargspec,
    (inspect, "ArgSpec"): ArgSpec,
    (inspect, "formatargspec"): formatargspec,
    (time, "clock"): time.process_time,
    (fractions, "gcd"): math.gcd,
    (base64, "encodestring"): base64.encodebytes,
    (base64, "decodestring"): base64.decodebytes,
    (locale, "format"): _format,
    (threading.Thread, "isAlive"): threading.Thread.is_alive,
    (html.parser.HTMLParser, "unescape"): staticmethod(html.unescape),
    (configparser, "SafeConfigParser"): configparser.ConfigParser,
    (configparser.RawConfigParser, "readfp"): configparser.RawConfigParser.read_file,
    (unittest, "makeSuite"): make_suite,
    (unittest.TestCase, "assertDictContainsSubset"): _assert_dict_contains_subset,
    **{
        (unittest.TestCase, old): getattr(unittest.TestCase, new)
        for old, new in {
            "assert_": "assertTrue",
            "assertAlmostEquals": "assertAlmostEqual",
            "assertEquals": "assertEqual",
            "assertNotAlmostEquals": "assertNotAlmostEqual",
            "assertNotEquals": "assertNotEqual",
            "assertNotRegexpMatches": "assertNotRegex",
            "assertRaisesRegexp": "assertRaisesRegex",
            "assertRegexpMatches": "assertRegex",
        }.items()
    },
}
# A module -> (module to take names of, or None, further names).
_MODULES = {
    "imp": (
        None,
        {
            "load_source": load_source,
            "new_module": types.ModuleType,
            "reload": importlib.reload,
        },
    ),
    "pipes": (None, {"quote": shlex.quote}),
    "xml.etree.cElementTree": (xml.etree.ElementTree, {}),
}


def put_back() -> None:
    """Puts the names and modules back that Python no longer has, and leaves alone what it has."""
    for (home, name), value in _NAMES.items():
        if not hasattr(home, name):
            setattr(home, name, value)
    for path, (source, members) in _MODULES.items():
        if path not in sys.modules and importlib.util.find_spec(path) is None:
            module = types.ModuleType(path)
            vars(module).update(vars(source) if source else {}, **members)
            module.__name__ = path
            sys.modules[path] = module
    # json took an `encoding`, which had no effect; random.sample took sets, and random.shuffle a
    # function to draw by.
    if not hasattr(json.loads, "__wrapped__"):
        json.load, json.loads = _without_encoding(json.load), _without_encoding(json.loads)
        random.Random.sample = _taking_sets(random.Random.sample)
        random.sample = random._inst.sample
        random.Random.shuffle = _drawing_by(random.Random.shuffle)
        random.shuffle = random._inst.shuffle


def _without_encoding(function):
    @functools.wraps(function)
    def without_encoding(*args, encoding=None, **kwargs):
        return function(*args, **kwargs)

    return without_encoding


def _taking_sets(method):
    @functools.wraps(method)
    def sample(self, population, *args, **kwargs):
        if isinstance(population, set | frozenset):
            population = tuple(population)
        return method(self, population, *args, **kwargs)

    return sample


def _drawing_by(method):
    @functools.wraps(method)
    def shuffle(self, x, random=None):
        if random is None:
            return method(self, x)
        for last in range(len(x) - 1, 0, -1):
            other = int(random() * (last + 1))
            x[last], x[other] = x[other], x[last]
        return None

    return shuffle
