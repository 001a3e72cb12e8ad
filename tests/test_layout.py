"""Tests which module may import which, how long modules are, and that the map is complete."""

import ast
import collections
import functools
import pathlib
import re

import pytest

import bert_estimator

ROOT = pathlib.Path(bert_estimator.__file__).parent.parent
MOST_LINES_OF_A_SCRIPT, MOST_LINES_OF_A_FUNCTION = 110, 60
MOST_MODULES = 16  # in a folder
MOST_LINES_OF_THE_MAP = 250
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
    """Returns the imported modules that are the project's own, but for the package itself."""
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


# The rooms, and which rooms each may import besides itself. Arrows run one way, from the scripts
# down: `test_no_room_has_a_way_back` looks for circles in this table.
SCRIPT, NETWORK = "", "bert_estimator"  # the modules at the top of the repository and the package
OF_INPUT = ["creation", "embedded", "records", "tasks", "text"]


def rooms_named(names):
    """Returns the rooms that a row of the table names in short, and what SIZES stands for."""
    # These modules of the network need no other of them.
    names = names.replace("SIZES", "bert_config precision memory_needed").split()
    prefixes = {**dict.fromkeys(OF_INPUT, "input_pipelines."), NETWORK: "", "input_pipelines": ""}
    return [prefixes.get(name, "bert_estimator.") + name for name in names]


ROOMS = {
    room: rooms_named(others)
    for room, others in {
        SCRIPT: "jobs command_line",
        "bert_estimator.jobs": (
            "bert_estimator SIZES layers model_fns optimization recipes interchange serving "
            "tokenization tpu storage command_line cluster system input_pipelines creation "
            "embedded records tasks"
        ),
        "bert_estimator.serving": (
            "bert_estimator SIZES layers model_fns interchange tokenization tpu storage "
            "command_line system tasks"
        ),
        "bert_estimator.model_fns": (
            "bert_estimator SIZES layers optimization interchange tokenization tpu system"
        ),
        "bert_estimator.interchange": (
            "bert_estimator SIZES layers tokenization tpu storage command_line system"
        ),
        NETWORK: "SIZES layers",
        "bert_estimator.layers": "SIZES graph",
        "bert_estimator.bert_config": "storage system",
        "bert_estimator.memory_needed": "bert_config system",
        "bert_estimator.precision": "command_line",
        "bert_estimator.optimization": "graph",
        "bert_estimator.recipes": "command_line",
        "input_pipelines": (
            "creation records text interchange tokenization storage command_line system"
        ),
        "input_pipelines.embedded": "creation records tasks tokenization command_line system",
        "input_pipelines.tasks": "records text tokenization storage system",
        "input_pipelines.creation": "records text tokenization storage command_line system",
        "input_pipelines.records": "tokenization storage command_line system",
        "input_pipelines.text": "records tokenization storage command_line system",
        "bert_estimator.legacy": "tpu graph system",
        "bert_estimator.tpu": "graph storage command_line cluster system",
        "bert_estimator.tokenization": "storage system",
        "bert_estimator.storage": "cluster system",
        "bert_estimator.command_line": "storage cluster system",
        "bert_estimator.cluster": "system",
        "bert_estimator.graph": "",
        "bert_estimator.system": "",
    }.items()
}
# Narrower than their rooms: these run where the rest is not there.
NARROW = {
    "bert_estimator.tpu.program": rooms_named("tpu.program command_line.console cluster system"),
    # What answers with an exported model does not need the network's code.
    "bert_estimator.serving.predictor": rooms_named(
        "serving SIZES tokenization command_line.console storage system input_pipelines"
    ),
}


def room_of(module):
    """Returns the room of the table that a module lies in."""
    parts = module.split(".")
    while parts and ".".join(parts) not in ROOMS:
        parts = parts[:-1]
    return ".".join(parts)


@pytest.mark.parametrize("name", modules())
def test_arrows_run_one_way(name):
    room = room_of(name)
    for imported in own(imports_of(name)) & set(modules()):
        other = room_of(imported)
        assert other == room or other in ROOMS[room], f"{name} imports {imported}"


@pytest.mark.parametrize("package", NARROW)
def test_narrow_doors(package):
    assert of_package(package)
    for name in of_package(package):
        for imported in own(imports_of(name)):
            assert in_package(imported, NARROW[package]), f"{name} imports {imported}"


def test_no_room_has_a_way_back():
    done = set()

    def visit(room, path):
        assert room not in path, " -> ".join([*path, room])
        if room not in done:
            for other in ROOMS[room]:
                visit(other, [*path, room])
            done.add(room)

    for room in ROOMS:
        visit(room, [])


def test_the_framework_is_used_by_its_face():
    """A module outside of `tpu` does not import from the folders within it."""
    inner = [f"bert_estimator.tpu.{folder}" for folder in ("step", "verbs", "program")]
    for name in modules():
        if not in_package(name, ["bert_estimator.tpu"]):
            for imported in imports_of(name):
                assert not in_package(imported, inner), f"{name} imports {imported}"


