"""Tests which module may import which, how long modules are, and that the map is complete."""

import ast
import collections
import functools
import pathlib
import re

import pytest

import bert_estimator

ROOT = pathlib.Path(bert_estimator.__file__).parent.parent
MOST_LINES, MOST_LINES_OF_A_SCRIPT, MOST_LINES_OF_A_FUNCTION = 400, 80, 60
SCRIPTS = ("run_pretraining.py", "run_classifier.py", "run_squad.py")


@functools.cache
def modules():
    """Returns module name -> path, for the scripts and the packages."""
    found = {}
    for path in [*ROOT.glob("bert_estimator/**/*.py"), *ROOT.glob("input_pipelines/**/*.py")]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found.update({path.removesuffix(".py"): ROOT / path for path in SCRIPTS})
    return {name: path for name, path in found.items() if path.exists()}


@functools.cache
def imports_of(name, everywhere=True):
    """Returns the modules that a module imports: anywhere, or only at its top level."""
    tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: line {node.lineno} has a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules() else node.module)
    return found


def in_package(module, packages):
    return any(module == package or module.startswith(package + ".") for package in packages)


def own(imported):
    """Returns the imported modules that are the project's own.

    The package itself is left out: it holds only its version.
    """
    packages = ["bert_estimator", "input_pipelines"]
    return {m for m in imported if in_package(m, packages)} - {"bert_estimator"}


def of_package(package):
    return [name for name in modules() if in_package(name, [package])]


def test_modules_are_found():
    assert {"run_pretraining", "bert_estimator.tpu", "bert_estimator.tpu.errors"} <= set(modules())
    assert "tensorflow.compat.v1" in imports_of("bert_estimator.modeling")
    assert "bert_estimator.precision" in imports_of("bert_estimator.modeling")
    console = "bert_estimator.command_line.console"
    assert "tensorflow.compat.v1" not in imports_of(console, everywhere=False)
    assert "tensorflow.compat.v1" in imports_of(console)


# What every module may import: these import nothing of the project.
LEAVES = [
    "bert_estimator.system.atomic_file",
    "bert_estimator.command_line.choices",
    "bert_estimator.system.disk_errors",
    "bert_estimator.tokenization.entities",
    "bert_estimator.system.errors",
    "bert_estimator.system.garbage_collection",
    "bert_estimator.command_line.help_page",
    "bert_estimator.system.json_files",
    "bert_estimator.system.malloc",
    "bert_estimator.system.native_log",
    "bert_estimator.system.paths",
    "bert_estimator.command_line.provenance",
    "bert_estimator.system.standard_streams",
    "bert_estimator.storage",
    "bert_estimator.system.tensorflow_import",
    "bert_estimator.system.ticker",
    "bert_estimator.graph.xla_context",
    "bert_estimator.system.zip_files",
]

CONFIG_ARROWS = [
    "bert_estimator.jobs.command_line",
    "bert_estimator.jobs.config",
    "bert_estimator.command_line",
    "bert_estimator.recipes",
]

