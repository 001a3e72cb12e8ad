"""What the commands that make data have in common: their help, and errors that name flags."""

import os
import subprocess
import sys

import pytest
from absl import flags

from input_pipelines import arguments

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COMMANDS = ("create_text", "create_vocabulary", "create_pretraining_data")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_the_console_command(name):
    """A console command's `__main__` is a script of pip, which does not define any flag.

    The help comes at once: what takes long to import is not imported.
    """
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


def test_the_help_of_a_flag(monkeypatch):
    values = flags.FlagValues()
    monkeypatch.setattr(flags, "FLAGS", values)
    flags.DEFINE_string("path", None, "Read this.", required=True, flag_values=values)
    flags.DEFINE_integer("count", None, "Use this number.", lower_bound=1, flag_values=values)
    flags.DEFINE_enum("kind", "a", ["a", "b"], "Choose.", flag_values=values)
    flags.DEFINE_bool("fast", True, "Make it fast.", flag_values=values)
    flags.DEFINE_float("share", 0.5, "Take a part.", flag_values=values)
    text = arguments.help_text("Does something.", ["path", "count", "kind", "fast", "share"])
    lines = text.splitlines()
    assert lines[:4] == ["Does something.", "", "Flags that are needed:", lines[3]]
    assert [" ".join(line.split()) for line in lines[3:-3] if line.startswith("  ")] == [
        "--path=TEXT Read this.",
        "--count=N Use this number.",
        "--kind=a|b Choose. (default: a)",
        "--[no]fast Make it fast. (default: true)",
        "--share=X Take a part. (default: 0.5)",
    ]
