"""Exporting: a model's graphs and variables as a SavedModel, its training step as a program."""

import contextlib
import os
from collections.abc import Callable

import tensorflow.compat.v1 as tf
from tensorflow.python.saved_model import model_utils

from bert_estimator.graph import graph_walk
from bert_estimator.system import lock
from bert_estimator.tpu import warm_start
from bert_estimator.tpu.program import devices
from bert_estimator.tpu.program.core_mesh import CoreMesh
from bert_estimator.tpu.program.exported_program import ExportedProgram
from bert_estimator.tpu.replicas import replica_operations
from bert_estimator.tpu.spec import ModeKeys, TPUEstimatorSpec
from bert_estimator.tpu.step.inputs import Inputs
from bert_estimator.tpu.step.session.local_step import put_updates_first
from bert_estimator.tpu.step.xla.xla_step import XlaStep
from bert_estimator.tpu.verbs import checkpoints
from bert_estimator.tpu.verbs.opened_run import BuiltRun, opened_session

# The first mode's graph says which variables are saved. TRAIN's graph has all variables.
_ORDER = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)


def export(
    jobs: dict,
    receiver_fns: dict,
    export_dir_base: str,
    checkpoint_path: str | None,
    assets_extra: dict[str, str] | None,
    as_text: bool,
) -> bytes:
    """Writes a SavedModel to a subdirectory of export_dir_base, named by the time in seconds;
    returns its path as bytes. If it fails, it does not leave a part of one behind.

    Args:
      receiver_fns: dict of `ModeKeys` value -> function without arguments that returns a
        `serving.ServingInputReceiver` (PREDICT) or a `serving.SupervisedInputReceiver`.
      checkpoint_path: None means the newest complete checkpoint in model_dir, or else the
        checkpoint of the job's warm start.
      assets_extra: dict of path below `assets.extra` -> file to copy there, or None.
    """
    modes = [mode for mode in _ORDER if receiver_fns.get(mode)]
    if not modes:
        raise ValueError(
            f"Nothing to export: receiver functions are given for {list(receiver_fns)}. Allowed "
            f"are {list(_ORDER)}"
        )
    checkpoint = _checkpoint(jobs[modes[0]], checkpoint_path)
    # A killed export leaves its unfinished directory.
    lock.remove_leftovers(os.fspath(export_dir_base))
    export_dir = model_utils.get_timestamped_export_dir(os.fspath(export_dir_base))
    unfinished = tf.compat.as_str(model_utils.get_temp_export_dir(export_dir))
    try:
        builder = tf.saved_model.Builder(unfinished)
        # So that another export does not take it for a leftover. A remote directory stays.
        is_local = os.path.isdir(unfinished)
        with lock.held(unfinished) if is_local else contextlib.nullcontext():
            for mode in modes:
                job = jobs[mode]
                # A model may name devices that are missing here, as in the session of training.
                settings = job.config.session_settings()
                with tf.Graph().as_default(), tf.Session(config=settings) as session:
                    with checkpoints.explaining_loss(checkpoint):
                        content = _graph(job, receiver_fns[mode], checkpoint, session, builder)
                    content["strip_default_attrs"] = True
                    if mode == modes[0]:
                        # The variables are written once; the other modes' graphs must do with them.
                        builder.add_meta_graph_and_variables(session, **content)
                    else:
                        builder.add_meta_graph(**content)
            builder.save(as_text)
            for relative, source in (assets_extra or {}).items():
                path = os.path.join(unfinished, "assets.extra", relative)
                tf.io.gfile.makedirs(os.path.dirname(path))
                tf.io.gfile.copy(source, path)
        # Servers watch the base directory, so a complete SavedModel appears there at once.
        tf.io.gfile.rename(unfinished, export_dir)
    except BaseException:
        if tf.io.gfile.exists(unfinished):
            tf.io.gfile.rmtree(unfinished)
        raise
    tf.logging.info("Exported %s to %s", checkpoint, tf.compat.as_str(export_dir))
    return export_dir


def _checkpoint(job, checkpoint_path):
    path = checkpoints.given_or_newest(job.config.model_dir, checkpoint_path)
    if path is None and job.warm_start is not None:
        path = job.warm_start.ckpt_to_initialize_from
        if tf.io.gfile.isdir(path):
            path = checkpoints.newest_whole(path)
    if path is None:
        raise ValueError(f"There is no checkpoint to export in {job.config.model_dir}: train first")
    return path