def test_rooms_are_not_crowded():
    folders = collections.Counter(path.parent for path in modules().values())
    for folder, number in folders.items():
        # A package's own `__init__.py` does not count.
        assert number <= MOST_MODULES + 1, f"{folder}: {number} modules; make a room within it"


def test_modeling_imports_tensorflow_alone_besides():
    outside = imports_of("bert_estimator.modeling") - own(imports_of("bert_estimator.modeling"))
    third_party = outside - {"collections.abc", "functools", "math", "typing"}
    assert third_party == {"tensorflow.compat.v1"}


def test_programs_do_not_need_tensorflow():
    """An exported program runs if TensorFlow is not installed."""
    for name in of_package("bert_estimator.tpu.program"):
        for imported in imports_of(name):
            assert not in_package(imported, ["tensorflow", "tf_slim"]), name


def test_modules_that_say_so_do_not_load_tensorflow():
    """The processes that create records would need seconds more to start."""
    names = [
        name
        for name, path in modules().items()
        if re.search(r"module does not\s+import\s+TensorFlow", path.read_text(encoding="utf-8"))
    ]
    assert "input_pipelines.creation.stages" in names
    for name in names:
        for module in reachable(name, everywhere=False):
            for imported in imports_of(module, everywhere=False):
                assert not in_package(imported, ["tensorflow", "tf_slim"]), f"{name}: {module}"


def test_json_is_read_in_one_module():
    """It bounds size and depth, and names the file."""
    for name, path in modules().items():
        calls = re.findall(r"json\.loads?\(", path.read_text(encoding="utf-8"))
        assert not calls or name == "bert_estimator.system.json_files", f"{name} reads JSON itself"


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
def test_scripts_tell_their_story_in_a_few_lines(name):
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


# The lines that each room may have at most. Who needs more raises a budget in a change of its own,
# which says what the lines are for; or takes something else away.
BUDGETS = {
    SCRIPT: 190,
    "bert_estimator.jobs": 5860,
    "bert_estimator.serving": 4050,
    "bert_estimator.model_fns": 1660,
    "bert_estimator.interchange": 4060,
    NETWORK: 560,
    "bert_estimator.layers": 1330,
    "bert_estimator.bert_config": 230,
    "bert_estimator.memory_needed": 190,
    "bert_estimator.precision": 120,
    "bert_estimator.optimization": 1720,
    "bert_estimator.recipes": 330,
    "input_pipelines": 940,
    "input_pipelines.embedded": 740,
    "input_pipelines.tasks": 3250,
    "input_pipelines.creation": 1620,
    "input_pipelines.records": 2850,
    "input_pipelines.text": 1420,
    "bert_estimator.legacy": 5130,
    "bert_estimator.tpu": 13410,
    "bert_estimator.tokenization": 1520,
    "bert_estimator.storage": 960,
    "bert_estimator.command_line": 1800,
    "bert_estimator.cluster": 580,
    "bert_estimator.graph": 590,
    "bert_estimator.system": 1540,
}


def lines_of(room):
    """Returns how many lines a room has."""
    paths = [path for name, path in modules().items() if room_of(name) == room]
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_keep_to_their_budgets(room):
    assert lines_of(room) <= BUDGETS[room]


def test_the_map_says_how_large_rooms_are():
    """Its table has all rooms by kind, and the lines of each kind, in hundreds."""
    text = (ROOT / "WORKSPACE.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) \| ([\d,]+) \| (.*) \|$", text, re.MULTILINE)
    listed = []
    for kind, lines, rooms in rows:
        names = [SCRIPT if name == "./" else name for name in re.findall(r"`([^`]+)`", rooms)]
        names = [name.removesuffix(".py").rstrip("/").replace("/", ".") for name in names]
        listed += names
        own_lines = sum(map(lines_of, names))
        assert int(lines.replace(",", "")) == pytest.approx(own_lines, rel=0.05), kind
    assert sorted(listed) == sorted(ROOMS)


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


def test_the_map_has_every_room_and_no_other():
    """A heading of the map names a room; what a module is stands in the module's docstring."""
    text = (ROOT / "WORKSPACE.md").read_text(encoding="utf-8")
    assert text.count("\n") <= MOST_LINES_OF_THE_MAP
    on_the_map = set(re.findall(r"^#+ `([\w./]+)/`", text, re.MULTILINE))
    folders = {path.parent.relative_to(ROOT).as_posix() for path in modules().values()}
    assert on_the_map == folders


@pytest.mark.parametrize("name", modules())
def test_modules_say_what_they_are(name):
    tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
    assert ast.get_docstring(tree) or not tree.body


def test_paths_on_the_map_lead_somewhere():
    text = (ROOT / "WORKSPACE.md").read_text(encoding="utf-8")
    roots = [ROOT, ROOT / "bert_estimator", ROOT / "bert_estimator" / "tpu" / "step"]
    for path in re.findall(r"`([\w.]+/[\w./]*)`", text):
        assert any((root / path).exists() for root in roots), path


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
