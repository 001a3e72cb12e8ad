"""The `TPUEstimator` that a configuration asks for, and what its hosts and its memory allow."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator import memory_needed, optimization, tpu
from bert_estimator.bert_config import BertConfig
from bert_estimator.cluster import hosts
from bert_estimator.command_line import flags
from bert_estimator.interchange import network_variables
from bert_estimator.jobs.groups import Cores, TrainingFlags
from bert_estimator.jobs.job_config import JobConfig
from bert_estimator.model_fns import depth
from bert_estimator.system import memory
from bert_estimator.tpu import devices
from input_pipelines.records.packed_rows import Filling, Packs

_MAX_STEPS_PER_LOG = 100
_LEAST_POINTS = 20  # of a curve

_LARGE_MATRIX = (1024, 1024)

# Flags of batches, and the flags that ask for what has such batches.
_VERBS_OF_BATCHES = {
    "train_batch_size": ("do_train",),
    "eval_batch_size": ("do_eval",),
    "predict_batch_size": ("do_predict", "do_export"),
}

# Names of TensorFlow's passes over the graph of a training step, in their order.
_REWRITING = ("pruning", "common_subgraph_elimination", "remap", "dependency")


def check_sizes(config: JobConfig, bert_config: BertConfig) -> None:
    """Raises FlagError if the network has too few positions for --max_seq_length, or cannot be
    split over --num_cores_per_replica."""
    flags.check(
        config.data.max_seq_length <= bert_config.max_position_embeddings,
        "max_seq_length",
        config.data.max_seq_length,
        f"cannot be more than the network's max_position_embeddings, which is "
        f"{bert_config.max_position_embeddings}",
    )
    cores = config.devices.num_cores_per_replica
    for name in ("hidden_size", "intermediate_size"):
        size = getattr(bert_config, name)
        rule = f"must divide the network's {name}, which is {size}"
        flags.check(size % cores == 0, "num_cores_per_replica", cores, rule)
    check_memory(config, bert_config)


def check_memory(config: JobConfig, bert_config: BertConfig) -> None:
    """Says how much of this machine's memory a run needs, and refuses what is far beyond it."""
    if config.plan.compile_only:
        return
    asked, values = config.devices, flags.values_of(config)
    master = asked.master()
    cores = devices.num_virtual_cores(master)
    # What a GPU or a TPU computes is in that device's memory, which is not compared.
    is_on_device = not cores and (master or tf.config.list_physical_devices("GPU"))
    num_hosts = flags.find_hosts().number

    def needed(name, rows):
        step = memory_needed.Computation(
            rows=0 if is_on_device else rows // num_hosts,
            length=config.data.max_seq_length,
            precision=config.network.precision,
            replicas=cores // num_hosts // asked.num_cores_per_replica,
            micro_batch_size=config.training.micro_batch_size,
            recompute=config.network.recompute,
            predictions=values.get("max_predictions_per_seq", 0),
            trained_layers=depth.trained_layers(config.training.trainable, bert_config),
        )
        if name == "train_batch_size":
            return memory_needed.of_training(bert_config, step, moments_of(config.training))
        return memory_needed.of_running(bert_config, step)

    names = [
        name for name, verbs in _VERBS_OF_BATCHES.items() if any(values.get(verb) for verb in verbs)
    ]
    name = max(names, key=lambda name: needed(name, values[name]))
    rule = (
        f"take a smaller network than one of {bert_config.num_parameters():,} weights, shorter "
        "sequences, or a smaller batch"
    )
    if name == "train_batch_size":
        rule += "; --micro_batch_size and --recompute save memory, too"
    try:
        # A packed batch has fewer rows, and their number is not known yet.
        is_packed = name == "train_batch_size" and config.may_pack
        least = needed(name, num_hosts) if is_packed else None
        most = needed(name, values[name])
        line = memory_needed.check(most, f"--{name}={values[name]}", rule, least)
    except memory_needed.TooLargeError as error:
        raise flags.FlagError(str(error)) from None
    if line is not None:
        print(f"Memory: {line}.", flush=True)


def moments_of(training: TrainingFlags) -> float:
    """Returns how many float32 values an optimizer keeps for each weight of a large matrix."""
    optimizer = optimization.create_optimizer(
        training.optimizer, training.learning_rate, **training.optimizer_options()
    )
    return optimizer.slot_bytes(_LARGE_MATRIX) / (tf.float32.size * math.prod(_LARGE_MATRIX))


