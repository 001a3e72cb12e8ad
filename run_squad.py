"""Fine-tunes BERT to answer questions on texts with parts of these texts, as in SQuAD.

    python run_squad.py --use_tpu --precision=bfloat16

fine-tunes the checkpoint of run_pretraining.py, if it is there, on questions made from docstrings
that every Python carries, within some minutes on two cores, and prints exact match and F1 beside
baselines. With --train_file and --predict_file it is google-research/bert's run_squad.py, for files
in the layout of SQuAD 1.1 and, with --version_2_with_negative, 2.0; --eval_file is scored, too.
"""

import sys

from bert_estimator.command_line import console
from bert_estimator.jobs.fine_tuning import question_answering_config
from bert_estimator.system import tensorflow_import


def main(argv):
    """Runs the script; returns the exit code of `console.main`."""

    def job():
        configs = question_answering_config.resolve(argv)
        console.load_tensorflow()  # only now, since it takes seconds: the flags have been checked
        from bert_estimator.jobs.fine_tuning import question_answering_job

        question_answering_job.run(configs)

    config_class = question_answering_config.QuestionAnsweringConfig
    return console.main("run_squad.py", argv, __doc__, config_class, job)


def command():
    """Runs the console command `bert-answer`."""
    tensorflow_import.prepare()
    console.leave(main(sys.argv))


if __name__ == "__main__":
    command()