# For a package or module: the modules of this project that it may import besides.
ARROWS = {
    "run_pretraining": ["bert_estimator.command_line", "bert_estimator.jobs"],
    "run_classifier": ["bert_estimator.command_line", "bert_estimator.jobs"],
    "run_squad": ["bert_estimator.command_line", "bert_estimator.jobs"],
    **{name: [] for name in LEAVES},
    "bert_estimator.system.atomic_file": ["bert_estimator.system.disk_errors"],
    "bert_estimator.system.json_files": ["bert_estimator.storage"],
    "bert_estimator.system.native_log": ["bert_estimator.system.standard_streams"],
    "bert_estimator.system.tensorflow_import": [
        "bert_estimator.system.garbage_collection",
        "bert_estimator.system.malloc",
        "bert_estimator.system.native_log",
        "bert_estimator.system.standard_streams",
    ],
    "bert_estimator.tpu": ["bert_estimator.graph.bias_gradient", "bert_estimator.tpu"],
    "bert_estimator.tpu.program": ["bert_estimator.tpu.program"],
    "bert_estimator.tpu.step": ["bert_estimator.graph.bias_gradient", "bert_estimator.tpu"],
    "bert_estimator.legacy": ["bert_estimator.legacy", "bert_estimator.tpu"],
    "bert_estimator.precision": [],
    "bert_estimator.bert_config": [],
    "bert_estimator.graph.bias_gradient": [],
    "bert_estimator.layers.primitives": ["bert_estimator.graph.bias_gradient"],
    "bert_estimator.sharding": [],
    "bert_estimator.layers.philox": [],
    "bert_estimator.layers.dropout": [
        "bert_estimator.layers.philox",
        "bert_estimator.layers.primitives",
    ],
    "bert_estimator.layers.activations": ["bert_estimator.layers.primitives"],
    "bert_estimator.layers.attention": [
        "bert_estimator.layers.dropout",
        "bert_estimator.layers.primitives",
    ],
    "bert_estimator.layers.initializers": ["bert_estimator.layers.philox"],
    "bert_estimator.layers.embeddings": [
        "bert_estimator.bert_config",
        "bert_estimator.precision",
        "bert_estimator.layers.initializers",
        "bert_estimator.layers.primitives",
    ],
    "bert_estimator.layers.recompute": [
        "bert_estimator.layers.dropout",
        "bert_estimator.layers.primitives",
    ],
    "bert_estimator.modeling": [
        "bert_estimator.bert_config",
        "bert_estimator.precision",
        "bert_estimator.layers",
    ],
    "bert_estimator.heads": [
        "bert_estimator.layers.activations",
        "bert_estimator.modeling",
        "bert_estimator.precision",
    ],
    "bert_estimator.optimization": ["bert_estimator.optimization"],
    "bert_estimator.tokenization": ["bert_estimator.tokenization"],
    "bert_estimator.interchange": [
        "bert_estimator.layers.primitives",
        "bert_estimator.interchange",
        "bert_estimator.bert_config",
        "bert_estimator.modeling",
        "bert_estimator.heads",
        "bert_estimator.tokenization",
        "bert_estimator.tpu",
        "bert_estimator.command_line",
    ],
    "bert_estimator.model_fns.init_checkpoint": [
        "bert_estimator.bert_config",
        "bert_estimator.interchange",
    ],
    "bert_estimator.command_line.flags": [
        "bert_estimator.cluster.cluster_task",
        "bert_estimator.cluster.hosts",
    ],
    "bert_estimator.command_line.flag_help": ["bert_estimator.command_line.flags"],
    "bert_estimator.command_line.console": [
        "bert_estimator.command_line.flag_help",
        "bert_estimator.command_line.flags",
        "bert_estimator.cluster.hosts",
    ],
    "bert_estimator.jobs.compile_only": [
        "bert_estimator.command_line.flags",
        "bert_estimator.sharding",
        "bert_estimator.tpu",
    ],
    "bert_estimator.command_line.config_file": ["bert_estimator.command_line.flags"],
    "bert_estimator.command_line.axes": [],
    "bert_estimator.command_line.chart": ["bert_estimator.command_line.axes"],
    "bert_estimator.command_line.curves": [
        "bert_estimator.command_line.axes",
        "bert_estimator.command_line.chart",
    ],
    "bert_estimator.command_line.evaluated_steps": ["bert_estimator.command_line.flags"],
    "bert_estimator.command_line.run_directory": [
        "bert_estimator.command_line.curves",
        "bert_estimator.command_line.evaluated_steps",
        "bert_estimator.command_line.flags",
    ],
    "bert_estimator.recipes": ["bert_estimator.recipes"],
    "bert_estimator.jobs.owner": ["bert_estimator.system.lock"],
    "bert_estimator.jobs.local_folder": ["bert_estimator.system.lock"],
    "bert_estimator.jobs.termination": [],
    "bert_estimator.jobs.mirror": [
        "bert_estimator.jobs.local_folder",
        "bert_estimator.jobs.owner",
        "bert_estimator.jobs.termination",
        "bert_estimator.command_line.flags",
        "bert_estimator.system.lock",
        "bert_estimator.cluster.hosts",
    ],
    "bert_estimator.jobs.command_line": [
        "bert_estimator.jobs.config",
        "bert_estimator.jobs.mirror",
        "bert_estimator.command_line",
    ],
    "bert_estimator.jobs.config": [
        "bert_estimator.jobs.compile_only",
        "bert_estimator.jobs.mirror",
        "bert_estimator.command_line",
    ],
    "bert_estimator.jobs.pretraining.config": CONFIG_ARROWS,
    # The vocabulary beside a checkpoint, when a flag names the checkpoint.
    "bert_estimator.jobs.fine_tuning.config": ["bert_estimator.interchange", *CONFIG_ARROWS],
    "bert_estimator.jobs.fine_tuning.classification_config": [
        "bert_estimator.jobs.fine_tuning.config",
        *CONFIG_ARROWS,
    ],
    "bert_estimator.jobs.fine_tuning.question_answering_config": [
        "bert_estimator.jobs.fine_tuning.config",
        *CONFIG_ARROWS,
    ],
    "bert_estimator.serving": [
        "bert_estimator.serving",
        "bert_estimator.interchange",
        "bert_estimator.layers.primitives",
        "bert_estimator.modeling",
        "bert_estimator.tokenization",
        "input_pipelines",
    ],
    # What answers with an exported model does not need the network's code.
    "bert_estimator.serving.predictor": [
        "bert_estimator.serving",
        "bert_estimator.tokenization",
        "input_pipelines",
    ],
    "bert_estimator": ["bert_estimator"],
    "input_pipelines": [
        "input_pipelines",
        "bert_estimator.tokenization",
        "bert_estimator.system.lock",
    ],
    "bert_estimator.system.lock": ["bert_estimator.cluster.hosts"],
}


