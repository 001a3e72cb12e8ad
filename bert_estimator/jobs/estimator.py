"""The network, the cores and the `TPUEstimator` that a configuration asks for."""

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from bert_estimator import interchange, memory_needed, optimization, sharding, tpu
from bert_estimator.bert_config import BertConfig
from bert_estimator.cluster import host_agreement
from bert_estimator.command_line import flags
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.interchange.hugging_face import config_json
from bert_estimator.jobs.job_config import JobConfig, NetworkFlags, TrainingFlags
from bert_estimator.storage import remote
from bert_estimator.system import memory
from bert_estimator.tpu import devices
from input_pipelines.records.packed_rows import Filling, Packs

_MAX_STEPS_PER_LOG = 100
_LEAST_POINTS = 20  # of a curve

_LARGE_MATRIX = (1024, 1024)

# What a network's configuration says of its training alone.
_OF_TRAINING = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "initializer_range",
)

# Flags of batches, and the flags that ask for what has such batches.
_VERBS_OF_BATCHES = {
    "train_batch_size": ("do_train",),
    "eval_batch_size": ("do_eval",),
    "predict_batch_size": ("do_predict", "do_export"),
}

# Names of TensorFlow's passes over the graph of a training step, in their order.
_REWRITING = ("pruning", "common_subgraph_elimination", "remap", "dependency")


def read_bert_config(
    network: NetworkFlags, output_dir: str, plan: Mapping[str, Any] | None = None
) -> BertConfig:
    """Reads the network of --bert_config_file, or else of --init_checkpoint or of the run's
    directory; a new run of an embedded task has the `plan`, with the keys of bert_config.json."""
    bert_config = _read_bert_config(network, output_dir, plan)
    before = _before(RunDirectory(output_dir))
    if before is None or "classifier_dropout" in before:
        return bert_config
    # The run began before its file said the head's dropout, and goes on as it began.
    return dataclasses.replace(bert_config, classifier_dropout=0.1)


def _read_bert_config(network, output_dir, plan):
    if (path := network.bert_config_file) is not None:
        with flags.named("bert_config_file"):
            return config_json.read_any_config(path)
    if plan and not network.init_checkpoint:
        path = RunDirectory(output_dir).network_file()
        with flags.named("output_dir"):
            return BertConfig.from_json_file(path) if path else BertConfig(**plan)
    place = network.init_checkpoint or output_dir
    with flags.named("init_checkpoint" if network.init_checkpoint else "output_dir"):
        bert_config = interchange.open_source(place).config
    rule = f"is needed: there is no configuration beside {place}"
    flags.check(bert_config, "bert_config_file", None, rule)
    return bert_config


def check_network(directory: RunDirectory, bert_config: BertConfig, do_train: bool) -> None:
    """Checks that the checkpoints of a run's directory are of a network; unless the run goes on
    with training, what matters in training only may differ."""
    # Shapes would not tell: variables of the same shapes may belong to several networks, and with
    # `num_hidden_groups` some variables would just be left out.
    if (before := _before(directory)) is None:
        return
    for name, was, value in differences(BertConfig.from_dict(before), bert_config, do_train):
        raise flags.FlagError(
            f"--bert_config_file: {directory.path} holds a run of a network with "
            f"{name}={was!r}, not {value!r}. Use that value to go on with it, or another "
            "--output_dir"
        )


def _before(directory):
    """Returns the keys of the run's bert_config.json in a directory, or None without a run."""
    if (path := directory.network_file()) is None:
        return None
    try:
        keys = remote.read_json(path)
        BertConfig.from_dict(keys, path)
    except ValueError as error:
        raise flags.FlagError(
            f"--output_dir={directory.path}: the network of its run cannot be read ({error}); "
            "choose another directory, or put the file back"
        ) from None
    return keys


def differences(
    before: BertConfig, now: BertConfig, do_train: bool
) -> Iterator[tuple[str, Any, Any]]:
    """Yields (key, its value before, its value now) of the keys in which two networks differ."""
    for field in dataclasses.fields(BertConfig):
        was, value = (getattr(config, field.name) for config in (before, now))
        # Without training, what matters in training only does not count.
        if was != value and (do_train or field.name not in _OF_TRAINING):
            yield field.name, was, value