def _graph(job, receiver_fn, checkpoint, session, builder):
    """Builds the graph of a mode and restores its variables; returns the arguments with which a
    SavedModel builder adds the graph."""
    tf.train.create_global_step()
    tf.set_random_seed(job.config.tf_random_seed)
    receiver = receiver_fn()
    with replica_operations.replaced():  # There is one replica.
        spec = job.call_model_fn(receiver.features, getattr(receiver, "labels", None))
    if isinstance(spec, TPUEstimatorSpec):
        spec = spec.as_estimator_spec()
    outputs = model_utils.export_outputs_for_mode(
        job.mode, spec.export_outputs, spec.predictions, spec.loss, spec.eval_metric_ops
    )
    signatures = model_utils.build_all_signature_defs(
        receiver.receiver_tensors,
        outputs,
        getattr(receiver, "receiver_tensors_alternatives", None),
        serving_only=job.mode == ModeKeys.PREDICT,
    )
    signatures = _that_can_run(signatures)
    if job.mode != ModeKeys.TRAIN:
        _order(signatures.values())
    saver = checkpoints.saver_of(spec.scaffold)
    if saver is None:
        try:
            checkpoints.check_restorable(checkpoint, tf.global_variables())
        except ValueError as error:
            raise ValueError(str(error)) from None  # upstream's class, here alone
        saver = tf.train.Saver(sharded=True)
    checkpoints.warn_unless_finite(checkpoint, tf.global_variables())
    saver.restore(session, checkpoint)
    local_init_op = spec.scaffold.local_init_op
    if local_init_op is None:
        local_init_op = tf.train.Scaffold.default_local_init_op()
    # The builder adds it only by this method: `add_meta_graph` does not take it.
    builder._add_train_op(spec.train_op)
    return dict(
        tags=list(model_utils.EXPORT_TAG_MAP[job.mode]),
        signature_def_map=signatures,
        assets_collection=tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS),
        main_op=local_init_op,
        saver=saver,
    )


def _order(signatures):
    """Orders the reads and updates of each signature, which is a run of its own."""
    runs = []
    for signature in signatures:
        # Metrics are read after the last batch, without an update.
        values = {n for n in signature.outputs if n.startswith("metrics") and n.endswith("/value")}
        for names in filter(None, (values, signature.outputs.keys() - values)):
            runs.append(list(_operations({name: signature.outputs[name] for name in names})))
    for run in runs:
        put_updates_first(run, apart=runs)


def _that_can_run(signatures):
    """Returns the signatures, except alternatives whose outputs need other receivers."""
    # Each alternative is combined with each output; upstream keeps combinations that cannot run.

    def can_run(signature):
        fed = _operations(signature.inputs)
        needed = graph_walk.all_before(_operations(signature.outputs), fed)
        return all(each.type != "Placeholder" or each in fed for each in needed)

    return {name: each for name, each in signatures.items() if ":" not in name or can_run(each)}


def _operations(infos):
    """Returns the operations of the tensors that a signature names."""
    tensors = map(tf.saved_model.utils.get_tensor_from_tensor_info, infos.values())
    return graph_walk.operations_of(list(tensors))


def lower(job, input_fn: Callable):
    """Builds a job's model and lowers its training step to a `LoweredStep`, without drawing a
    batch."""
    return BuiltRun(job, XlaStep, input_fn, start_step=0).step.lowered


def export_program(job, input_fn: Callable, num_batches: int) -> ExportedProgram:
    """Makes a job's training step a program that runs without TensorFlow, with the state from which
    training would start, and with its next `num_batches` batches."""
    check_exportable(job)
    config = job.config
    restored = checkpoints.newest_whole(config.model_dir)
    start_step = checkpoints.global_step_of(restored)
    run = BuiltRun(job, XlaStep, input_fn, start_step)
    step = run.step
    with run.building():
        if restored is None:
            warm_start.apply(job.warm_start)
        checkpoints.ensure_saver(step.spec.scaffold, config)
        # The step's own inputs are placeholders, so the batches come from a second call of
        # input_fn.
        inputs = Inputs(input_fn, job.mode, job.input_params(start_step), config)
        with opened_session(job, step.spec.scaffold, restored) as opened:
            session = step.host_session(opened)
            state = session.run(step.variables)
            if inputs.initializer is not None:
                session.run(inputs.initializer)
            draw = inputs.drawer(session, job.draws_per_step)
            batches = [draw() for _ in range(num_batches)]
    lowered, names = step.lowered, inputs.names()
    cores = devices.find(job.master or "rehearse:1")[: job.num_replicas]
    return ExportedProgram(
        lowered.exported(CoreMesh(cores, num_shards=lowered.num_shards), names),
        lowered.num_shards,
        job.batch_size,
        {v.name: value for v, value in zip(lowered.state, state, strict=True)},
        [dict(zip(names, batch, strict=True)) for batch in batches],
    )


def check_exportable(job):
    """Raises ValueError if the program of a job could not be run as it would be exported: on one
    core, or on cores that each take their rows of one host's batch."""
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
