"""Fine-tunes BERT to answer questions on texts with parts of these texts, as in SQuAD.

    python run_squad.py --use_tpu --precision=bfloat16

fine-tunes the checkpoint of run_pretraining.py, if it is there, on questions made from docstrings
that every Python carries, within some minutes on two cores, and prints exact match and F1 beside
baselines. With --train_file and --predict_file it is google-research/bert's run_squad.py, for files
in the layout of SQuAD 1.1 and, with --version_2_with_negative, 2.0; --eval_file is scored, too.
"""

import contextlib

from bert_estimator.command_line import console, help_page
from bert_estimator.jobs.fine_tuning.question_answering_config import (
    QuestionAnsweringConfig,
    resolve,
)
from bert_estimator.jobs.job_config import open_directories

# What takes TensorFlow is imported where it is used: wrong flags are reported before it is loaded.


def fine_tune_all(argv):
    """Runs the fine-tuning of each seed of --num_seeds."""
    configs = resolve(argv)
    open_directories(configs)
    console.load_tensorflow()
    from bert_estimator.jobs.fine_tuning import fine_tuning_job

    fine_tuning_job.run_seeds(configs, fine_tune, compile_step)


def fine_tune(config):
    """Trains, evaluates, answers and exports with one seed, as the flags say.

    Returns:
      What evaluation found, as a dict of metric -> float; empty without --do_eval.
    """
    answering = prepare(config)
    config, run = answering.config, answering.run
    with contextlib.closing(run):
        if config.do_train:
            answering.train()
        results = answering.evaluate() if config.do_eval else {}
        if config.do_predict:
            answering.predict()
        if config.do_export:
            answering.export()
        print(run.summary())
    return results


def prepare(config):
    """Returns the `QuestionAnswering` of a configuration: its cores, windows, network, estimator.

    All that can go wrong before step 0 is checked here.
    """
    from bert_estimator.jobs import estimator, fine_tuned
    from bert_estimator.jobs.fine_tuning import question_answering_data
    from bert_estimator.jobs.fine_tuning.question_answering_job import QuestionAnswering

    directory = config.open_directory()
    config = fine_tuned.with_length(config.as_begun(directory))
    config = fine_tuned.with_rules_of_answers(config)
    config, master = estimator.find_cores(config)
    data = question_answering_data.load(config)  # windows, and the network that fits them
    answering = QuestionAnswering(config, data, directory, master)
    answering.check()
    return answering


def compile_step(config):
    """Compiles the training step for a TPU that need not be there; returns whether it fits.

    The data is read for what the network depends on, and for the number of its examples.
    """
    from bert_estimator.jobs.fine_tuning import question_answering_data
    from bert_estimator.jobs.fine_tuning.question_answering_job import QuestionAnswering

    return QuestionAnswering(config, question_answering_data.load(config)).compile_step()


def main(argv):
    """Runs the script; returns the exit code of `console.exit_code`."""
    if console.has_answered(argv, lambda: help_page.of_config(QuestionAnsweringConfig, __doc__)):
        return 0
    return console.exit_code("run_squad.py", argv, lambda: fine_tune_all(argv), resumes=True)


def command():
    """Runs the console command `bert-answer`."""
    console.run(main)


if __name__ == "__main__":
    command()
