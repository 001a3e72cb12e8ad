"""How long training waits for a checkpoint of BERT-base with LAMB's slots, 1.3 GB.

    python -m benchmarks.checkpoint_stall

This trains variables of that size with a step that gives each a new value, and saves checkpoints
now and then. It prints how much longer the steps with a save take than the other steps, and the
steps while the checkpoint is written; how long writing takes; how long it takes until a training
is restored. It needs 8 GB of memory and 5 GB of disk. The last line is a JSON object.
"""

import argparse
import json
import statistics
import tempfile
import time

import tensorflow.compat.v1 as tf

from bert_estimator import tpu
from bert_estimator.tpu.verbs import snapshot

_SAVE_EVERY, _SAVES = 150, 2
_SHAPES = [[30522, 768], *[[768, 768]] * 48, *[[768, 3072]] * 24, [512, 768], *[[768]] * 150]
_COPIES = 3  # the weights and LAMB's two slots


def model_fn(features, mode, params):
    """Updates each variable in one pass over it, as the last operation of an optimizer does."""
    del features, params
    step = tf.train.get_global_step()
    variables = [
        tf.get_variable(f"v{copy}_{number}", shape, initializer=tf.ones_initializer())
        for copy in range(_COPIES)
        for number, shape in enumerate(_SHAPES)
    ]
    updates = [v.assign(v.read_value() * 0.999, read_value=False) for v in variables]
    loss = tf.reduce_mean(variables[-1])
    train_op = tf.group(step.assign_add(1), *updates)
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(params):
    """Returns batches of zeros."""
    return tf.data.Dataset.from_tensors(tf.zeros([params["batch_size"]])).repeat()


class Times(tf.train.SessionRunHook):
    """Notes when each step and its save have ended, and while which a checkpoint was written."""

    def __init__(self):
        self.ended, self.writing = [], []

    def after_run(self, run_context, run_values):
        """Notes the time. This hook is visited after the saver."""
        self.ended.append(time.perf_counter())
        self.writing.append(bool(snapshot._pending))


def measure(directory: str, master: str, steps: int, save_every: int) -> dict[str, float]:
    """Trains, saves and restores; returns what the module's text says, in seconds, by name."""
    config = tpu.RunConfig(
        master=master,
        model_dir=directory,
        save_checkpoints_steps=save_every,
        keep_checkpoint_max=1,
        checkpoint_save_graph_def=False,
        log_every_secs=None,
        tpu_config=tpu.TPUConfig(iterations_per_loop=1),
    )
    estimator = tpu.TPUEstimator(model_fn, config=config, train_batch_size=8)
    times = Times()
    estimator.train(input_fn, steps=steps, hooks=[times])
    secs = [end - start for start, end in zip(times.ended, times.ended[1:], strict=False)]
    writing = times.writing
    saving = [s for n, s in enumerate(secs) if (n + 2) % save_every == 0]
    during = [s for n, s in enumerate(secs) if writing[n] and (n + 2) % save_every]
    quiet = [s for n, s in enumerate(secs) if not writing[n] and not writing[n + 1]]
    step = statistics.median(quiet)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.create_global_step()
        with tf.variable_scope("", use_resource=True):
            model_fn(None, tpu.ModeKeys.TRAIN, {})
        saver = tf.train.Saver()
        start = time.perf_counter()
        saver.restore(session, tf.train.latest_checkpoint(directory))
        restored = time.perf_counter() - start
    return {
        "step_seconds": step,
        "stall_seconds": statistics.median(saving) - step,
        "slowdown_while_writing": statistics.mean(during) / step if during else 1.0,
        "steps_while_writing": len(during),
        "restore_seconds": restored,
    }


def main() -> None:
    """Runs the measurement of the command line, and prints it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tpu_name", default="", help="Train on these cores, such as rehearse:1.")
    arguments = parser.parse_args()
    tf.disable_eager_execution()
    with tempfile.TemporaryDirectory() as directory:
        found = measure(directory, arguments.tpu_name, _SAVE_EVERY * _SAVES, _SAVE_EVERY)
    print(json.dumps({name: round(value, 4) for name, value in found.items()}))


if __name__ == "__main__":
    main()
