"""The API reference: what its names say of themselves."""

import ast
import importlib
import importlib.util
import inspect
import pathlib
import re
import textwrap

import pytest

import bert_estimator

ROOT = pathlib.Path(bert_estimator.__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "site" / "hooks.py")
HOOKS = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(HOOKS)

SHAPE = re.compile(r"\[.*?\]|scalar|shape|any number of dimensions")
DTYPE = re.compile(r"float|int\d|integer|bool|string|dtype|bfloat16|number")


def objects():
    """Yields (place, function or class) of the reference, with the methods that classes define."""
    for _, modules in HOOKS.REFERENCE.values():
        for short in modules:
            module = importlib.import_module(HOOKS.module_name(short))
            for name, place in HOOKS.public_names(module).items():
                value = getattr(module, name)
                yield place, value
                if inspect.isclass(value):
                    for method, function in vars(value).items():
                        is_method = inspect.isfunction(function) and function.__name__ == method
                        if is_method and not method.startswith("_"):
                            yield f"{place}.{method}", function


OBJECTS = dict(objects())


def docstring_of(value):
    """Returns a docstring, with the docstring of a class's constructor; or what it inherits."""
    docs = [inspect.getdoc(value)]
    if inspect.isclass(value) and inspect.isfunction(vars(value).get("__init__")):
        docs.append(value.__init__.__doc__)
    return "\n".join(filter(None, docs))


def own_raises(value):
    """Returns the names of the exceptions that a function itself raises, not what it calls."""
    functions = [value] if inspect.isfunction(value) else []
    if inspect.isclass(value):
        methods = (vars(value).get(name) for name in ("__init__", "__new__", "__post_init__"))
        own = [method for method in methods if inspect.isfunction(method)]
        functions = [method for method in own if method.__module__ == value.__module__]
    names = set()
    for function in functions:
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        except (OSError, TypeError):  # made by dataclasses
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                names.add(ast.unparse(node.exc.func).rpartition(".")[2])
    return {name for name in names if not name.startswith("_")} - {"NotImplementedError"}


def is_of_tensors(annotation):
    return bool(re.search(r"\b(tf\.Tensor|Tensor|ndarray)\b", str(annotation)))


def test_the_reference_has_what_users_need():
    ends = {place.rpartition(".")[2] for place in OBJECTS}
    assert {"TPUEstimator", "train", "BertModel", "LAMBOptimizer", "scope", "Predictor"} <= ends


@pytest.mark.parametrize("place", OBJECTS)
def test_a_public_name_says_what_it_takes_gives_and_raises(place):
    value = OBJECTS[place]
    text = docstring_of(value)
    assert re.match(r"[A-Z`][^\n]*[.:]", text), text
    missing = [name for name in own_raises(value) if name not in text]
    assert missing == [], f"raises {missing}"
    if inspect.isfunction(value):
        for name, annotation in value.__annotations__.items():
            if is_of_tensors(annotation):
                assert SHAPE.search(text) and DTYPE.search(text), f"{name}: its shape and dtype"
