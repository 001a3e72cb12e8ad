"""Runs an exported program: `python -m bert_estimator.tpu.run_program DIRECTORY`."""

import sys

from bert_estimator.system import tensorflow_import
from bert_estimator.tpu.program.run_program import main


def command() -> None:
    """Runs the console command `tpu-run-program`."""
    tensorflow_import.prepare()
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    command()
