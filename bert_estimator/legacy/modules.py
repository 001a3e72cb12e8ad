"""Makes modules of TensorFlow 1 that no longer exist, from the table in `names.py`."""

import contextlib
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import re
import sys
import types
from typing import Any

from bert_estimator.legacy import names, paths, wheel
from bert_estimator.legacy.paths import IMPORTABLE, REMOVED

_V1, _V2 = "tensorflow.compat.v1", "tensorflow.compat.v2"
_KERAS_TREE = "tensorflow.python.keras"
# These are the same packages for scripts of TensorFlow 1 and 2.
_OF_BOTH = ("tensorflow.compat", "tensorflow.python")
# Below these, a module may have a further name: `tensorflow.keras.utils` is tf_keras's module.
_ALIASED = ("keras.", "tensorflow.", "tensorflow_estimator.")


_DICT = vars(types.ModuleType)["__dict__"]
# For example, tensorflow.contrib.layers.python.layers; the modules are in it.
_PYTHON_FOLDER = r"(tensorflow\.contrib\.\w+)\.python\b(\.[a-z_0-9]+)?"


class NotInTable(AttributeError):
    """A module of the table does not have a name."""


class LegacyModule(types.ModuleType):
    """Looks up a name of the module in the table when the name is first used."""

    def __getattr__(self, name):
        path = f"{self.__name__}.{name}"
        if name == "__all__":  # which `from module import *` asks for; it takes no packages
            listed = names_of(_in_table(self.__name__), packages=False)
            return sorted(each for each in listed if hasattr(self, each))
        if canonical(path) in _PACKAGES:
            return importlib.import_module(path)
        try:
            value = look_up(_in_table(self.__name__), name)
        except NotInTable as error:
            if path in sys.modules:  # for example, after `import tensorflow.python.framework.ops`
                return sys.modules[path]
            if name.startswith("__") or wheel.INSTALL in str(error):
                raise
            raise AttributeError(_why_missing(path), name=name, obj=self) from None
        if isinstance(value, types.ModuleType) and value.__name__ == _behind(canonical(path)):
            value = LegacyModule(path)  # it explains what it lacks, as this module does
        setattr(self, name, value)
        return value

    def __dir__(self):
        return sorted({*_DICT.__get__(self), *names_of(_in_table(self.__name__))})

    @property
    def __dict__(self):
        """Holds all names, since some scripts look them up here: `tf.logging.__dict__[level]`."""
        for name in self.__all__:
            getattr(self, name)
        return _DICT.__get__(self)

    def __call__(self, *args, **kwargs):
        """Raises TypeError: `from module import name` imports a module if the name is missing."""
        raise TypeError(_why_missing(self.__name__))


def canonical(path: str) -> str:
    """Returns the table's name for a module path: tensorflow.compat.v1.X is tensorflow.X, and in a
    script of TensorFlow 2, tensorflow.X is tensorflow.compat.v2.X."""
    path = re.sub(r"^tensorflow\.compat\.v[12]\.compat\b", "tensorflow.compat", path)
    if _is_below(path, _OLD_WHEEL):
        path = wheel.PACKAGE + path.removeprefix(_OLD_WHEEL)
    if _is_below(path, "keras"):
        # The package that old scripts mean was Keras 2, which goes on as tf_keras.
        if is_of_2():
            return f"{_V2}.{path}"
        path = "tensorflow.keras" if path == "keras" else f"tensorflow.python.{path}"
    if _is_below(path, _V1):
        path = "tensorflow" + path.removeprefix(_V1)
    elif is_of_2() and path in paths.PATHS_OF_2:
        return paths.PATHS_OF_2[path]
    elif is_of_2() and _is_below(path, "tensorflow") and not path.startswith(_OF_BOTH):
        return _V2 + path.removeprefix("tensorflow")
    return paths.PATHS.get(path, path)


def _in_table(path):
    """Returns the table's name for a module; the modules in the folder `python` of a package of
    tf.contrib, where its code was, have the names of the package."""
    path = canonical(path)
    found = re.match(_PYTHON_FOLDER, path)
    is_in_folder = found and re.fullmatch(r"(\.[a-z_0-9]+)?", path[found.end() :])
    return found[1] if is_in_folder and path not in names.MODULES else path


def means_keras_alone() -> bool:
    """Returns whether a script imports the package keras, in which some names mean other things
    than in tf.keras of TensorFlow 1."""
    return isinstance(sys.modules.get("keras"), LegacyModule)


