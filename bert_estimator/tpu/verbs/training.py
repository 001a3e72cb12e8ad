"""Training: loops of steps between visits of the hooks, until the last step or the end of data."""

import contextlib
import threading

import numpy as np
import tensorflow.compat.v1 as tf

from bert_estimator.tpu import errors, warm_start
from bert_estimator.tpu.program import hosts
from bert_estimator.tpu.step import outfeed
from bert_estimator.tpu.step.hooks import HookDriver
from bert_estimator.tpu.step.infeed import EndOfInput
from bert_estimator.tpu.verbs import checkpoints
from bert_estimator.tpu.verbs.interrupts import Interrupts
from bert_estimator.tpu.verbs.progress import Progress

# How long a session may take to close: on a busy machine longer than one would think, but nobody
# waits for an input_fn that hangs.
_CLOSE_SECS, _CLOSE_SECS_OF_HUNG_INPUT = 60, 2


def train(job, runtime, input_fn, hooks, saving_listeners, steps, max_steps):
    """Trains a job's model from its newest whole checkpoint.

    Args:
      job: a `Job` in mode TRAIN.
      runtime: class that builds the step, such as `session_step.FedStep`.
      hooks: list of the caller's hooks.
      steps: steps from where training starts, or None.
      max_steps: global step to end at, or None. With neither, training ends with the data.

    Raises:
      NanLossDuringTrainingError, NonFiniteWeightsError: see `errors`.
      tf.errors.OutOfRangeError: under TPU rules, the data ended before the steps did.
      KeyboardInterrupt, SystemExit: after a signal, when the state has been saved; on all hosts,
        whichever of them got it.
      whatever input_fn, model_fn, a host function or a hook raised: the first of them.
    """
    config = job.config
    if job.hosts.is_chief:
        checkpoints.remove_leftovers(config.model_dir)
    restored = checkpoints.newest_whole(config.model_dir)
    start_step = checkpoints.global_step_of(restored)
    hosts.agree_on("the step to start from", start_step)
    stop_step = start_step + steps if steps is not None else max_steps
    if stop_step is not None and start_step >= stop_step:
        tf.logging.info(
            "Nothing to train: %s is at step %d, max_steps is %d.",
            config.model_dir,
            start_step,
            stop_step,
        )
        return
    signalled = Interrupts("finishing the current step, then saving", job.hosts.number)
    with tf.Graph().as_default(), tf.device(config.device_fn), signalled as interrupts:
        tf.set_random_seed(config.tf_random_seed)
        # A resource also after tf.disable_v2_behavior(): the XLA runtime needs it.
        with tf.variable_scope(tf.get_variable_scope(), use_resource=True):
            global_step = tf.train.create_global_step()
        step = runtime(job, input_fn, start_step)
        if restored is None:
            warm_start.apply(job.warm_start)
        spec = step.spec
        _summarize_loss(spec.loss)
        own_saver = checkpoints.ensure_saver(spec.scaffold, config)
        finite = checkpoints.FiniteCheck()
        user_hooks = [*hooks, *spec.training_hooks, *spec.training_chief_hooks]
        own_hooks = step.add_summaries(config)
        user_savers = [h for h in user_hooks if isinstance(h, tf.train.CheckpointSaverHook)]
        if _saves(config) and not user_savers:
            restored_step = start_step if restored else None
            if job.hosts.is_chief:  # the others save nothing, so their listeners hear of nothing
                own_hooks.append(
                    checkpoints.CheckpointSaver(
                        config, spec.scaffold, restored_step, saving_listeners, finite
                    )
                )
        elif saving_listeners:
            _add_listeners(user_savers, saving_listeners)
        # The checkpoint of a step is on disk before the caller's hooks see the step.
        all_hooks = own_hooks + user_hooks
        driver = HookDriver(all_hooks, step.element_of_step)
        init_ops, flush_ops = outfeed.summary_writer_init_ops(), outfeed.summary_writer_flush_ops()
        driver.begin()
        if restored and own_saver:
            checkpoints.check_restorable(restored, tf.global_variables())
        tf.logging.info(
            "Training from step %d (%s) to %s.",
            start_step,
            f"restored from {restored}" if restored else "new variables",
            f"step {stop_step}" if stop_step is not None else "the end of the data",
        )
        with opened_session(config, step, restored) as session:
            session.run(init_ops)
            checkpoints.remember_earlier(spec.scaffold.saver, config.model_dir)
            coordinator = start_coordinator(session)
            driver.after_create_session(session, coordinator)
            progress = Progress(
                config if job.hosts.is_chief else config.replace(model_dir=None),
                job.batch_size,
                job.units_per_example,
                stop_step,
                all_hooks,
            )
            now = int(session.run(global_step))
            try:
                step.start(session, None if stop_step is None else stop_step - now)
                progress.start(now)
                now = _loop(
                    job,
                    step,
                    driver,
                    session,
                    global_step,
                    now,
                    stop_step,
                    progress,
                    finite,
                    interrupts,
                )
                step.finish(session)
                driver.end(session)
                session.run(flush_ops)
            finally:
                coordinator.request_stop()
                step.stop(session)
                progress.end()
    hosts.agree_on("the step reached", now)  # and the chief's last checkpoint is there
    interrupts.raise_if_requested()


