"""Finds out whether a script was written for TensorFlow 1 or 2, from the names that it uses.

The script is read, not run, and so are the modules beside it that it imports. A name that only one
of the two versions has is a sign: `tf.placeholder` and `tf.contrib` belong to TensorFlow 1,
`tf.optimizers` to TensorFlow 2. `tf.compat.v1.X` belongs to both. So is a call of a function that
both have with arguments that only one takes: `tf.saved_model.load(path)` belongs to TensorFlow 2.
"""

import ast
import importlib.machinery
import inspect
import os
import sys
import sysconfig
import types
from collections.abc import Iterator
from typing import NamedTuple

from bert_estimator.legacy import names

# More modules are not read: a script that has so many shows its version in the first ones.
_MOST_MODULES = 200
_INITIALIZERS = (
    "constant glorot_normal glorot_uniform he_normal he_uniform identity lecun_normal "
    "lecun_uniform ones orthogonal random_normal random_uniform truncated_normal "
    "variance_scaling zeros"
)
# Modules whose names in TensorFlow 2 are Keras's, which is not loaded for this: the names in both.
_OF_KERAS = {
    "losses": {"Reduction", "mean_squared_error"},
    "metrics": {"mean_absolute_error", "mean_squared_error"},
    "initializers": set(_INITIALIZERS.split()),
}
# Names that TensorFlow does not have any more, or that belong to Keras.
_ONLY_IN_1 = (
    "contrib",
    "estimator.experimental.KMeans",
    "estimator.experimental.dnn_logit_fn_builder",
    "estimator.experimental.linear_logit_fn_builder",
    "estimator.inputs",
    "estimator.tpu",
    "examples",
    "layers",
)
_ONLY_IN_2 = (
    "compat.v1.disable_eager_execution",  # eager execution is TensorFlow 2's default
    "compat.v1.disable_v2_behavior",
    "compat.v1.enable_v2_behavior",
    "keras.optimizers.legacy",
    "optimizers",
)
_IN_BOTH = ("compat", "estimator", "keras", "python")
# TensorFlow 2 refuses sessions on the default graph while eager execution is on.
_SESSIONS = tuple(
    f"compat.v1.{name}"
    for name in ("InteractiveSession", "Session", "train.MonitoredTrainingSession")
)
_GRAPHS = {"Graph", "compat.v1.Graph"}
_METHODS_OF_1 = ("make_initializable_iterator", "make_one_shot_iterator")
# These packages are not read, though they may lie beside the script.
_NOT_READ = {"bert_estimator", "input_pipelines", "keras", "tensorflow", "tf_keras", "tf_slim"}


class Version(NamedTuple):
    """Says which version a script was written for, and why."""

    tf2: bool
    # A clause without its subject; empty if the names leave no doubt that it is TensorFlow 1.
    reason: str


class _Use(NamedTuple):
    """Describes a name of TensorFlow that a module uses, such as `compat.v1.Session`."""

    name: str
    # The file and the line: `a.py:3`.
    place: str
    # 1 or 2 for a call whose arguments only this version takes.
    takes: int | None = None

    def __str__(self):
        arguments = f" with the arguments of TensorFlow {self.takes}" if self.takes else ""
        return f"tf.{self.name}{arguments} ({self.place})"


def of_script(source: str | bytes | None, path: str, folder: str) -> Version:
    """Returns the version of a script that imports its own modules from `folder`; `source` is None
    if there is only compiled code. TensorFlow must be loaded."""
    installed = {os.path.realpath(path) for path in sysconfig.get_paths().values()}
    further = [path for path in sys.path[1:] if os.path.realpath(path) not in installed]
    return _version(_uses(ast.parse(source or ""), path, "", [folder, *further]))


def of_module(name: str) -> Version:
    """Returns the version that a module was written for, if it is found on Python's path."""
    spec = _find(name, sys.path)
    if spec is not None and spec.submodule_search_locations is not None:
        name += ".__main__"
        spec = _find(name, sys.path)
    tree = _parsed(spec)
    if tree is None:
        return Version(False, "")
    # The module's imports begin in the folder that holds its outermost package.
    top = os.path.dirname(os.path.abspath(spec.origin))
    for _ in range(name.count(".")):
        top = os.path.dirname(top)
    return _version(_uses(tree, spec.origin, name.rpartition(".")[0], [top]))


def _version(found):
    uses, of_2 = {}, None
    for use in found:
        uses.setdefault(use.name, use)
        kind = use.takes or _kind(use.name)
        of_2 = of_2 or (use if kind == 2 else None)
        # One name that only TensorFlow 1 has decides, whatever else the script uses.
        if kind == 1:
            return Version(False, f"uses both {of_2} and {use}" if of_2 else "")
    session = next((uses[name] for name in _SESSIONS if name in uses), None)
    if of_2:
        return Version(True, f"uses {of_2}")
    if session and not _GRAPHS.intersection(uses):
        return Version(False, f"uses {session}, which TensorFlow 2 refuses in eager execution")
    if "compat.v1" in uses:  # as a module: every name is TensorFlow 1's
        is_mixed = any(name.split(".")[0] != "compat" for name in uses)
        return Version(False, f"uses {uses['compat.v1']} beside tf" if is_mixed else "")
    if "compat.v2" in uses:
        return Version(True, f"uses {uses['compat.v2']}")
    if uses:
        return Version(True, "uses no name that only TensorFlow 1 has")
    return Version(False, "uses no name of TensorFlow itself")


