"""Tests where the values of flags come from, and the file of --config."""

import json

import pytest

from bert_estimator.command_line import flags, provenance
from bert_estimator.command_line.flags import FlagError
from bert_estimator.command_line.provenance import Origin, Provenance, read_command_line
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.jobs.fine_tuning.fine_tuning_config import FineTuningConfig
from bert_estimator.jobs.job_config import JobConfig
from bert_estimator.storage import remote

TEXTS = {
    "flag": provenance.FLAG,
    "default": provenance.DEFAULT,
    "embedded default": provenance.EMBEDDED,
    "google-research/bert": Provenance(Origin.GOOGLE),
    "lamb_76min: paper": Provenance(Origin.PAPER, "lamb_76min"),
    "nvidia: NVIDIA": Provenance(Origin.NVIDIA, "nvidia"),
    "lamb_8k: assumed, scaled from 65536": Provenance(Origin.ASSUMED, "lamb_8k", scaled_from=65536),
    "lamb_8k: paper, scaled from 0.00353553": Provenance(
        Origin.PAPER, "lamb_8k", scaled_from=0.00353553
    ),
    "lamb_1k: paper, scaled from 9e-05": Provenance(Origin.PAPER, "lamb_1k", scaled_from=9e-5),
    "lamb_76min: scaled": Provenance(Origin.SCALED, "lamb_76min"),
    "lamb_76min: stage 1": Provenance(Origin.STAGE, "lamb_76min", stage=1),
}


@pytest.mark.parametrize("text", TEXTS)
def test_text(text):
    assert str(TEXTS[text]) == text


def test_a_value_scaled_from_many_digits_keeps_six():
    source = Provenance(Origin.PAPER, "lamb_16k", scaled_from=0.0035355339)
    assert str(source) == "lamb_16k: paper, scaled from 0.00353553"


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


def test_a_file_gives_flags_and_the_command_line_comes_first(tmp_path):
    values = {"learning_rate": 0.5, "use_tpu": True, "tpu_name": None, "optimizer": "lars"}
    path = write(tmp_path / "run.json", values)
    settings, sources = read_command_line(
        JobConfig, ["script", "--optimizer=lamb", f"--config={path}"]
    )
    assert (settings["learning_rate"], settings["use_tpu"]) == (0.5, True)
    assert (settings["optimizer"], settings["tpu_name"]) == ("lamb", None)
    given = {name for name, source in sources.items() if source == provenance.FLAG}
    assert given == {"learning_rate", "use_tpu", "optimizer", "config"}


def test_the_config_of_a_run_repeats_its_command_line(tmp_path):
    line = ["script", "--learning_rate=0.25", "--nodo_eval", f"--output_dir={tmp_path / 'first'}"]
    settings, sources = read_command_line(FineTuningConfig, line)
    recorded = flags.build(FineTuningConfig, settings).settings()
    (tmp_path / "first").mkdir()
    RunDirectory(str(tmp_path / "first")).write_config(recorded, sources, "digest")
    path = str(tmp_path / "first" / "config.json")
    again, sources = read_command_line(
        FineTuningConfig, ["script", f"--config={path}", "--output_dir=second"]
    )
    assert again == {**settings, "config": path, "output_dir": "second"}
    assert sources["precision"] == provenance.DEFAULT
    assert provenance.file_arguments(path) == ["--do_eval=false", "--learning_rate=0.25"]


def test_the_config_of_a_run_from_scratch_says_so(tmp_path):
    """The empty flag is not left out: it overrides the checkpoint of a recipe or a task."""
    settings, sources = read_command_line(FineTuningConfig, ["script", "--init_checkpoint="])
    recorded = flags.build(FineTuningConfig, settings).settings()
    RunDirectory(str(tmp_path)).write_config(recorded, sources, "digest")
    assert provenance.file_arguments(str(tmp_path / "config.json")) == ["--init_checkpoint="]


def test_a_remote_file(tmp_path):
    url = f"ram:/{tmp_path}/run.json"
    remote.write(b'{"use_tpu": true, "tpu_name": null}', url)
    assert provenance.file_arguments(url) == ["--use_tpu=true"]
    with pytest.raises((FlagError, remote.StorageError), match=r"ram:/.*missing_run"):
        provenance.file_arguments(f"ram:/{tmp_path}/missing_run.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "run.json: is not JSON"),
        ([1], "run.json: must be an object, not "),
        ({"learning_rate": [1]}, "run.json: learning_rate: must be a string, a number, true or"),
        ({"flags": [1]}, "run.json: flags: must be an object"),
        ({"flags": {"learning_rate": 1}}, "run.json: flags: learning_rate: must be an object"),
        ({"learning_rat": 1}, "--learning_rat: no such flag; did you mean --learning_rate"),
        ({"learning_rate": "fast"}, "--learning_rate=fast: must be a number"),
        ({"config": "other.json"}, None),
        (None, "run.json: No such file or directory"),
    ],
)
def test_what_a_file_cannot_say(tmp_path, content, message):
    path = tmp_path / "run.json"
    if content is not None:
        write(path, content)
    line = ["script", f"--config={path}"]
    if message is None:  # The command line's own --config counts.
        assert read_command_line(JobConfig, line)[0]["config"] == str(path)
        return
    with pytest.raises(FlagError) as caught:
        read_command_line(JobConfig, line)
    assert message in str(caught.value)
