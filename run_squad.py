"""Fine-tunes BERT to answer questions on texts with parts of these texts, as in SQuAD.

    python run_squad.py --use_tpu --precision=bfloat16

fine-tunes the checkpoint of run_pretraining.py, if it is there, on questions made from docstrings
that every Python carries, within some minutes on two cores, and prints exact match and F1 beside
baselines. With --train_file and --predict_file it is google-research/bert's run_squad.py, for files
in the layout of SQuAD 1.1 and, with --version_2_with_negative, 2.0; --eval_file is scored, too.
"""

import functools

from bert_estimator.command_line import console, flags
from bert_estimator.jobs.fine_tuning.fine_tune import fine_tune
from bert_estimator.jobs.fine_tuning.question_answering_config import (
    QuestionAnsweringConfig,
    resolve,
)


def job_class():
    """Returns what is fine-tuned; wrong flags are reported before this loads TensorFlow."""
    from bert_estimator.jobs.fine_tuning.question_answering_job import QuestionAnswering

    return QuestionAnswering


def main(argv):
    """Runs the script; returns the exit code of `console.exit_code`."""
    if console.has_answered(argv, lambda: flags.help_of_script(QuestionAnsweringConfig, __doc__)):
        return 0
    body = functools.partial(fine_tune, argv, resolve, job_class)
    return console.exit_code("run_squad.py", argv, body, resumes=True)


def command():
    """Runs the console command `bert-answer`."""
    console.run(main)


if __name__ == "__main__":
    command()