def _loop(job, step, driver, session, global_step, now, stop_step, progress, finite, interrupts):
    """Runs loops of steps until the stop step, the end of the data, a hook's or a signal's wish.

    Returns:
      The global step reached.
    """
    fetches = [step.spec.train_op, step.spec.loss]
    scalars, loss = {}, None
    alone = job.hosts.number == 1

    def finished():
        at_end = stop_step is not None and now >= stop_step
        return at_end or interrupts.wanted_by_any_host(driver.stop_requested)

    ended = finished()
    while not ended:
        length = step.loop_length(now, stop_step if stop_step is not None else now + 1)

        def run_loop(hook_run, length=length, now=now):
            result, hook_values = step.run_loop(
                # Several hosts end together, after a loop.
                length,
                hook_run,
                lambda: alone and interrupts.requested is not None,
            )
            bad = [i for i, value in enumerate(result.losses) if not np.isfinite(value)]
            if bad:
                _raise_nan_loss(session, now + bad[0] + 1, result, finite, job.config.model_dir)
            return result, hook_values

        try:
            result = driver.around(session, fetches, run_loop)
        except EndOfInput:
            if job.tpu_rules:
                raise tf.errors.OutOfRangeError(
                    None, None, _end_of_data_message(int(session.run(global_step)), stop_step)
                ) from None
            break
        before, now = now, int(session.run(global_step))
        if job.tpu_rules and now - before != len(result.losses):
            raise RuntimeError(
                f"The global step went from {before} to {now} over {len(result.losses)} steps: "
                "with use_tpu=True train_op must increase it by one in each, as "
                "optimizer.minimize(loss, tf.train.get_global_step()) does"
            )
        ended = finished()
        if not result.losses:
            continue
        loss, scalars = result.losses[-1], result.scalars
        if result.summary is not None and job.hosts.is_chief:
            tf.summary.FileWriterCache.get(job.config.model_dir).add_summary(result.summary, now)
        progress.after_loop(now, loss, scalars, step.waited_secs, last=ended)
    if loss is not None:
        progress.after_loop(now, loss, scalars, step.waited_secs, last=True)
        tf.logging.info("Loss for final step: %s.", loss)
    return now


@contextlib.contextmanager
def opened_session(config, step, checkpoint):
    """Gives the step's session, its variables restored from a checkpoint, or initialized (None)."""
    session_config = config.session_config or tf.ConfigProto(allow_soft_placement=True)
    creator = tf.train.ChiefSessionCreator(
        step.spec.scaffold,
        config=session_config,
        checkpoint_filename_with_path=checkpoint,
    )
    session = creator.create_session()
    try:
        yield step.host_session(session)
    finally:
        # TensorFlow waits for Python functions that run in the session. One that never returns,
        # in an input_fn, must not keep the caller from its error.
        hung = any(thread.name == "infeed" for thread in threading.enumerate())
        closing = threading.Thread(target=session.close, name="closing", daemon=True)
        closing.start()
        closing.join(_CLOSE_SECS_OF_HUNG_INPUT if hung else _CLOSE_SECS)


def start_coordinator(session):
    """Returns a coordinator; starts the graph's queue runners, where an input_fn made some."""
    coordinator = tf.train.Coordinator()
    if tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS):
        tf.train.start_queue_runners(session, coordinator)
    return coordinator


def _raise_nan_loss(session, step, result, finite, model_dir):
    """Says what is known of a loss that is not finite."""
    scalars = "".join(f", {name} = {value:.6g}" for name, value in result.scalars.items())
    bad = finite.names_of_bad(session)
    raise errors.NanLossDuringTrainingError(
        f"The loss of step {step} is {result.losses[-1]}{scalars}. Variables that are not finite "
        f"after it: {', '.join(bad) or 'none'}. {checkpoints.last_written(model_dir)} Lower the "
        "learning rate, lengthen the warm-up, or look for bad records."
    )


def _saves(config):
    return bool(config.save_checkpoints_steps or config.save_checkpoints_secs)


def _add_listeners(savers, listeners):
    if not savers:
        raise ValueError(
            "There should be a CheckpointSaverHook to use saving_listeners: set "
            "RunConfig.save_checkpoints_steps or save_checkpoints_secs"
        )
    savers[0]._listeners.extend(listeners)


def _summarize_loss(loss):
    """Adds a `loss` summary unless the model_fn made one."""
    names = [op.op.name for op in tf.get_collection(tf.GraphKeys.SUMMARIES)]
    if "loss" not in names:
        tf.summary.scalar("loss", loss)


def _end_of_data_message(step, stop_step):
    return (
        f"input_fn's data ended at step {step}, before step {stop_step}. With use_tpu=True the "
        "data must last: use dataset.repeat(), or train for fewer steps"
    )
