"""Fine-tunes BERT to tell something of a text, or of a pair of texts.

    python run_classifier.py --use_tpu --precision=bfloat16

fine-tunes the checkpoint of run_pretraining.py, if it is there, on a labelled task made from what
every Python carries, within a minute or two on two cores, and prints the accuracy beside baselines.
With --task_name and --data_dir it is google-research/bert's run_classifier.py, for all of GLUE and
XNLI; with --train_file, --eval_file and --predict_file it reads your own TSV, CSV or JSONL files.
"""

import sys

from bert_estimator.command_line import console
from bert_estimator.jobs.fine_tuning import classification_config
from bert_estimator.system import tensorflow_import


def main(argv):
    """Runs the script; returns the exit code of `console.main`."""

    def job():
        configs = classification_config.resolve(argv)
        console.load_tensorflow()  # only now, since it takes seconds: the flags have been checked
        from bert_estimator.jobs.fine_tuning import classification_job

        classification_job.run(configs)

    config_class = classification_config.ClassificationConfig
    return console.main("run_classifier.py", argv, __doc__, config_class, job)


def command():
    """Runs the console command `bert-classify`."""
    tensorflow_import.prepare()
    console.leave(main(sys.argv))


if __name__ == "__main__":
    command()
