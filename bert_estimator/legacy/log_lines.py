"""Logs trainings and evaluations in TensorFlow 1's lines too, which people's tools read.

The project's own line of a step has more in it, so it stays. The further lines come before it.
"""

import logging

import numpy as np


def install(logger: logging.Logger) -> None:
    """Has TensorFlow's logger log the further lines."""

    def also_log(record):
        for line in [*_of_training(record), *_of_evaluation(record)]:
            logger.info("%s", line)
        return True

    logger.addFilter(also_log)


def _of_training(record):
    """Returns the lines of a step, if that is what a `LogRecord` is about."""
    step = getattr(record, "training", None)
    if step is None:
        return []
    lines = [f"loss = {np.float32(step['loss'])!s}, step = {step['step']} ({record.secs:.3f} sec)"]
    rates = {"global_step/sec": "steps_per_sec", "examples/sec": "examples_per_sec"}
    return lines + [f"{tag}: {step[key]:g}" for tag, key in rates.items() if key in step]


def _of_evaluation(record):
    """Returns the lines of the results of an evaluation, if a `LogRecord` is about one."""
    results = getattr(record, "evaluation", None)
    if results is None:
        return []
    number = results["global_step"]
    text = ", ".join(f"{name} = {value!s}" for name, value in sorted(results.items()))
    lines = [f"Saving dict for global step {number}: {text}"]
    if record.checkpoint_path:
        lines.append(
            f"Saving 'checkpoint_path' summary for global step {number}: {record.checkpoint_path}"
        )
    return lines
