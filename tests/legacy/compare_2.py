"""Runs the scripts of `scripts_of_2/` on TensorFlow 2.15, and records what they print.

    python tests/legacy/compare_2.py --tf2_python=PATH_OF_PYTHON

This Python needs `pip install 'tensorflow==2.15.*'`, which has tf.estimator. The golden is what
`test_scripts_of_2.py` compares the legacy runner with.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

HERE = pathlib.Path(__file__).parent
SCRIPTS = HERE / "scripts_of_2"
GOLDEN = HERE / "goldens" / "scripts_of_2.json"


def read(text):
    """Returns the results in what a script printed: name -> what it saw."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {name: seen for line in lines for name, seen in line.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tf2_python", required=True, help="run TensorFlow 2.15 with this Python")
    arguments = parser.parse_args()
    golden = {}
    for script in sorted(SCRIPTS.glob("*.py")):
        with tempfile.TemporaryDirectory() as folder:
            command = [arguments.tf2_python, str(script), folder]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        golden.update(read(done.stdout))
    GOLDEN.write_text(json.dumps(golden, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