# These packages put a network and data together; the rest of bert_estimator does not use records.
MEET_DATA = ["bert_estimator.jobs", "bert_estimator.serving"]


@pytest.mark.parametrize("package", ARROWS)
def test_arrows_run_one_way(package):
    assert of_package(package)
    for name in of_package(package):
        allowed = ARROWS[package] if package in LEAVES else [*ARROWS[package], *LEAVES]
        if in_package(name, MEET_DATA):
            allowed = [*allowed, "input_pipelines"]
        for imported in own(imports_of(name)):
            assert in_package(imported, allowed), f"{name} imports {imported}"


def test_modeling_imports_tensorflow_alone_besides():
    outside = imports_of("bert_estimator.modeling") - own(imports_of("bert_estimator.modeling"))
    third_party = outside - {"collections.abc", "functools", "math"}
    assert third_party == {"tensorflow.compat.v1"}


def test_programs_do_not_need_tensorflow():
    """An exported program runs if TensorFlow is not installed."""
    for name in of_package("bert_estimator.tpu.program"):
        for imported in imports_of(name):
            assert not in_package(imported, ["tensorflow", "tf_slim"]), name


def test_json_is_read_in_one_module():
    """It bounds size and depth, and names the file."""
    for name, path in modules().items():
        calls = re.findall(r"json\.loads?\(", path.read_text(encoding="utf-8"))
        assert not calls or name == "bert_estimator.system.json_files", f"{name} reads JSON itself"


def test_test_files_have_names_of_their_own():
    """pytest imports a test file by its name alone."""
    names = collections.Counter(path.name for path in (ROOT / "tests").glob("**/test_*.py"))
    assert not [name for name, number in names.items() if number > 1]


def test_nothing_imports_keras_or_absent_parts_of_tensorflow():
    for name in modules():
        for imported in imports_of(name):
            if name != "bert_estimator.legacy.stand_ins.keras":
                assert not in_package(imported, ["keras", "tf_keras", "tensorflow.keras"]), name
            assert not in_package(imported, ["tensorflow_estimator", "tensorflow_addons"]), name


def reachable(name, everywhere):
    """Returns the project's modules that are loaded if a module is imported, packages included."""
    found, waiting = set(), [name]
    while waiting:
        module = waiting.pop()
        if module in found or module not in modules():
            continue
        found.add(module)
        parents = module.split(".")
        waiting += [".".join(parents[:i]) for i in range(1, len(parents))]
        waiting += imports_of(module, everywhere)
    return found