def is_of_2() -> bool:
    """Returns whether `import tensorflow` gives the names of TensorFlow 2."""
    return _V2 in sys.modules and sys.modules[_V2] is sys.modules["tensorflow"]


def _is_below(path, package):
    return path == package or path.startswith(package + ".")


def _behind(module):
    """Returns the path of TensorFlow's own module for a module path such as `tensorflow.gfile`."""
    if _is_below(module, _V2):
        return names.V2 + module.removeprefix(_V2)
    return names.V1 + module.removeprefix("tensorflow")


def _own_name(path):
    """Returns the path by which a module is loaded: its package may be known by several names."""
    for former, today in _FORMER_PLACES.items():
        if _is_below(path, former):
            return _own_name(today + path.removeprefix(former))
    package, _, name = path.rpartition(".")
    loaded = sys.modules.get(package)
    if not package.startswith(_ALIASED) or loaded is None or isinstance(loaded, LegacyModule):
        return path
    return f"{loaded.__name__}.{name}"


def look_up(module: str, name: str) -> Any:
    """Returns the object behind a name of a module of the table, or raises a `NotInTable`."""
    if f"{module}.{name}" in REMOVED:
        raise NotInTable(f"module {module!r} has no attribute {name!r} here")
    for value in _in_rows(names.MODULES.get(module, ()), module, name):
        return value
    if module not in _PACKAGES and importlib.util.find_spec(_behind(module)) is not None:
        with contextlib.suppress(AttributeError):
            return _member(_behind(module), name)
    raise NotInTable(f"module {module!r} has no attribute {name!r}")


def _in_rows(rows, module, name):
    """Yields what rows of the table have for a name of a module; the first wins, so what replaces a
    name stands before TensorFlow's rows."""
    for home, given in rows:
        for entry in given.split():
            old, _, new = entry.partition("=")
            if old == name:
                if wheel.lacks(home):
                    raise NotInTable(f"{module}.{name} {wheel.INSTALL}")
                yield _member(home, new or old)
        if _gives_all(given, name):
            try:
                value = _member(home, name)
            except AttributeError:
                continue
            yield value


def _gives_all(given, name):
    """Returns whether the names of a row have a name by a "*" or "**"."""
    private = "_" if given == "*" or "* " in given else "__"
    return "*" in given and not name.startswith(private)


def names_of(module: str, packages: bool = True) -> set[str]:
    """Returns the names in a module of the table; with `packages`, also the modules below it."""
    below = {
        path.removeprefix(module + ".").split(".")[0]
        for path in _PACKAGES
        if path.startswith(module + ".")
    }
    members = set(below)
    default = () if module in _PACKAGES else [(_behind(module), "*")]
    for home, given in names.MODULES.get(module, default):
        for entry in given.split():
            if "*" in entry:
                members.update(n for n in dir(importlib.import_module(home)) if n[0] != "_")
            else:
                members.add(entry.partition("=")[0])
    return members if packages else members - below


