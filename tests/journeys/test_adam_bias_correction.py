"""Fine-tuning's AdamW corrects the bias of its moments; a run begun without this goes on so."""

import json
import shutil

import numpy as np
import pytest
from scripts import CLASSIFIER, PRETRAINING, SQUAD, WAYS, write_data
from tiny_run import go_back, variables_of

SCRIPTS = {script.name: script for script in (CLASSIFIER, SQUAD, PRETRAINING)}
FLAG = "adam_bias_correction"
QUICK = [(CLASSIFIER, "session"), (CLASSIFIER, "2 cores")]
# Both fine-tunings take the flag, and remember it, by the same code.
ONE_FINE_TUNING = [CLASSIFIER, pytest.param(SQUAD, marks=pytest.mark.slow)]

pytestmark = pytest.mark.usefixtures("ways_on_cores")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory)


def flags_of(script, data, folder, **changes):
    own = {"num_warmup_steps": 0} if script is PRETRAINING else {}
    rule = {"optimizer": "adamw", "learning_rate": 1e-3, "save_checkpoints_steps": 2}
    verbs = {"do_train": True, "do_eval": False}
    return script.flags(data[script.name], folder, **own, **rule, **verbs, **changes)


def trained(script, data, folder, steps=4, **changes):
    """Trains; returns the variables of the last checkpoint."""
    flags = flags_of(script, data, folder, **script.steps(steps), **changes)
    assert script.main(flags) == 0
    return variables_of(folder, steps)


def recorded(folder):
    return json.loads((folder / "config.json").read_text())["flags"]


def forget(folder, *names):
    """Takes flags out of config.json, as versions without these flags wrote it."""
    config = json.loads((folder / "config.json").read_text())
    for name in names:
        del config["flags"][name]
    (folder / "config.json").write_text(json.dumps(config))


def is_same(one, other):
    return all(np.array_equal(one[name], value) for name, value in other.items())


@pytest.mark.parametrize(
    ("script", "way"),
    [
        pytest.param(
            script,
            way,
            marks=() if (script, way) in QUICK else pytest.mark.slow,
            id=f"{name}-{way}",
        )
        for name, script in SCRIPTS.items()
        for way in WAYS
    ],
)
def test_a_corrected_run_is_the_same_if_it_is_resumed(script, way, data, tmp_path):
    changes = {FLAG: True, **WAYS[way]}
    expected = trained(script, data, tmp_path, **changes)
    go_back(tmp_path)
    assert is_same(trained(script, data, tmp_path, **changes), expected)
    other = trained(script, data, tmp_path / "other", **{**changes, FLAG: False})
    assert not is_same(other, expected)


@pytest.mark.parametrize("script", [*ONE_FINE_TUNING, PRETRAINING], ids=lambda s: s.name)
def test_a_run_goes_on_as_it_began(script, data, tmp_path, capsys):
    expected = trained(script, data, tmp_path / "run", **{FLAG: False}, pack=False)
    assert recorded(tmp_path / "run")[FLAG] == {"value": False, "from": "flag"}
    for before in ("said", "not said", "of another program"):
        folder = tmp_path / before
        shutil.copytree(tmp_path / "run", folder)
        go_back(folder)
        if before == "not said":
            forget(folder, FLAG, "pack")
        if before == "of another program":  # google-research/bert, which does not pack rows either
            (folder / "config.json").unlink()
        assert is_same(trained(script, data, folder), expected), before
        entries = recorded(folder)
        assert (entries[FLAG]["value"], entries["pack"]["value"]) == (False, False)
    forget(tmp_path / "run", FLAG)
    go_back(tmp_path / "run")
    flags = flags_of(script, data, tmp_path / "run", **script.steps(4), **{FLAG: True})
    assert script.main(flags) == 2
    assert "holds a run with --adam_bias_correction=False. Leave the flag out" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("script", ONE_FINE_TUNING, ids=lambda script: script.name)
def test_a_new_fine_tuning_corrects_unless_a_file_says_otherwise(script, data, tmp_path):
    expected = trained(script, data, tmp_path / "default", steps=1)
    assert recorded(tmp_path / "default")[FLAG] == {"value": True, "from": "default"}
    assert is_same(trained(script, data, tmp_path / "on", steps=1, **{FLAG: True}), expected)
    off = trained(script, data, tmp_path / "off", steps=1, **{FLAG: False})
    assert not is_same(off, expected)
    (tmp_path / "flags.json").write_text(json.dumps({FLAG: False}))
    changes = {"config": tmp_path / "flags.json"}
    assert is_same(trained(script, data, tmp_path / "config", steps=1, **changes), off)
    assert recorded(tmp_path / "config")[FLAG] == {"value": False, "from": "flag"}


@pytest.mark.parametrize(
    "script",
    [*ONE_FINE_TUNING, pytest.param(PRETRAINING, marks=pytest.mark.slow)],
    ids=lambda script: script.name,
)
def test_the_config_of_an_older_run_repeats_it(script, data, tmp_path):
    rule = {**{FLAG: False}, "pack": False}
    expected = trained(script, data, tmp_path / "first", steps=1, **rule)
    forget(tmp_path / "first", *rule)
    config = tmp_path / "first" / "config.json"
    assert script.main([f"--config={config}", f"--output_dir={tmp_path / 'again'}"]) == 0
    assert is_same(variables_of(tmp_path / "again", 1), expected)


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_other_optimizers_refuse_the_flag(script, data, tmp_path, capsys):
    flags = [*flags_of(script, data, tmp_path), "--optimizer=lars"]
    assert script.main([*flags, f"--{FLAG}"]) == 2
    assert f"--{FLAG}=True: needs --optimizer=adamw, not lars" in capsys.readouterr().err
    assert script.main([*flags, f"--no{FLAG}", "--train_batch_size=0"]) == 2
    assert "--train_batch_size=0: must be positive" in capsys.readouterr().err
