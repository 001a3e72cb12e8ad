"""Pretrains BERT: masked words, and next sentence or sentence order or neither of the two.

    python run_pretraining.py --use_tpu --precision=bfloat16

trains a small BERT on English text that every Python carries, in less than a minute of training on
two cores, and evaluates it on held-out text. With --input_file and --bert_config_file it is
google-research/bert's run_pretraining.py, flags and records included.
"""

import contextlib
import functools

from bert_estimator.command_line import console, flags
from bert_estimator.jobs.job_config import open_directories
from bert_estimator.jobs.pretraining.pretraining_config import PretrainingConfig, resolve

# What takes TensorFlow is imported where it is used: wrong flags are reported before it is loaded.


def pretrain(argv):
    """Runs the stages of a recipe, or one run, each from the last weights of the stage before it;
    flags and files of all stages are checked before the first stage trains."""
    stages = resolve(argv)
    open_directories(stages)
    console.load_tensorflow()
    from bert_estimator.jobs.pretraining import pretraining_data, pretraining_job
    from bert_estimator.jobs.run import locked

    with locked(stages):
        if stages[0].plan.compile_only:
            pretraining_job.compile_steps(stages)
            return
        pretrainings = [prepare(stage) for stage in stages]
        pretraining_data.check_stages([(p.config.data.input_file, p.data) for p in pretrainings])
        for pretraining in pretrainings:
            config = pretraining.config
            config.announce()
            with contextlib.closing(pretraining.run):
                pretraining.write_config()
                if config.export_program:
                    pretraining.export_program()
                    continue
                if config.do_eval:
                    print(pretraining.data.evaluated(pretraining.most_evaluated()), flush=True)
                if config.do_train:
                    pretraining.train()
                if config.do_eval:
                    pretraining.evaluate()
                print(pretraining.run.summary())


def prepare(config):
    """Returns the `Pretraining` of a configuration, with its network, cores, records and estimator;
    all that can go wrong before step 0 is checked here."""
    from bert_estimator.jobs import facts, job_estimator
    from bert_estimator.jobs.pretraining import pretraining_data, pretraining_job
    from bert_estimator.jobs.run import Run

    directory = config.open_directory()
    network = config.network.build(config.output_dir, config.bert_config)
    job_estimator.check_sizes(config, network)
    facts.check_network(directory, network, config.do_train)
    config = config.as_begun(directory)
    # What it runs on decides which batches fit, and what it reads whether rows are packed.
    cores = config.devices.find()
    job_estimator.agree(config, cores)
    config = config.fitted(cores)
    is_new = not directory.holds_checkpoint()
    records = pretraining_data.prepare(config, network.vocab_size, is_new=is_new)
    config = config.packed(records.lengths and records.lengths.token_share)
    config = flags.changed(config, objective=records.objective)
    schedule = config.training.schedule()
    rule = config.training.update_rule(schedule, config.output_dir, network)
    estimator = pretraining_job.make_estimator(config, network, rule, cores.master, records)
    run = Run(config, directory, estimator)
    # `Pretraining.make_input_fn` gives the estimator the records, to train and to evaluate.
    pretraining = pretraining_job.Pretraining(config, network, rule, records, run)
    pretraining.check()
    return pretraining


def main(argv):
    """Runs the script; returns the exit code of `console.exit_code`."""
    if console.has_answered(argv, lambda: flags.help_of_script(PretrainingConfig, __doc__)):
        return 0
    body = functools.partial(pretrain, argv)
    return console.exit_code("run_pretraining.py", argv, body, resumes=True)


def command():
    """Runs the console command `bert-pretrain`."""
    console.run(main)


if __name__ == "__main__":
    command()
