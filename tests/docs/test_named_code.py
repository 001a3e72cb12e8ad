"""What docstrings, comments and pages name in backticks is there: `module.name`, `name.py`, `name`.

A name is there if code uses it: a program, or one of its strings that is not a docstring.
"""

import ast
import builtins
import collections
import functools
import io
import itertools
import keyword
import pathlib
import re
import tokenize

import pytest

import bert_estimator

ROOT = pathlib.Path(bert_estimator.__file__).parent.parent
PLACES = ("*.py", "bert_estimator/**/*.py", "input_pipelines/**/*.py", "benchmarks/*.py")
PROGRAMS = {path for place in (*PLACES, "tests/**/*.py") for path in ROOT.glob(place)}
PROGRAMS = sorted(PROGRAMS - {pathlib.Path(__file__)})  # This test names what is not there.
OF_OTHERS = ("CHANGELOG.md", "docs/coming_from.md", "docs/legacy.md")  # They name other code.
PAGES = [
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    if path.relative_to(ROOT).as_posix() not in OF_OTHERS
]
# What the names of other projects begin with, and other names that code of ours does not use.
OTHERS = {"absl", "encoder", "group", "hub", "jax", "model_spec", "multiprocessing", "numpy"}
OTHERS |= {"pandas", "str", "tf", "_truncate_seq_pair", "file_mode"}


def with_docstring(tree):
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds) and ast.get_docstring(node)]


def texts(path):
    """Yields (line, text) of the docstrings and comments of a program, or of a page."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield 1, re.sub(r"(?ms)^```.*?^```", "", source)
        return
    for node in with_docstring(ast.parse(source)):
        yield node.body[0].lineno, ast.get_docstring(node)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@functools.cache
def code():
    """Returns the words of all code; pairs (name, a name that may follow its dot); definitions."""
    words, pairs, definitions, classes = set(), set(), set(), []
    of_folder = collections.defaultdict(set)
    # Names of upstream's scenarios, and of results.
    chains = re.findall(r"[\w.]+", (ROOT / "tests/oracle/differences.json").read_text("utf-8"))
    chains += [path.name for path in ROOT.glob("benchmarks/results/*")]
    for path in PROGRAMS:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in with_docstring(tree):
            node.body[0] = ast.Pass()
        found = re.findall(r"\w+(?:\.\w+)*", ast.unparse(tree))
        own = set(re.findall(r"\w+", " ".join(found)))
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        chains += [*found, ".".join(parts), f"{parts[-1]}.py"]
        pairs.update((parts[-1], word) for word in own)
        of_folder[path.parent] |= own
        defined = [node for node in ast.walk(tree) if getattr(node, "name", None)]
        definitions |= {node.name for node in defined} | {path.stem}
        constants = [node.targets[0] for node in tree.body if isinstance(node, ast.Assign)]
        definitions |= {node.id for node in constants if isinstance(node, ast.Name)}
        classes += [(n.name, path.parent) for n in defined if isinstance(n, ast.ClassDef)]
    for chain in chains:
        words.update(chain.split("."))
        pairs.update(itertools.pairwise(chain.split(".")))
    # A class may inherit from another module of its folder.
    pairs.update((name, word) for name, folder in classes for word in of_folder[folder])
    return words | definitions, pairs, definitions


def dead_names(text, is_page):
    """Yields the names in a text that are not there."""
    words, pairs, definitions = code()
    for name in re.findall(r"`([A-Za-z_][\w.]*\w)(?:\(\))?`", text):
        parts = name.split(".")
        if parts[0] in OTHERS or hasattr(builtins, name) or keyword.iskeyword(name):
            continue
        if len(parts) > 1:
            is_dead = not set(itertools.pairwise(parts)) <= pairs
        else:
            is_dead = not is_page and name not in words
        if is_dead:
            yield name
    for name in re.findall(r"see `(\w+)`", text):
        if name not in definitions and name not in OTHERS:
            yield name


def test_what_is_named_is_there():
    dead = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in [*PROGRAMS, *PAGES]
        for line, text in texts(path)
        for name in dead_names(text, path.suffix == ".md")
    ]
    assert not dead


@pytest.mark.parametrize(
    ("text", "dead"),
    [
        ("`chain.new_values` of `optimization/chain.py` and `chain.py`", []),
        ("`tpu.devices` calls `XlaStep.run`, `path.exists` and `len()`", []),
        ("`chain.old_values` and `no_chain.py`", ["chain.old_values", "no_chain.py"]),
        ("`tpu.no_devices.find` and `not_there_yet`", ["tpu.no_devices.find", "not_there_yet"]),
        ("as above, see `clipping`", ["clipping"]),
    ],
)
def test_dead_names_are_seen(text, dead):
    assert list(dead_names(text, False)) == dead
