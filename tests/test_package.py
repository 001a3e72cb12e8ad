"""The wheel has all that its users need: it is built, installed and used outside of the clone."""

import importlib
import pathlib
import re
import subprocess
import sys

import commands
import pytest

import bert_estimator
from tests.support import project

ROOT = pathlib.Path(bert_estimator.__file__).parent.parent
PROJECT = project.read()


@pytest.mark.parametrize("command", commands.MAINS)
def test_every_command_tells_its_version(command, capsys):
    try:
        code = commands.MAINS[command]([command, "--version"])
    except SystemExit as end:  # argparse
        code = end.code
    assert code == 0
    assert capsys.readouterr().out == f"bert-estimator {bert_estimator.__version__}\n"


def test_every_console_command_is_a_function():
    for target in PROJECT["scripts"].values():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function)), target


def test_the_oldest_python_has_all_that_is_used(tmp_path):
    """vermin knows which names and syntax came with which Python; `# novm` skips a line."""
    (tmp_path / "new.py").write_text("from typing import Self")
    oldest = re.match(r">=(3\.\d+),", PROJECT["requires-python"])[1]
    command = [sys.executable, "-c", "import vermin; vermin.main()", f"-t={oldest}-", "--no-tips"]
    parts = ["bert_estimator", "input_pipelines", "benchmarks", "tests", *ROOT.glob("*.py")]
    done = subprocess.run(
        [*command, "--violations", tmp_path, *parts], cwd=ROOT, capture_output=True, text=True
    )
    found = re.findall(r"^ *(.*) requires !2, 3\.\d+$", done.stdout, re.MULTILINE)
    assert found == ["'typing.Self' member"], done.stdout


@pytest.mark.slow
def test_the_wheel_runs_outside_of_the_clone(tmp_path):
    """Builds the wheel, installs it into a folder, and runs the main job's first steps from it."""

    def run(*command, **options):
        process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, **options)
        assert process.returncode == 0, process.stderr[-3000:]
        return process.stdout

    pip = [sys.executable, "-m", "pip", "-q"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    run(*pip, "install", "--no-deps", "--target", tmp_path / "site", wheel)
    site = tmp_path / "site"
    environment = {"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    packages = ("bert_estimator", "input_pipelines")
    for package in packages:
        installed = {p.relative_to(site) for p in (site / package).rglob("*") if p.is_file()}
        here = {
            p.relative_to(ROOT)
            for p in (ROOT / package).rglob("*")
            if p.is_file() and "__pycache__" not in p.parts
        }
        assert {p for p in installed if "__pycache__" not in p.parts} == here
    for name in PROJECT["scripts"]:
        assert (site / "bin" / name).exists()
    where = run(
        sys.executable,
        "-c",
        "import bert_estimator; print(bert_estimator.__file__)",
        env=environment,
    )
    assert where.startswith(str(site))
    steps = ["--num_train_steps=4", "--num_warmup_steps=2", "--max_eval_steps=2"]
    run(sys.executable, site / "bin" / "bert-pretrain", "--use_tpu", *steps, env=environment)
    run_directory = tmp_path / "runs" / "pretraining"
    assert (run_directory / "model.ckpt-4.index").exists()
    run(
        sys.executable, site / "bin" / "bert-convert", run_directory, tmp_path / "converted",
        env=environment,
    )  # fmt: skip
    assert (tmp_path / "converted" / "model.safetensors").exists()
