"""Fine-tunes BERT to tell something of a text, or of a pair of texts.

    python run_classifier.py --use_tpu --precision=bfloat16

fine-tunes the checkpoint of run_pretraining.py, if it is there, on a labelled task made from what
every Python carries, within a minute or two on two cores, and prints the accuracy beside baselines.
With --task_name and --data_dir it is google-research/bert's run_classifier.py, for all of GLUE and
XNLI; with --train_file, --eval_file and --predict_file it reads your own TSV, CSV or JSONL files.
"""

import contextlib

from bert_estimator.command_line import console, help_page
from bert_estimator.jobs.fine_tuning.classification_config import ClassificationConfig, resolve
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
    """Trains, evaluates, predicts and exports with one seed, as the flags say.

    Returns:
      What evaluation found, as a dict of metric -> float; empty without --do_eval.
    """
    classification = prepare(config)
    config, run = classification.config, classification.run
    with contextlib.closing(run):
        if config.do_train:
            classification.train()
        results = classification.evaluate() if config.do_eval else {}
        if config.do_predict:
            classification.predict()
        if config.do_export:
            classification.export()
        print(run.summary())
    return results


def prepare(config):
    """Returns the `Classification` of a configuration: its cores, task, network and estimator.

    All that can go wrong before step 0 is checked here.
    """
    from bert_estimator.jobs import estimator, fine_tuned
    from bert_estimator.jobs.fine_tuning import classification_data
    from bert_estimator.jobs.fine_tuning.classification_job import Classification

    directory = config.open_directory()
    config = fine_tuned.with_length(config.as_begun(directory))
    config, master = estimator.find_cores(config)
    data = classification_data.load(config)  # features and labels, and the network that fits them
    classification = Classification(config, data, directory, master)
    classification.check()
    return classification


def compile_step(config):
    """Compiles the training step for a TPU that need not be there; returns whether it fits.

    The data is read for what the network depends on, and for the number of its examples.
    """
    from bert_estimator.jobs.fine_tuning import classification_data
    from bert_estimator.jobs.fine_tuning.classification_job import Classification

    return Classification(config, classification_data.load(config)).compile_step()


def main(argv):
    """Runs the script; returns the exit code of `console.exit_code`."""
    if console.has_answered(argv, lambda: help_page.of_config(ClassificationConfig, __doc__)):
        return 0
    return console.exit_code("run_classifier.py", argv, lambda: fine_tune_all(argv), resumes=True)


def command():
    """Runs the console command `bert-classify`."""
    console.run(main)


if __name__ == "__main__":
    command()
