"""Fine-tunes BERT to tell something of a text, or of a pair of texts.

    python run_classifier.py --use_tpu --precision=bfloat16

fine-tunes the checkpoint of run_pretraining.py, if it is there, on a labelled task made from what
every Python carries, within a minute or two on two cores, and prints the accuracy beside baselines.
With --task_name and --data_dir it is google-research/bert's run_classifier.py, for all of GLUE and
XNLI; with --train_file, --eval_file and --predict_file it reads your own TSV, CSV or JSONL files.
"""

import functools

from bert_estimator.command_line import console, flags
from bert_estimator.jobs.fine_tuning.classification_config import ClassificationConfig, resolve
from bert_estimator.jobs.fine_tuning.fine_tune import fine_tune


def job_class():
    """Returns what is fine-tuned; wrong flags are reported before this loads TensorFlow."""
    from bert_estimator.jobs.fine_tuning.classification_job import Classification

    return Classification


def main(argv):
    """Runs the script; returns the exit code of `console.exit_code`."""
    if console.has_answered(argv, lambda: flags.help_of_script(ClassificationConfig, __doc__)):
        return 0
    body = functools.partial(fine_tune, argv, resolve, job_class)
    return console.exit_code("run_classifier.py", argv, body, resumes=True)


def command():
    """Runs the console command `bert-classify`."""
    console.run(main)


if __name__ == "__main__":
    command()
