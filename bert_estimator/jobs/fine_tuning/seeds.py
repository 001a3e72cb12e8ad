"""The runs of a fine-tuning: one, or one for each seed of --num_seeds."""

import math
import statistics
from collections.abc import Sequence

from bert_estimator.jobs.fine_tuning.config import FineTuningConfig
from bert_estimator.jobs.fine_tuning.job import FineTuning
from bert_estimator.jobs.run import locked


def run_all(job: type[FineTuning], configs: Sequence[FineTuningConfig]) -> None:
    """Runs one seed after the other, and prints how far the results of several seeds spread.

    Args:
      job: the script's `FineTuning`.
      configs: list of its configurations.

    Raises:
      FlagError: a configuration does not fit its data, its cores, or the run in its directory.
      lock.InUseError: another process trains in a directory of these.
      SystemExit: --compile_only, and the step does not fit the TPU's memory.
    """
    with locked(configs):
        if configs[0].compile_only:
            if not job.compile_step(configs[0]):
                raise SystemExit(1)
            return
        results = [job(config).run() for config in configs]
    for name in results[0] if len(results) > 1 else ():
        known = [result[name] for result in results if not math.isnan(result[name])]
        lost = f", {len(results) - len(known)} not a number" if len(known) < len(results) else ""
        known = known or [math.nan]
        print(
            f"{name} of {len(results)} seeds{lost}: median {statistics.median(known):.4f} "
            f"({min(known):.4f} to {max(known):.4f})"
        )