def check_sizes(config: JobConfig, bert_config: BertConfig) -> None:
    """Raises FlagError if the network has too few positions for --max_seq_length, or cannot be
    split over --num_cores_per_replica."""
    check_memory(config, bert_config)
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


def check_memory(config: JobConfig, bert_config: BertConfig) -> None:
    """Says how much of this machine's memory a run needs, and refuses what is far beyond it."""
    if config.plan.compile_only:
        return
    asked, values = config.devices, flags.values_of(config)
    master = _master(asked)
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


def _master(asked):
    """Returns the master that `DeviceFlags` ask for; "" for the session runtime."""
    return asked.tpu_name or (devices.default_master() if asked.use_tpu else "")


def find_cores(config: JobConfig) -> tuple[JobConfig, str]:
    """Finds what a configuration asks to run on; returns it with batch sizes that divide by the
    cores, and the master to run on, "" for the session runtime."""
    asked, num_hosts = config.devices, flags.find_hosts().number
    per_replica = asked.num_cores_per_replica
    master = _master(asked)
    if not master:
        if num_hosts > 1:
            raise flags.FlagError(
                f"TF_CONFIG names {num_hosts} hosts, but there are no cores that they could share: "
                f"this machine does not have a TPU. Give --tpu_name: {devices.ALLOWED}"
            )
        # If cores are named, `JobConfig.check` has compared the batches with them.
        cores = asked.num_tpu_cores if asked.use_tpu else None
        if not cores:
            config.check_divides(1, "1 core", ())
        batches = config.whole_batches((cores or per_replica) // per_replica)
        return flags.changed(config, **batches), ""
    is_flag = asked.tpu_name or not os.environ.get("TPU_NAME")
    named = f"{'--tpu_name' if is_flag else '$TPU_NAME'}={master}"
    try:
        cores = len(devices.find(master, asked.host_wait_secs))
        tpu.check_tensorflow()
    except RuntimeError as error:
        raise flags.FlagError(f"{named}: {error}") from None
    flags.check(
        cores % per_replica == 0,
        "num_cores_per_replica",
        per_replica,
        f"does not divide the {cores} cores of {named}",
    )
    flags.check(
        cores // per_replica % num_hosts == 0,
        "num_cores_per_replica",
        per_replica,
        f"must divide the {cores // num_hosts} cores of each of the {num_hosts} hosts of TF_CONFIG",
    )
    # The hosts are connected now, since `devices.find` has waited for all of them.
    _check_hosts_agree(config)
    if config.mirror is not None:
        config.mirror.agree()
    source = f"the {cores} cores of {named}"
    if per_replica > 1:
        source += f", {per_replica} a replica"
    config.check_divides(cores // per_replica, source, config.fixed_batches())
    flags.check(
        asked.num_tpu_cores in (None, cores),
        "num_tpu_cores",
        asked.num_tpu_cores,
        f"{named} has {cores} cores; leave the flag out",
    )
    return flags.changed(config, **config.whole_batches(cores // per_replica)), master


def check_hosts_have_same_files(files: dict[str, tuple[str | None, Any]]) -> None:
    """Waits for the other hosts of TF_CONFIG, and checks that their files are the same; `files` is
    flag -> (its value, what the files hold or a digest of it)."""
    for name in host_agreement.differing({name: content for name, (_, content) in files.items()}):
        flags.check(
            False,
            name,
            files[name][0],
            "the hosts of TF_CONFIG have different files there; give all of them the same files",
        )


def _check_hosts_agree(config):
    """Raises FlagError if another host of TF_CONFIG was started with other flags."""
    settings = {name: value for name, value in config.settings().items() if name != "output_dir"}
    if differ := host_agreement.differing(settings):
        flags.check(
            False,
            differ[0],
            settings.get(differ[0]),
            f"the hosts of TF_CONFIG have other values of --{', --'.join(differ)}; start the same "
            "command on all of them",
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
    is_session = not (config.plan.compile_only or _master(config.devices))
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
        sharding=sharding.BERT,
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
