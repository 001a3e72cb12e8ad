"""Records what scripts print on TensorFlow 1.15 and 2.15, as the goldens of tests of the runner.

    python tests/legacy/printed.py --tf2_python=PATH_OF_PYTHON --tf1_python=PATH_OF_PYTHON

The first Python needs `pip install 'tensorflow==2.15.*'`: it runs `scripts_of_2/*.py`. The second
needs TensorFlow 1.15.5: it runs `scripts/keras_tree.py` and `scripts/contrib_parts.py`.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

HERE = pathlib.Path(__file__).parent
KERAS_TREE = HERE / "scripts" / "keras_tree.py"
KERAS_TREE_GOLDEN = HERE / "goldens" / "keras_tree.json"
CONTRIB_PARTS = HERE / "scripts" / "contrib_parts.py"
CONTRIB_PARTS_GOLDEN = HERE / "goldens" / "contrib_parts.json"
SCRIPTS_OF_2 = HERE / "scripts_of_2"
GOLDEN_OF_2 = HERE / "goldens" / "scripts_of_2.json"


def read(text):
    """Returns the results in what a script printed: name -> what it saw."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {name: seen for line in lines for name, seen in line.items()}


def _run(python, script, *arguments):
    command = [python, str(script), *arguments]
    return read(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def _write(path, golden):
    path.write_text(json.dumps(golden, indent=0, sort_keys=True) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tf1_python", help="run TensorFlow 1.15.5 with this Python")
    parser.add_argument("--tf2_python", help="run TensorFlow 2.15 with this Python")
    arguments = parser.parse_args()
    if arguments.tf1_python:
        names = _run(arguments.tf1_python, KERAS_TREE, "--names")
        _write(KERAS_TREE_GOLDEN, {"names": names, **_run(arguments.tf1_python, KERAS_TREE)})
        golden = _run(arguments.tf1_python, CONTRIB_PARTS)
        lines = [f"{json.dumps(name)}: {json.dumps(values)}" for name, values in golden.items()]
        CONTRIB_PARTS_GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    if arguments.tf2_python:
        golden = {}
        for script in sorted(SCRIPTS_OF_2.glob("*.py")):
            with tempfile.TemporaryDirectory() as folder:
                golden.update(_run(arguments.tf2_python, script, folder))
        _write(GOLDEN_OF_2, golden)


if __name__ == "__main__":
    main()
