"""What docstrings, comments and pages name in backticks is there: `module.name`, `name.py`, `name`.

A name is there if code uses it: a program, or one of its strings that is not a docstring.
"""

import ast
import builtins
import collections
import functools
import itertools
import keyword
import pathlib
import re

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
OTHERS |= {"pandas", "run_qa", "str", "tf", "_truncate_seq_pair", "file_mode"}


@functools.cache
def parsed(path):
    """Returns (definitions, classes, code, texts) of a program: the names that it defines, the
    names of its classes, its code, and (line, text) of its docstrings and comments."""
    source = path.read_text(encoding="utf-8")
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    lines, texts = source.splitlines(), []
    classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    definitions = {path.stem, *(node.name for node in nodes[1:])}
    constants = [node.targets[0] for node in nodes[0].body if isinstance(node, ast.Assign)]
    definitions |= {node.id for node in constants if isinstance(node, ast.Name)}
    for node in nodes:
        if ast.get_docstring(node):
            docstring = node.body[0]
            texts.append((docstring.lineno, ast.get_docstring(node)))
            for number in range(docstring.lineno - 1, docstring.end_lineno):
                lines[number] = ""
    for number, line in enumerate(lines):
        lines[number], _, comment = line.partition("# ")
        texts.append((number + 1, comment))
    return definitions, classes, "\n".join(lines), texts


@functools.cache
def code():
    """Returns the words of all code; pairs (name, a name that may follow its dot); definitions."""
    words, pairs, definitions, classes = set(), set(), set(), []
    of_folder = collections.defaultdict(set)
    # Names of upstream's scenarios, and of files.
    chains = re.findall(r"[\w.]+", (ROOT / "tests/oracle/differences.json").read_text("utf-8"))
    chains += [path.name for path in [*ROOT.glob("*"), *ROOT.glob("benchmarks/results/*")]]
    for path in PROGRAMS:
        own_definitions, own_classes, source, _ = parsed(path)
        own_chains = re.findall(r"\w+(?:\.\w+)*", source)
        own = set(itertools.chain.from_iterable(chain.split(".") for chain in own_chains))
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        chains += [*own_chains, ".".join(parts), f"{parts[-1]}.py"]
        pairs.update((parts[-1], word) for word in own)
        of_folder[path.parent] |= own
        definitions |= own_definitions
        classes += [(name, path.parent) for name in own_classes]
    for chain in set(chains):
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
    texts = [(path, line, text, False) for path in PROGRAMS for line, text in parsed(path)[3]]
    for path in PAGES:
        page = re.sub(r"(?ms)^```.*?^```", "", path.read_text(encoding="utf-8"))
        texts.append((path, 1, page, True))
    assert not [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path, line, text, is_page in texts
        for name in dead_names(text, is_page)
    ]


@pytest.mark.parametrize(
    ("text", "dead"),
    [
        ("`gradients.name_of` of `optimization/gradients.py` and `chain.py`", []),
        ("`tpu.devices` calls `XlaStep.run`, `path.exists` and `len()`", []),
        ("`chain.old_values` and `no_chain.py`", ["chain.old_values", "no_chain.py"]),
        ("`tpu.no_devices.find` and `not_there_yet`", ["tpu.no_devices.find", "not_there_yet"]),
        ("as above, see `clipping`", ["clipping"]),
    ],
)
def test_dead_names_are_seen(text, dead):
    assert list(dead_names(text, False)) == dead
