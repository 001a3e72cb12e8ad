"""Evaluation: the mean loss and the metrics of a checkpoint over a number of batches."""

import contextlib

import numpy as np
import tensorflow.compat.v1 as tf
from google.protobuf import message

from bert_estimator.tpu import warm_start
from bert_estimator.tpu.program import hosts
from bert_estimator.tpu.step import outfeed
from bert_estimator.tpu.step.hooks import HookDriver
from bert_estimator.tpu.step.infeed import EndOfInput
from bert_estimator.tpu.verbs import checkpoints
from bert_estimator.tpu.verbs.interrupts import Interrupts
from bert_estimator.tpu.verbs.training import opened_session, start_coordinator

_RESERVED = ("loss", tf.GraphKeys.GLOBAL_STEP)


def evaluate(job, runtime, input_fn, hooks, steps, checkpoint_path, eval_dir):
    """Evaluates a job's model.

    Args:
      job: a `Job` in mode EVAL.
      steps: number of batches; None: until the data ends (not under TPU rules).
      checkpoint_path: which checkpoint; None: the newest whole one, or initial values if there is
        none, said in a warning.
      eval_dir: where the event file goes.

    Returns:
      A dict: `loss` (the mean over the batches), each metric, `global_step`.

    Raises:
      tf.errors.OutOfRangeError: under TPU rules, the data ended before `steps` batches.
      ValueError: a metric is named `loss` or `global_step`.
      KeyboardInterrupt, SystemExit: after a signal, also one that is ending the training whose
        listener calls this; on all hosts, whichever of them got it.
    """
    config = job.config
    signalled = Interrupts("ending the evaluation after the current step", job.hosts.number)
    with tf.Graph().as_default(), tf.device(config.device_fn), signalled as interrupts:
        path = checkpoints.to_read(config.model_dir, checkpoint_path, "evaluating")
        hosts.agree_on("the checkpoint to evaluate", checkpoints.global_step_of(path))
        tf.set_random_seed(config.tf_random_seed)
        # A resource also after tf.disable_v2_behavior(): the XLA runtime needs it.
        with tf.variable_scope(tf.get_variable_scope(), use_resource=True):
            global_step = tf.train.create_global_step()
        step = runtime(job, input_fn, checkpoints.global_step_of(path))
        if path is None:
            warm_start.apply(job.warm_start)
        reserved = sorted(set(step.metric_values) & set(_RESERVED))
        if reserved:
            raise ValueError(f"Metrics named {reserved} clash with those evaluate itself returns")
        driver = HookDriver([*hooks, *step.spec.evaluation_hooks], step.element_of_step)
        own_saver = checkpoints.ensure_saver(step.spec.scaffold, config)
        init_ops, flush_ops = outfeed.summary_writer_init_ops(), outfeed.summary_writer_flush_ops()
        driver.begin()
        if path and own_saver:
            checkpoints.check_restorable(path, tf.global_variables())
        with opened_session(config, step, path) as session:
            session.run(init_ops)
            coordinator = start_coordinator(session)
            driver.after_create_session(session, coordinator)
            try:
                step.start(session, steps)
                losses = _run_steps(job, step, driver, session, steps, interrupts)
                step.finish(session)
                results = {"loss": np.mean(losses, dtype=np.float64).astype(np.float32)}
                results.update(sorted(session.run(step.metric_values).items()))
                results[tf.GraphKeys.GLOBAL_STEP] = session.run(global_step)
                driver.end(session)
                session.run(flush_ops)
            finally:
                coordinator.request_stop()
                step.stop(session)
    interrupts.raise_if_requested()
    tf.logging.info(
        "Evaluation at step %d over %d batches: %s",
        results[tf.GraphKeys.GLOBAL_STEP],
        len(losses),
        ", ".join(f"{k} = {v}" for k, v in results.items()),
    )
    if job.hosts.is_chief:
        with tf.Graph().as_default():  # a FileWriter refuses to be made in eager mode
            _write_events(eval_dir, results, path)
    return results


def _run_steps(job, step, driver, session, steps, interrupts):
    """Runs the steps: one loop of all of them under TPU rules, else a loop each."""
    losses = []
    while (steps is None or len(losses) < steps) and not driver.stop_requested:
        interrupts.raise_if_requested()
        length = steps if job.tpu_rules else 1
        try:
            result = driver.around(
                session,
                [step.spec.loss],
                lambda hook_run, length=length: step.run_loop(
                    # Several hosts end together.
                    length,
                    hook_run,
                    lambda: job.hosts.number == 1 and interrupts.requested is not None,
                ),
            )
        except EndOfInput:
            if job.tpu_rules:
                raise tf.errors.OutOfRangeError(
                    None,
                    None,
                    f"input_fn's data ended before the {steps} batches to evaluate. With "
                    "use_tpu=True the data must last: use dataset.repeat(), or fewer steps",
                ) from None
            break
        losses += result.losses
    if not losses:
        raise ValueError("input_fn gave no batch to evaluate")
    return losses


def _write_events(eval_dir, results, checkpoint_path):
    """Writes the results' scalars, and the checkpoint's path as text, to an event file."""
    writer = tf.summary.FileWriterCache.get(eval_dir)
    summary = tf.Summary()
    for name, value in results.items():
        if name == tf.GraphKeys.GLOBAL_STEP:
            continue
        if isinstance(value, bytes):
            summary.value.extend(_values_of_text(name, value))
        elif np.ndim(value) == 0 and np.isrealobj(value):
            summary.value.add(tag=name, simple_value=float(value))
        else:
            summary.value.add(tag=name, tensor=tf.make_tensor_proto(value))
    step = results[tf.GraphKeys.GLOBAL_STEP]
    writer.add_summary(summary, step)
    if checkpoint_path:
        tensor = tf.make_tensor_proto(checkpoint_path, tf.string)
        text = tf.Summary.Value(tag="checkpoint_path", tensor=tensor)
        text.metadata.plugin_data.plugin_name = "text"
        writer.add_summary(tf.Summary(value=[text]), step)
    writer.flush()


def _values_of_text(name, text):
    """Returns what a string metric puts into the events: the values of the serialized summary that
    it may be, tagged `name/0` and so on, or nothing, with a warning."""
    values = ()
    with contextlib.suppress(message.DecodeError):
        values = tf.Summary.FromString(text).value
    if not values:
        tf.logging.warning(
            "The metric %s is a string that is no serialized summary: it is returned, and left out "
            "of the events.",
            name,
        )
    for number, value in enumerate(values):
        value.tag = f"{name}/{number}"
    return values
