"""Tests that every name in the table exists."""

import importlib
import pathlib

import pytest

import bert_estimator
from bert_estimator.legacy import modules, names, paths, python_keras, wheel
from bert_estimator.legacy.paths import REMOVED

DOCS = pathlib.Path(bert_estimator.__file__).parent.parent / "docs" / "legacy.md"
ENTRIES = [
    (module, entry.partition("=")[0])
    for module, sources in names.MODULES.items()
    for home, given in sources
    for entry in given.split()
    if module != "tensorflow.keras" and "*" not in entry
    # These need the runner: test_contrib_estimator.py and test_python_keras.py look them up.
    if not home.startswith(wheel.PACKAGE) and module not in python_keras.MODULES
]


@pytest.mark.parametrize("module", sorted({module for module, _ in ENTRIES}))
def test_every_name_is_where_the_table_says(module):
    missing = []
    for of_module, name in ENTRIES:
        if of_module == module:
            try:
                modules.look_up(module, name)
            except AttributeError:
                missing.append(name)
    assert not missing


def test_a_star_gives_the_names_of_a_module_without_the_modules_below_it():
    for path in ("tensorflow.contrib.training", "tensorflow.contrib.crf", "tensorflow.losses"):
        listed = modules.LegacyModule(path).__all__
        assert set(listed) <= modules.names_of(path) and len(listed) > 10
    assert "slim" not in modules.LegacyModule("tensorflow.contrib").__all__


@pytest.mark.parametrize(
    ("module", "name", "home"),
    [
        ("tracking.base", "Trackable", "trackable.base"),
        ("tracking.base", "no_automatic_dependency_tracking", "trackable.base"),
        ("tracking.data_structures", "NoDependency", "trackable.data_structures"),
        ("tracking.data_structures", "_DictWrapper", "trackable.data_structures"),
        ("tracking.graph_view", "ObjectGraphView", "checkpoint.graph_view"),
        ("tracking.layer_utils", "is_layer", "trackable.layer_utils"),
        ("tracking.python_state", "PythonState", "trackable.python_state"),
        ("tracking.tracking", "AutoTrackable", "trackable.autotrackable"),
        ("tracking.tracking", "TrackableResource", "trackable.resource"),
        ("tracking.util", "TrackableSaver", "checkpoint.checkpoint"),
        ("checkpointable.base", "Checkpointable", "trackable.base"),
        ("checkpointable.tracking", "AutoCheckpointable", "trackable.autotrackable"),
        ("checkpointable.util", "CheckpointableSaver", "checkpoint.checkpoint"),
    ],
)
def test_objects_in_checkpoints_are_todays(module, name, home):
    found = modules.Finder().find_spec(f"tensorflow.python.training.{module}").loader_state
    value = getattr(found, name, None) or modules._moved(found.__name__, name)
    assert value.__module__ == f"tensorflow.python.{home}"


def test_sources_with_a_star_exist():
    for module, sources in names.MODULES.items():
        for home, given in sources:
            # Modules in the same place in tf_keras were found there.
            found = home.replace("tf_keras.src", "tensorflow.python.keras") == module
            if "*" in given and module != "tensorflow.keras" and not found:
                assert importlib.import_module(home)


def test_paths_lead_to_modules_of_the_table():
    assert set(paths.PATHS.values()) <= set(names.MODULES)
    assert not set(paths.PATHS) & set(names.MODULES)


def test_what_is_removed_is_not_given():
    for path in REMOVED:
        module, _, name = path.rpartition(".")
        assert path not in names.MODULES and path not in paths.PATHS
        with pytest.raises(AttributeError):
            modules.look_up(module, name)


def test_the_documentation_names_every_module_and_what_was_removed():
    text = DOCS.read_text(encoding="utf-8")
    missing = [
        path
        for path in names.MODULES
        if f"`{path.replace('tensorflow.', 'tf.')}`" not in text and path != "tensorflow"
        # One row has the whole tree.
        if not path.startswith("tensorflow.python.keras.")
    ]
    rows = [
        f"| `{path.replace('tensorflow.', 'tf.')}` | {was} | {instead} |\n"
        for path, (was, instead) in REMOVED.items()
    ]
    assert not missing + [row for row in rows if row not in text]
