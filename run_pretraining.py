"""Pretrains BERT: masked words and next sentence, with LAMB, AdamW, LARS or Adafactor.

    python run_pretraining.py --use_tpu --precision=bfloat16

trains a small BERT on English text that every Python carries, in less than a minute of training on
two cores, and evaluates it on held-out text. With --input_file and --bert_config_file it is
google-research/bert's run_pretraining.py, flags and records included.
"""

import sys

from bert_estimator.command_line import console
from bert_estimator.jobs.pretraining import config
from bert_estimator.system import tensorflow_import


def main(argv):
    """Runs the script; returns the exit code of `console.main`."""

    def job():
        configs = config.resolve(argv)
        console.load_tensorflow()  # only now, since it takes seconds: the flags have been checked
        from bert_estimator.jobs.pretraining import job as pretraining_job

        pretraining_job.run(configs)

    config_class = config.PretrainingConfig
    return console.main("run_pretraining.py", argv, __doc__, config_class, job)


def command():
    """Runs the console command `bert-pretrain`."""
    tensorflow_import.prepare()
    console.leave(main(sys.argv))


if __name__ == "__main__":
    command()
