"""Every command of the project, called within the tests' process, each with arguments that work."""

import contextlib
import importlib
import io
import shutil

import project
from fixtures import DATA
from scripts import CLASSIFIER, PRETRAINING, SQUAD

TEXT = "w1 w2 w3\nw4 w5\n\nw6 w7 w8\nw9 w1\n\nw2 w3\nw5 w8\n"


def _main_of(module):
    return lambda argv: importlib.import_module(module).main(argv)


# The console commands of pyproject.toml, in its order: a name -> "module:function".
_NAMES = (
    "pretraining classifier squad text vocabulary records predict embed fill serve convert legacy "
    "run_program"
)
CONSOLE = dict(zip(_NAMES.split(), project.read()["scripts"].values(), strict=True))
MAINS = {name: _main_of(target.partition(":")[0]) for name, target in CONSOLE.items()}


def write_inputs(folder):
    """Writes what the arguments of `arguments` name."""
    for script in (PRETRAINING, CLASSIFIER, SQUAD):
        path = folder / script.module.__name__
        path.mkdir()
        script.write_data(path)
    (folder / "text.txt").write_text(TEXT)
    shutil.copyfile(folder / "run_pretraining" / "vocab.txt", folder / "vocab.txt")
    for model in ("hf_classifier", "tf1"):
        shutil.copytree(DATA / model, folder / model)
    (folder / "script.py").write_text("print('runs')\n")


def arguments(command, folder, output):
    """Returns arguments with which a command works, on what `write_inputs` wrote to a folder."""
    return {
        "pretraining": lambda: PRETRAINING.flags(folder / "run_pretraining", output),
        "classifier": lambda: CLASSIFIER.flags(folder / "run_classifier", output),
        "squad": lambda: SQUAD.flags(folder / "run_squad", output),
        "text": lambda: [f"--input_file={folder}/text.txt", f"--output_file={output}"],
        "vocabulary": lambda: [
            f"--input_file={folder}/text.txt", f"--vocab_file={output}", "--vocab_size=40",
        ],
        "records": lambda: [
            f"--input_file={folder}/text.txt", f"--output_file={output}",
            f"--vocab_file={folder}/vocab.txt", "--max_seq_length=16",
            "--max_predictions_per_seq=4",
        ],
        "convert": lambda: [f"{folder}/hf_classifier", str(output)],
        "predict": lambda: [f"{folder}/exported"],
        "embed": lambda: [f"{folder}/hf_classifier", f"{folder}/text.txt"],
        "fill": lambda: [f"{folder}/tf1", "Word1 [MASK]"],
        "serve": lambda: [f"{folder}/hf_classifier", "--port=0"],
        "legacy": lambda: [f"{folder}/script.py"],
        "run_program": lambda: [f"{folder}/program"],
    }[command]()  # fmt: skip


def call(command, argv):
    """Calls a command; returns (exit code, what it printed on stderr)."""
    err, out = io.StringIO(), io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
        try:
            code = MAINS[command]([command, *argv])
        except SystemExit as end:  # of argparse
            code = end.code
    return code, err.getvalue()
