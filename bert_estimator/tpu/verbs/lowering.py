"""Lowers the training step without training, to compile it or to export it."""

from collections.abc import Callable

from bert_estimator.tpu import warm_start
from bert_estimator.tpu.program.exported_program import ExportedProgram
from bert_estimator.tpu.step.inputs import Inputs
from bert_estimator.tpu.step.xla.xla_step import XlaStep
from bert_estimator.tpu.verbs import checkpoints
from bert_estimator.tpu.verbs.opened_run import BuiltStep, opened_session


def lower(job, input_fn: Callable):
    """Builds a job's model and lowers its training step.

    Args:
      job: a `Job` in mode TRAIN, with the number of cores that the program is for.
      input_fn: gives the shapes of a batch. Batches are not drawn.

    Returns:
      A `LoweredStep`.

    Raises:
      RuntimeError, ValueError, TypeError: the model cannot run under TPU rules, as in
        `TPUEstimator.train`.
    """
    return BuiltStep(job, XlaStep, input_fn, start_step=0).step.lowered


def export_program(job, input_fn: Callable, num_batches: int) -> ExportedProgram:
    """Builds a job's model, and makes its training step a program that runs without TensorFlow.

    Args:
      job: as for `lower`.
      input_fn: gives the batches.
      num_batches: how many batches to store with the program.

    Returns:
      An `ExportedProgram`. Its state is the state from which training would start: the newest
      complete checkpoint in the job's model_dir, or else the initial values, with the warm start.
      Its batches are the next batches of that training.

    Raises:
      ValueError: the exported program would not do the same. It is a program for one core, and each
        core that runs it takes its own rows of a batch that one host has.
    """
    check_exportable(job)
    config = job.config
    restored = checkpoints.newest_whole(config.model_dir)
    start_step = checkpoints.global_step_of(restored)
    built = BuiltStep(job, XlaStep, input_fn, start_step)
    step = built.step
    with built.building():
        if restored is None:
            warm_start.apply(job.warm_start)
        checkpoints.ensure_saver(step.spec.scaffold, config)
        inputs = Inputs(input_fn, job.mode, job.input_params(start_step), config)
        with opened_session(job, step.spec.scaffold, restored) as opened:
            session = step.host_session(opened)
            state = session.run(step.variables)
            if inputs.initializer is not None:
                session.run(inputs.initializer)
            draw = inputs.drawer(session, job.draws_per_step)
            batches = [draw() for _ in range(num_batches)]
    return ExportedProgram(
        lowered=step.lowered,
        num_cores=job.num_replicas,
        batch_size=job.batch_size,
        inputs=inputs.names(),
        state=state,
        batches=batches,
    )


def check_exportable(job):
    """Raises ValueError if the program of a job could not be run as it would be exported."""
    if job.num_replicas == 1:
        return
    if job.same_batch:
        raise ValueError(
            "export_training_program: TPUConfig.per_host_input_for_training=BROADCAST gives "
            f"{job.num_replicas} cores the same batch, but an exported program splits it. Use "
            "another input mode, or export for one core"
        )
    if job.cores_per_replica > 1:
        raise ValueError(
            f"export_training_program: num_cores_per_replica={job.cores_per_replica} splits the "
            f"model of each of the {job.num_replicas} replicas, but an exported program has the "
            "whole model on each core. Export it without num_cores_per_replica"
        )
    if job.hosts.number > 1:
        raise ValueError(
            f"export_training_program: TF_CONFIG names {job.hosts.number} hosts, but an exported "
            "program runs on one host: unset TF_CONFIG"
        )