def _member(home, name):
    if home.startswith("tf_keras") and isinstance(sys.modules["tensorflow"], LegacyModule):
        importlib.import_module("bert_estimator.legacy.stand_ins.keras")  # which adapts the package
    try:
        module = importlib.import_module(home)
    except AttributeError as error:
        # An AttributeError would mean that the module lacks the name.
        raise ImportError(f"{home} cannot be imported: {error}") from error
    try:
        return getattr(module, name)
    except AttributeError:
        if not hasattr(module, "__path__"):
            raise
    try:
        return importlib.import_module(f"{home}.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"module {home!r} has no attribute {name!r}") from None


def _why_missing(path):
    """Returns the text of an error: which name is missing, what it was, and what to use."""
    requested = path
    path = canonical(path)
    parts = path.replace(".compat.v2", "", 1).split(".")
    # The longest path says most: a module may be there without one of its names.
    for count in range(len(parts), 1, -1):
        removed = ".".join(parts[:count])
        if removed in REMOVED:
            was, instead = REMOVED[removed]
            short = "tf." + removed.removeprefix("tensorflow.")
            return f"{requested} is not supported: {short} was {was}. Use {instead}"
    if path.startswith("tensorflow.contrib."):
        return (
            f"{requested} is not supported: it was part of tf.contrib, which TensorFlow removed. "
            "docs/legacy.md lists the parts of tf.contrib that are supported"
        )
    if _is_below(path, _KERAS_TREE):
        return (
            f"{requested} is not supported: the modules of the tf_keras package stand for "
            f"{requested.partition('keras')[0]}keras, and none of them has it"
        )
    if _is_below(path, _V2):
        return _why_not_in_2(requested, path.removeprefix(_V2))
    if _has(names.V2, path.removeprefix("tensorflow")):
        name = path.removeprefix("tensorflow")
        return (
            f"{requested} is a name of TensorFlow 2, and this is TensorFlow 1: it is "
            f"tf.compat.v2{name}. A script for TensorFlow 2 runs with --tf2 before its name"
        )
    return (
        f"{requested} is not supported: neither TensorFlow's compat.v1 nor bert_estimator.legacy "
        "has it"
    )


def _why_not_in_2(requested, name):
    module, _, member = f"tensorflow{name}".rpartition(".")
    if f"tensorflow{name}" in _PACKAGES or _has(names.V1, name) or member in names_of(module):
        if not is_of_2():
            return f"{requested} is a name of TensorFlow 1: it is tf{name}"
        return (
            f"{requested} is a name of TensorFlow 1, and the script runs as one for TensorFlow 2. "
            f"Use tf.compat.v1{name}, or run the script with --tf1 before its name"
        )
    return f"{requested} is not supported: neither TensorFlow 2 nor bert_estimator.legacy has it"


def _has(home, name):
    """Returns whether a module of TensorFlow has a dotted name, which begins with a dot."""
    value = sys.modules[home]
    for part in name.split(".")[1:]:
        value = getattr(value, part, None)
    return value is not None


def _packages():
    """Returns every module path of the table, and the packages that contain them."""
    found = set()
    for path in [*names.MODULES, *paths.PATHS, *IMPORTABLE]:
        parts = path.split(".")
        found.update(".".join(parts[:count]) for count in range(1, len(parts) + 1))
    # The table only has some members of these packages, which TensorFlow still has.
    return found - {
        "tensorflow.python",
        "tensorflow.python.distribute",
        "tensorflow.python.layers",
        "tensorflow.python.ops",
        "tensorflow.python.tpu",
        "tensorflow.python.training",
    }


_PACKAGES = _packages()
_OLD_WHEEL = "tensorflow.python.estimator"  # tensorflow_estimator's place in TensorFlow 1.12
_TRACKING = "tensorflow.python.training.tracking"
_FORMER_PLACES = {  # the first that fits counts
    _OLD_WHEEL: wheel.PACKAGE,
    "tensorflow.contrib.tpu.proto": "tensorflow.core.protobuf.tpu",  # in TensorFlow 1.13
    "tensorflow_core": "tensorflow",  # where TensorFlow 1.15 had its code
    "tensorflow.python.training.checkpointable": _TRACKING,  # in TensorFlow 1.13
    f"{_TRACKING}.graph_view": "tensorflow.python.checkpoint.graph_view",
    f"{_TRACKING}.tracking": "tensorflow.python.trackable.autotrackable",
    f"{_TRACKING}.util": "tensorflow.python.checkpoint.checkpoint",
    _TRACKING: "tensorflow.python.trackable",
}
# Packages of TensorFlow 1 that no longer exist, apart from their modules in the table.
_GONE = (
    "tensorflow.contrib.",
    "tensorflow_estimator.",
    _KERAS_TREE + ".",
)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets `import` find the modules of the table, and explains why a removed module is missing."""

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        is_package = re.fullmatch(_PYTHON_FOLDER, fullname) and _in_table(fullname) in _PACKAGES
        if canonical(fullname) in _PACKAGES or is_package:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        parent, _, name = fullname.rpartition(".")
        package, member = sys.modules.get(parent), None
        if isinstance(package, LegacyModule):
            member = getattr(package, name, None)
            is_folder = parent in (_V1, _V2) and not isinstance(member, LegacyModule)
            if is_folder and package is sys.modules["tensorflow"]:
                # By this path Python would load a second copy of what is in TensorFlow's folders.
                raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
            if isinstance(member, types.ModuleType):
                # For example, `import tensorflow.gfile` imports the module tf.gfile.
                return importlib.machinery.ModuleSpec(fullname, self, loader_state=member)
        own = _own_name(fullname)
        if own != fullname and not wheel.lacks(own):
            member = importlib.import_module(own)
            return importlib.machinery.ModuleSpec(fullname, self, loader_state=member)
        spec = wheel.spec_of(fullname)
        if spec is not None:
            return spec
        if member is None and _in_table(fullname) in _PACKAGES:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        known_as = canonical(fullname)
        in_2 = isinstance(sys.modules.get(parent), LegacyModule) and _has(
            names.V2, known_as.removeprefix("tensorflow")
        )
        gone = known_as in REMOVED or canonical(parent) in IMPORTABLE or known_as.startswith(_GONE)
        if member is None and (gone or (in_2 and not is_of_2())):
            # The error has no name=fullname, because `from a import b` swallows an error for a.b.
            if wheel.lacks(known_as):
                raise ModuleNotFoundError(f"{fullname} {wheel.INSTALL}")
            raise ModuleNotFoundError(_why_missing(fullname))
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        if spec.loader_state is None:
            return LegacyModule(spec.name)
        spec.loader_state = (spec.loader_state, spec.loader_state.__spec__)
        return spec.loader_state[0]

    def exec_module(self, module: types.ModuleType) -> None:
        if not isinstance(module, LegacyModule):
            # `import` has set this spec on a module that belongs to another spec: restore that one.
            module.__spec__ = module.__spec__.loader_state[1]


def put_back_moved_names() -> None:
    """Has TensorFlow's inner modules give the names that TensorFlow moved out of them."""
    for path, rows in names.MOVED.items():
        module = importlib.import_module(path)
        for home, given in rows:
            for name in given.split():
                if name in vars(module):  # It is replaced.
                    setattr(module, name, _member(home, name))
    for path, module in list(sys.modules.items()):
        if path.startswith("tensorflow.python.") and type(module) is types.ModuleType:
            vars(module).setdefault("__getattr__", functools.partial(_moved, path))


def _moved(path, name):
    """Returns what a name of an inner module is that today's module lacks: what the table has for
    it, or what a module of its package, or one of the same name elsewhere, defines by this name."""
    found = {}
    if not name.startswith("__"):
        for value in _in_rows(names.MOVED.get(path, ()), path, name):
            return value
        package, _, last = path.rpartition(".")
        for other, module in list(sys.modules.items()):
            other_package, _, other_last = other.rpartition(".")
            is_beside = other_package == package and not other_last.startswith("gen_")
            if is_beside or (other_last == last and _is_below(other_package, "tensorflow.python")):
                value = vars(module).get(name) if type(module) is types.ModuleType else None
                if getattr(value, "__module__", None) == other:
                    found[other] = value
    if len(found) > 1:  # Programs know what TensorFlow exports.
        # They are loaded: this module, which the runner needs first, does not load TensorFlow.
        util = sys.modules["tensorflow.python.util"]
        found = {
            path: value
            for path, value in found.items()
            if util.tf_export.get_v1_names(util.tf_decorator.unwrap(value)[1])
        }
    if len(found) != 1:
        raise AttributeError(f"module {path!r} has no attribute {name!r}")
    return found.popitem()[1]


def put_in_place(tf2: bool = False) -> None:
    """Makes `import tensorflow`, and the other imports of old scripts, find the table's modules,
    which have TensorFlow 2's names if `tf2`."""
    real = sys.modules["tensorflow"]
    module = LegacyModule("tensorflow")
    module.__file__ = real.__file__
    module.__spec__ = real.__spec__
    # tensorflow.python, tensorflow.core and others are folders in this directory.
    module.__path__ = [os.path.dirname(real.__file__)]
    installed = ("tensorflow", _V2 if tf2 else _V1)
    sys.modules.update(dict.fromkeys(installed, module))
    replaced = [p for p in sys.modules if p not in installed and canonical(p) in _PACKAGES]
    # Keras 3, which TensorFlow has imported.
    replaced += [p for p in sys.modules if _is_below(p, "keras") and ".src" not in p]
    # The finder makes these anew when they are imported.
    for path in set(replaced):
        del sys.modules[path]
        parent, _, name = path.rpartition(".")
        if f"{parent}.".startswith("tensorflow.python.") and canonical(parent) not in _PACKAGES:
            # `from tensorflow.python.layers import base` takes an attribute before it imports.
            vars(sys.modules[parent]).pop(name, None)
    sys.meta_path.insert(0, Finder())
