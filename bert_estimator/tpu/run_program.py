"""Runs an exported program: `python -m bert_estimator.tpu.run_program DIRECTORY`."""

from bert_estimator.tpu.program.run_program import command

if __name__ == "__main__":
    command()