@pytest.mark.parametrize("name", [path.removesuffix(".py") for path in SCRIPTS])
def test_scripts_are_thin(name):
    assert modules()[name].read_text(encoding="utf-8").count("\n") < MOST_LINES_OF_A_SCRIPT


@pytest.mark.parametrize("name", [path.removesuffix(".py") for path in SCRIPTS])
def test_loading_a_script_does_not_load_tensorflow(name):
    for module in reachable(name, everywhere=False):
        for imported in imports_of(module, everywhere=False):
            assert not in_package(imported, ["tensorflow", "tf_slim", "numpy"]), module


def test_no_circles():
    """There are no modules that import each other, at their top or inside functions."""
    finished, path = set(), []

    def visit(module):
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module in finished or module not in modules():
            return
        path.append(module)
        for imported in sorted(imports_of(module)):
            # A package imports its modules.
            visit(imported)
        path.pop()
        finished.add(module)

    for name in modules():
        visit(name)
    assert finished == set(modules())


# Packages whose errors name their own arguments; `command_line` and `jobs` speak of flags.
WITHOUT_FLAGS = ["bert_estimator.optimization"]


@pytest.mark.parametrize("package", WITHOUT_FLAGS)
def test_library_code_does_not_speak_of_flags(package):
    assert of_package(package)
    for name in of_package(package):
        flags = re.findall(r"--\w+", modules()[name].read_text(encoding="utf-8"))
        assert flags == [], f"{name} names {flags}; name its own arguments"


@pytest.mark.parametrize("name", modules())
def test_modules_are_short(name):
    lines = modules()[name].read_text(encoding="utf-8").count("\n")
    assert lines <= MOST_LINES, f"{name}: {lines} lines; split it, or find what is not one noun"


def long_functions(source):
    """Yields (name, lines) of the functions that are too long; docstrings do not count."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                lines -= node.body[0].end_lineno - node.body[0].lineno + 1
            if lines > MOST_LINES_OF_A_FUNCTION:
                yield node.name, lines


def test_functions_are_short():
    paths = [*modules().values(), *ROOT.glob("benchmarks/*.py"), *ROOT.glob("tests/**/*.py")]
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        if name.startswith("tests/legacy/scripts/"):  # TF1 scripts have TF1's long functions
            continue
        too_long = dict(long_functions(path.read_text(encoding="utf-8")))
        assert not too_long, f"{name}: {too_long} lines; split them into well-named pieces"


def test_long_functions_are_seen():
    for lines, found in ((60, []), (61, [("f", 61)])):
        body = "  x = 1\n" * (lines - 1)
        assert list(long_functions(f"def f():\n{body}")) == found
        assert list(long_functions(f'def f():\n  """Is\n  long."""\n{body}')) == found


def test_the_map_names_every_module_and_no_other():
    """A heading of the map names a room; the first column of its table names the room's modules."""
    text = (ROOT / "WORKSPACE.md").read_text(encoding="utf-8")
    on_the_map = []
    for room, table in re.findall(r"^## `([\w./]+/)`:.*\n([^#]*)", text, re.MULTILINE):
        on_the_map += [(ROOT / room / name) for name in re.findall(r"^\| `(\w+\.py)`", table, re.M)]
    here = {path for path in modules().values() if path.name != "__init__.py"}
    assert sorted(on_the_map) == sorted(here)


def test_paths_on_the_map_lead_somewhere():
    text = (ROOT / "WORKSPACE.md").read_text(encoding="utf-8")
    for path in re.findall(
        r"`((?:bert_estimator|input_pipelines|tests|docs|benchmarks)/[\w./]*)`", text
    ):
        assert (ROOT / path).exists(), path


def test_the_files_that_tests_begin_with_exist():
    path = ROOT / "tests" / "conftest.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (files,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "LONG_FILES"
    )
    assert files
    assert [name for name in files if not (path.parent / name).is_file()] == []