def agree(config: JobConfig, cores: Cores) -> None:
    """Checks that all hosts, which have met, were started with the same flags."""
    if not cores.master:
        return
    settings = {name: value for name, value in config.settings().items() if name != "output_dir"}
    if differ := hosts.differing(settings):
        flags.check(
            False,
            differ[0],
            settings.get(differ[0]),
            f"the hosts of TF_CONFIG have other values of --{', --'.join(differ)}; start the same "
            "command on all of them",
        )
    if config.mirror is not None:
        config.mirror.agree()


def check_hosts_have_same_files(files: dict[str, tuple[str | None, Any]]) -> None:
    """Waits for the other hosts of TF_CONFIG, and checks that their files are the same; `files` is
    flag -> (its value, what the files hold or a digest of it)."""
    for name in hosts.differing({name: content for name, (_, content) in files.items()}):
        flags.check(
            False,
            name,
            files[name][0],
            "the hosts of TF_CONFIG have different files there; give all of them the same files",
        )


def print_filling(filling: Filling) -> None:
    """Says how full packed rows are."""
    print(f"Packed: {filling}", flush=True)


def packs(
    config: JobConfig, num_train_steps: int, report: Callable[[Filling], None] = print_filling
) -> Packs:
    """Returns how the rows of a training are packed; `report` gets how full they are."""
    micro_batch_size = config.training.micro_batch_size
    # A batch that is divided has as many rows in each step.
    is_static = config.devices.use_tpu or micro_batch_size is not None
    is_session = not (config.plan.compile_only or config.devices.master())
    return Packs(num_train_steps, micro_batch_size, is_static, is_session, report)


def make(
    config: JobConfig,
    model_fn: Callable[..., tpu.TPUEstimatorSpec],
    master: str = "",
    num_train_steps: int | None = None,
    tokens_per_example: float | None = None,
) -> tpu.TPUEstimator:
    """Returns the `TPUEstimator` of a configuration; `tokens_per_example` is for the rate of tokens
    in log lines, which None leaves out."""
    asked, progress = config.devices, config.progress
    per_replica = asked.num_cores_per_replica
    # Event files do not grow faster than the log.
    steps_per_log = min(_MAX_STEPS_PER_LOG, asked.iterations_per_loop)
    # The curves of a short training should have some points, too.
    if num_train_steps is not None:
        steps_per_log = max(1, min(steps_per_log, num_train_steps // _LEAST_POINTS))
    # It runs in sessions, which are faster if the process keeps the memory that they free.
    if not master:
        memory.keep_freed_memory()
    return tpu.TPUEstimator(
        model_fn=model_fn,
        config=tpu.RunConfig(
            master=master,
            model_dir=config.output_dir,
            tf_random_seed=config.training.random_seed,
            train_session_config=_session_of_training(),
            save_checkpoints_steps=progress.save_checkpoints_steps,
            log_step_count_steps=steps_per_log,
            log_every_secs=progress.log_every_secs or None,
            tpu_config=tpu.TPUConfig(
                iterations_per_loop=asked.iterations_per_loop,
                num_shards=asked.num_tpu_cores and asked.num_tpu_cores // per_replica,
                num_cores_per_replica=per_replica,
                experimental_host_call_every_n_steps=steps_per_log,
            ),
        ),
        params={},
        use_tpu=asked.use_tpu,
        **config.batch_sizes(),  # train_batch_size, eval_batch_size and predict_batch_size
        units_per_example=tokens_per_example and {"tokens": tokens_per_example},
        sharding=network_variables.SHARDING,
    )


def _session_of_training():
    """Returns the settings of sessions that train: with a part of TensorFlow's graph rewriting."""
    settings = tpu.RunConfig().session_settings()
    # All passes of it take 7 s of CPU time before the first step of BERT-base; these take 4 s.
    # Steps gain from these: they fuse biases into products, and merge what is computed twice. In
    # float32 on a CPU, steps take as long with these as with all. A GPU, which was not measured,
    # runs all.
    if not tf.config.list_physical_devices("GPU"):
        settings.graph_options.rewrite_options.optimizers.extend(_REWRITING)
    return settings
