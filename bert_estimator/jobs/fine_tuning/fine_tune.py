"""The story of run_classifier.py and run_squad.py: prepare, train, evaluate, predict and export.

This module does not import TensorFlow, so wrong flags are reported before it is loaded.
"""

import contextlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_estimator.command_line import console
from bert_estimator.jobs.fine_tuning.fine_tuning_config import FineTuningConfig
from bert_estimator.jobs.job_config import open_directories


def fine_tune(
    argv: list[str],
    resolve: Callable[[list[str]], list[FineTuningConfig]],
    job_class: Callable[[], type],
) -> None:
    """Runs the fine-tuning of each seed of --num_seeds, or compiles its step.

    Args:
      resolve: function of a command line that returns the configurations of the seeds.
      job_class: function that returns the class of the `FineTuning`; it may load TensorFlow.
    """
    configs = resolve(argv)
    open_directories(configs)
    console.load_tensorflow()
    from bert_estimator.jobs.run import locked

    kind, results = job_class(), []
    with locked(configs):
        if configs[0].plan.compile_only:
            # The data says what the network depends on, and how many examples there are.
            if not kind(configs[0], kind.load(configs[0])).compile_step():
                raise SystemExit(1)
            return
        for config in configs:
            job = prepare(kind, config)
            with contextlib.closing(job.run):
                if config.do_train:
                    job.train()
                if config.do_eval:
                    results.append(job.evaluate())
                if config.do_predict:
                    job.predict()
                if config.do_export:
                    job.export()
                print(job.run.summary())
    print_spread(results)


def prepare(kind: type, config: FineTuningConfig) -> Any:
    """Returns the `FineTuning` of a configuration: its cores, data, network and estimator. All that
    can go wrong before step 0 is checked here."""
    from bert_estimator.jobs import job_estimator

    directory = config.open_directory()
    config = kind.completed(config.as_begun(directory))
    cores = config.devices.find()
    job_estimator.agree(config, cores)
    config = config.fitted(cores)
    data = kind.load(config)  # the examples, and the network that fits them
    job = kind(config, data, directory, cores.master)
    job.check()
    return job


def print_spread(results: Sequence[Mapping[str, float]]) -> None:
    """Prints how far what the evaluations of several seeds found, metric -> value, spreads."""
    for name in results[0] if len(results) > 1 else ():
        # A correlation with constant predictions is NaN, which would leave the median to chance.
        known = [result[name] for result in results if not math.isnan(result[name])]
        lost = f", {len(results) - len(known)} not a number" if len(known) < len(results) else ""
        known = known or [math.nan]
        print(
            f"{name} of {len(results)} seeds{lost}: median {statistics.median(known):.4f} "
            f"({min(known):.4f} to {max(known):.4f})"
        )