def _kind(name):
    """Returns 1 or 2 if only this version of TensorFlow has a dotted name, else None."""
    for only, kind in ((_ONLY_IN_1, 1), (_ONLY_IN_2, 2)):
        if any(f"{name}.".startswith(f"{other}.") for other in only):
            return kind
    parts = name.split(".")
    if parts[0] in _IN_BOTH:
        return None
    if parts[0] in _OF_KERAS:
        known = dir(getattr(sys.modules[names.V1], parts[0]))
        if parts[1:] == [] or parts[1] in _OF_KERAS[parts[0]]:
            return None
        return 1 if parts[1] in known else 2
    one, two = sys.modules[names.V1], sys.modules[names.V2]
    for part in parts:
        in_1, in_2 = part in dir(one), part in dir(two)
        if in_1 != in_2:
            return 1 if in_1 else 2
        if not in_1:
            return None
        one, two = getattr(one, part), getattr(two, part)
        if not (isinstance(one, types.ModuleType) and isinstance(two, types.ModuleType)):
            return None
    return None


def _taken_by(name, call):
    """Returns 1 or 2 if only this version of TensorFlow takes the arguments of a call, a syntax
    tree, of the function with this dotted name, else None."""
    keywords = [keyword.arg for keyword in call.keywords]
    # `*args` and `**kwargs` do not say which arguments they are.
    if None in keywords or any(isinstance(value, ast.Starred) for value in call.args):
        return None
    if name.split(".")[0] in (*_IN_BOTH, *_OF_KERAS):
        return None
    takers = []
    for version, home in ((1, names.V1), (2, names.V2)):
        function = sys.modules[home]
        for part in name.split("."):
            function = getattr(function, part, None)
        if not inspect.isroutine(function):
            return None
        try:
            inspect.signature(function).bind(*call.args, **dict.fromkeys(keywords))
        except TypeError:
            continue
        except ValueError:  # Python does not know the arguments of a function written in C.
            return None
        takers.append(version)
    return takers[0] if len(takers) == 1 else None


def _uses(tree, path, package, folders) -> Iterator[_Use]:
    """Yields the names of TensorFlow that a module (a syntax tree) and what it imports use."""
    waiting, known = [(tree, path, package)], set()
    while waiting:
        tree, path, package = waiting.pop(0)
        yield from _names_of_tensorflow(tree, os.path.basename(path))
        # The script's own imports come first: the number of modules that are read is limited.
        for name in _imported(tree, package):
            if name in known or name.split(".")[0] in _NOT_READ or len(known) >= _MOST_MODULES:
                continue
            known.add(name)
            spec = _find(name, folders)
            module = _parsed(spec)
            if module is not None:
                is_package = spec.submodule_search_locations is not None
                package_name = name if is_package else name.rpartition(".")[0]
                waiting.append((module, spec.origin, package_name))


def _find(name, folders):
    """Returns the spec of a module in folders, None if it is not there; nothing is imported."""
    spec = None
    for part in name.split("."):
        # A package without __init__.py is found by its last name only, unless its parent is loaded.
        spec = importlib.machinery.PathFinder.find_spec(part, folders)
        if spec is None:
            return None
        folders = list(spec.submodule_search_locations or [])
    return spec


def _parsed(spec):
    """Returns the syntax tree of a module; None if it has no text, or if its import will fail."""
    try:
        return ast.parse(spec.loader.get_source(spec.name))
    except (AttributeError, ImportError, OSError, SyntaxError, TypeError, ValueError):
        return None


def _imported(tree, package):
    """Yields the full names of the modules that a module may import, with their packages."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1]
            prefix = ".".join(base if node.level else [])
            module = ".".join(part for part in (prefix, node.module) if part)
            found = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in found:
            parts = name.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _names_of_tensorflow(tree, file):
    """Yields the names of TensorFlow that a module uses."""
    aliases = {}
    for node in ast.walk(tree):
        for variable, name in _bound(node):
            if variable:
                aliases.setdefault(variable, name)
            if name and not name.startswith("python"):
                yield _Use(name, f"{file}:{node.lineno}")
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = _chain(node.value, aliases)  # such as `learn = tf.contrib.learn`
            if name:
                aliases.setdefault(node.targets[0].id, name)
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    inner = {node.value for node in attributes}  # `tf.train` in `tf.train.Saver`
    for node in attributes:
        if node in inner:
            continue
        place = f"{file}:{node.lineno}"
        name = _chain(node, aliases)
        if name is None and node.attr in _METHODS_OF_1:
            name = f"data.{node.attr}"
        if name is not None:
            yield _Use(name, place)
    for node in ast.walk(tree):
        name = _chain(node.func, aliases) if isinstance(node, ast.Call) else None
        takes = _taken_by(name, node) if name else None
        if takes is not None:
            yield _Use(name, f"{file}:{node.lineno}", takes)


def _bound(node):
    """Yields the variables that an import binds, and what they are: `tf` is "", TensorFlow."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] == "tensorflow":
                name = alias.name.partition(".")[2]
                yield (alias.asname, name) if alias.asname else ("tensorflow", "")
                if not alias.asname:
                    yield None, name
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        package, _, module = node.module.partition(".")
        for alias in node.names if package == "tensorflow" else ():
            yield alias.asname or alias.name, f"{module}.{alias.name}".lstrip(".")


def _chain(node, aliases):
    """Returns the name of TensorFlow that an expression such as `tf.train.Saver` is, or None."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in aliases:
        return None
    module = aliases[node.id]
    if module == "compat.v1" or module.startswith("python"):
        return None
    return ".".join([module, *parts] if module else parts)
