"""What the commands that make data have in common: their help, and errors that name flags."""

import os
import subprocess
import sys

import pytest

from bert_estimator.command_line import flags
from input_pipelines import arguments

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COMMANDS = ("create_text", "create_vocabulary", "create_pretraining_data")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_the_console_command(name):
    """It comes at once: what takes long to import is not imported. pip's script defines no flag."""
    program = (
        f"import sys; from input_pipelines import {name}\n"
        "sys.argv = ['bert-command', '--help']\n"
        f"try: {name}.command()\n"
        "finally: print(sorted({'numpy', 'tensorflow'} & {*sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]\n"
    needed, others = done.stdout.split("\nFlags:\n")
    assert f"python -m input_pipelines.{name}" in needed and "```" not in needed
    assert "  --input_file=TEXT" in needed and "  --text_field=TEXT" in others
    assert "  --flagfile=FILE" in others and "  --version" in others
    assert "(default: auto)" in others and "helpfull" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


@flags.group()
class Config:
    path: str | None = flags.field(None, "Read this.", heading=arguments.NEEDED)
    count: int | None = flags.field(None, "Use this number.", flags.positive)
    fast: bool = flags.field(True, "Make it fast.")
    share: float = flags.field(0.5, "Take a part.")

    def __post_init__(self):
        if self.share > 1:
            raise ValueError(f"share is {self.share}; it must be at most 1.")


def test_the_help_of_a_flag(capsys):
    argv = ["program", "--help"]
    assert arguments.exit_code("program", "Does something.", Config, str, argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["Does something.", "", "Flags that are needed:"]
    assert [" ".join(line.split()) for line in lines[3:-3] if line.startswith("  ")] == [
        "--path=TEXT Read this.",
        "--count=N Use this number.",
        "--[no]fast Make it fast. (default: true)",
        "--share=X Take a part. (default: 0.5)",
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "--path is needed; --help lists all flags"),
        (["--path=a", "--count=0"], "--count=0: must be positive"),
        (["--path=a", "--share=2"], "--share is 2.0; it must be at most 1."),
        (["--path=a", "--share=nan"], "--share=nan: "),
    ],
)
def test_what_cannot_work(argv, message, capsys):
    assert arguments.exit_code("program", "", Config, str, ["program", *argv]) == 2
    assert capsys.readouterr().err.startswith(f"program: {message}")
