"""The flags that all scripts share, in groups; a group checks its flags and builds its own object.

Names and meanings of the flags are google-research/bert's. This module does not import TensorFlow,
so wrong flags are reported before it is loaded.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from bert_estimator.bert_config import BertConfig
from bert_estimator.command_line import flags
from bert_estimator.command_line.choices import CORES_PER_REPLICA, OPTIMIZER_NAMES, PRECISIONS
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.jobs import trackers
from bert_estimator.storage import remote

_GREATEST_RATE = 3e38
_GREATEST_BATCH = 1 << 24  # 256 times the paper's; batches beyond it do not fit into any memory
BATCH_CHECKS = flags.positive, flags.at_most(_GREATEST_BATCH)
SHARE = flags.rule(lambda share: 0 <= share <= 1, "must be from 0 to 1")


def _for_one_host(name, value):
    rule = "is for one host, but TF_CONFIG names several; leave it out"
    flags.check(not value or flags.find_hosts().number == 1, name, value, rule)


@flags.group()
class DataFlags:
    """Says what a run reads. Each script has a group of its own, which extends this one."""

    max_seq_length: int = flags.field(128, "Set the length of sequences in tokens.")


@flags.group(flags.COMMON, may_differ=flags.EVALUATING)
class NetworkFlags:
    """Says which network a run builds, what its weights are at first, and how it is computed."""

    bert_config_file: str | None = flags.field(
        None,
        "Build this network: a bert_config.json, or the config.json of transformers.",
        flags.check_file,
    )
    init_checkpoint: str | None = flags.field(
        None,
        "Start training from the weights of this checkpoint, Google's, Hugging Face's or TF Hub's: "
        "a path without .index, a directory, or a zip archive. Empty: start from scratch.",
        flags.check_checkpoint,
        may_differ=False,
    )
    allow_partial_init: bool = flags.field(
        False,
        "Start from an --init_checkpoint of other sizes, another number of labels, or another "
        "vocabulary or casing: what does not fit is new.",
        heading=flags.TRAINING,
    )
    precision: str = flags.field(
        "float32",
        f"Compute the network in {' or '.join(PRECISIONS)}.",
        flags.one_of(PRECISIONS),
        may_differ=False,
    )
    recompute: bool = flags.field(
        False,
        "Compute each layer again for its gradient: less memory, more work.",
        heading=flags.CORES,
    )

    def options(self) -> dict[str, Any]:
        """Returns the options of a model_fn's network that flags of the same names give."""
        left_out = ("bert_config_file",)
        return {n: v for n, v in flags.values_of(self).items() if n not in left_out}

    def build(
        self,
        output_dir: str,
        sizes: Mapping[str, Any] | None = None,
        plan: Mapping[str, Any] | None = None,
    ) -> BertConfig:
        """Returns the network of the `sizes`, or else of --bert_config_file, --init_checkpoint or
        the run's directory.

        Args:
          sizes: keys of bert_config.json -> value, if they are known without the flags.
          plan: such keys for a run from scratch that does not name a network.
        """
        if sizes is not None:
            return BertConfig(**sizes)
        bert_config = self._read(output_dir, plan)
        before = network_of_run(RunDirectory(output_dir))
        if before is None or "classifier_dropout" in before:
            return bert_config
        # The run began before its file said the head's dropout, and goes on as it began.
        return dataclasses.replace(bert_config, classifier_dropout=0.1)

    def _read(self, output_dir, plan):
        from bert_estimator import interchange
        from bert_estimator.interchange.hugging_face import config_json

        if self.bert_config_file is not None:
            with flags.named("bert_config_file"):
                return config_json.read_any_config(self.bert_config_file)
        if plan and not self.init_checkpoint:
            path = RunDirectory(output_dir).network_file()
            with flags.named("output_dir"):
                return BertConfig.from_json_file(path) if path else BertConfig(**plan)
        place = self.init_checkpoint or output_dir
        with flags.named("init_checkpoint" if self.init_checkpoint else "output_dir"):
            bert_config = interchange.open_source(place).config
        rule = f"is needed: there is no configuration beside {place}"
        flags.check(bert_config, "bert_config_file", None, rule)
        return bert_config


def network_of_run(directory: RunDirectory) -> dict[str, Any] | None:
    """Returns the keys of the bert_config.json of a directory's run, or None without a run."""
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


class OptimizerFlag(NamedTuple):
    """Says what a flag sets that only some optimizers have."""

    argument: str  # of the optimizers' classes
    optimizers: tuple[str, ...]  # their names


@flags.group(flags.TRAINING, may_differ=flags.EVALUATING)
class TrainingFlags:
    """Says how weights are updated; each script's own group says how long, too."""

    # A flag that only some optimizers have -> what it sets.
    OPTIMIZER_FLAGS: ClassVar[dict[str, OptimizerFlag]] = {}

    train_batch_size: int = flags.field(
        32, "Train on global batches of this many examples.", *BATCH_CHECKS, heading=flags.COMMON
    )
    learning_rate: float = flags.field(
        5e-5,
        "Set the peak learning rate.",
        flags.rule(lambda rate: 0 < rate <= _GREATEST_RATE, "must be a positive number of 32 bits"),
        heading=flags.COMMON,
    )
    layerwise_lr_decay: float = flags.field(
        1.0,
        "Multiply the learning rate by this factor from each layer to the layer below it.",
        SHARE,
    )
    optimizer: str = flags.field(
        "adamw", f"Choose one of {', '.join(OPTIMIZER_NAMES)}.", flags.one_of(OPTIMIZER_NAMES)
    )
    random_seed: int = flags.field(
        12345,
        "Choose the seed of weights, dropout and the order of the data.",
        flags.rule(lambda seed: 0 <= seed < 2**31, "must be from 0 to 2147483647"),
    )
    max_rollbacks: int = flags.field(
        0,
        "Leave out the batches since the newest checkpoint if a loss or weight is not finite, and "
        "go on from it, at most so many times; 0: end with an error.",
        flags.not_negative,
        _for_one_host,
        may_differ=True,
    )
    micro_batch_size: int | None = flags.field(
        None,
        "Compute at most this many rows at a time within a step; by default all.",
        flags.positive,
        heading=flags.CORES,
    )

    def optimizer_options(self) -> dict[str, Any]:
        """Returns the arguments of the optimizer's class that flags set; None sets nothing."""
        return {
            argument: value
            for flag, (argument, optimizers) in self.OPTIMIZER_FLAGS.items()
            if self.optimizer in optimizers and (value := getattr(self, flag)) is not None
        }

    def update_rule(self, schedule: Any, summary_dir: str, network: BertConfig) -> Any:
        """Returns the `update.UpdateRule` of the optimizer for the weights of a network, which
        takes its rates from a schedule; for `summary_dir`, see `UpdateRule`."""
        from bert_estimator.model_fns import fine_tuning, update

        return update.UpdateRule(
            self.optimizer,
            schedule,
            micro_batch_size=self.micro_batch_size,
            optimizer_options=self.optimizer_options(),
            rate_scale=fine_tuning.layerwise_rate_scale(
                self.layerwise_lr_decay, network.num_hidden_layers, network.num_hidden_groups
            ),
            summary_dir=summary_dir,
        )

    def check(self, is_given: Callable[[str], bool]) -> None:
        """Raises FlagError if a flag turns on what the optimizer does not have."""
        defaults = {flag.name: flag.default for flag in flags.of(type(self))}
        for name, (_, optimizers) in self.OPTIMIZER_FLAGS.items():
            value = getattr(self, name)
            rule = f"needs --optimizer={' or '.join(optimizers)}, not {self.optimizer}"
            is_meant = value and (value != defaults[name] or is_given(name))
            flags.check(self.optimizer in optimizers or not is_meant, name, value, rule)


@flags.group(flags.CHECKPOINTS, may_differ=True)
class ProgressFlags:
    """Says when a run saves checkpoints and says how far it is."""

    save_checkpoints_steps: int = flags.field(
        1000, "Set the number of steps between checkpoints.", flags.positive
    )
    log_every_secs: float = flags.field(
        10.0,
        "Log a line whenever so many seconds have passed; 0: a line for each line of "
        "metrics.jsonl but the first.",
        flags.rule(lambda secs: 0 <= secs < float("inf"), "must be 0 or a positive number"),
        heading=flags.LOG,
    )
    report_to: str = flags.field(
        trackers.TENSORBOARD,
        "Report what metrics.jsonl gets to an experiment tracker, too; TensorBoard's event files "
        f"are always written: {', '.join(trackers.NAMES)}.",
        flags.one_of(trackers.NAMES),
        lambda name, value: trackers.check(value),
    )


@flags.group(flags.CHECKPOINTS, may_differ=True)
class EvaluationFlags:
    """Says how a run evaluates, and what follows from it for the training."""

    eval_steps: int | None = flags.field(
        None,
        "Evaluate while training, at the first checkpoint after every so many steps.",
        flags.positive,
    )
    keep_best_checkpoint: bool = flags.field(
        False,
        "Evaluate while training, by default at every checkpoint; end with the best checkpoint.",
    )
    early_stopping_patience: int = flags.field(
        0,
        "End after this many evaluations in a row that are not better; 0: never.",
        flags.not_negative,
    )
    eval_batch_size: int = flags.field(
        8,
        "Evaluate on global batches of this many examples; by default at least one on each core.",
        *BATCH_CHECKS,
    )

    def while_training(self) -> dict[str, Any]:
        """Returns flag -> value of the flags given that ask for evaluations while training."""
        names = "eval_steps", "keep_best_checkpoint", "early_stopping_patience"
        return {name: value for name in names if (value := getattr(self, name))}


class Cores(NamedTuple):
    """Says what a run runs on."""

    master: str  # as `tpu.RunConfig` takes it; "" is the session runtime
    replicas: int  # copies of the model, of which each computes a part of a batch
    source: str  # what has the cores, in words


@flags.group(flags.CORES, may_differ=True)
class DeviceFlags:
    """Says what a run runs on."""

    use_tpu: bool = flags.field(
        False, "Follow the rules of TPUs, and run on a TPU if one is found.", heading=flags.COMMON
    )
    tpu_name: str | None = flags.field(
        None,
        "Run on local, gpu or rehearse:N; by default on $TPU_NAME, or on a TPU if one is found.",
    )
    num_tpu_cores: int | None = flags.field(
        None, "Expect this many cores; by default all that are found.", flags.positive
    )
    num_cores_per_replica: int = flags.field(
        1,
        f"Split each copy of the model over {', '.join(map(str, CORES_PER_REPLICA))} cores.",
        flags.positive,
        flags.rule(
            CORES_PER_REPLICA.__contains__,
            f"must be one of {', '.join(map(str, CORES_PER_REPLICA))}",
        ),
    )
    iterations_per_loop: int = flags.field(
        1000,
        "Set the number of steps between visits of hooks and checkpoints, with --use_tpu.",
        flags.positive,
    )
    host_wait_secs: float = flags.field(
        600.0,
        "Wait so many seconds for the other hosts of TF_CONFIG to start.",
        flags.rule(lambda secs: 0 < secs < float("inf"), "must be a positive number"),
    )

    def check(self) -> None:
        """Raises FlagError if cores are named without --use_tpu, or are not whole replicas."""
        rule = "names a TPU, but --use_tpu is not given; add it"
        flags.check(self.use_tpu or not self.tpu_name, "tpu_name", self.tpu_name, rule)
        if self.use_tpu and self.num_tpu_cores:
            per_replica = self.num_cores_per_replica
            rule = f"must divide --num_tpu_cores={self.num_tpu_cores}"
            is_whole = self.num_tpu_cores % per_replica == 0
            flags.check(is_whole, "num_cores_per_replica", per_replica, rule)

    def master(self) -> str:
        """Returns what the flags ask to run on; "" is the session runtime."""
        from bert_estimator.tpu import devices

        return self.tpu_name or (devices.default_master() if self.use_tpu else "")

    def find(self) -> Cores:
        """Finds what the flags ask for, and connects the hosts of TF_CONFIG."""
        if master := self.master():
            return self._found(master)
        from bert_estimator.tpu import devices

        num_hosts = flags.find_hosts().number
        if num_hosts > 1:
            raise flags.FlagError(
                f"TF_CONFIG names {num_hosts} hosts, but there are no cores that they could share: "
                f"this machine does not have a TPU. Give --tpu_name: {devices.ALLOWED}"
            )
        # One core stands in for all that are named.
        named = self.num_tpu_cores if self.use_tpu else None
        return Cores("", named // self.num_cores_per_replica if named else 1, "1 core")

    def _found(self, master):
        """Returns the cores of a master, which must be what the other flags expect."""
        from bert_estimator import tpu
        from bert_estimator.tpu import devices

        per_replica, num_hosts = self.num_cores_per_replica, flags.find_hosts().number
        is_flag = self.tpu_name or not os.environ.get("TPU_NAME")
        named = f"{'--tpu_name' if is_flag else '$TPU_NAME'}={master}"
        try:
            cores = len(devices.find(master, self.host_wait_secs))
            tpu.check_tensorflow()
        except RuntimeError as error:
            raise flags.FlagError(f"{named}: {error}") from None
        rule = f"does not divide the {cores} cores of {named}"
        flags.check(cores % per_replica == 0, "num_cores_per_replica", per_replica, rule)
        flags.check(
            cores // per_replica % num_hosts == 0,
            "num_cores_per_replica",
            per_replica,
            f"must divide the {cores // num_hosts} cores of each of the {num_hosts} hosts of "
            "TF_CONFIG",
        )
        shared = f", {per_replica} a replica" if per_replica > 1 else ""
        return Cores(master, cores // per_replica, f"the {cores} cores of {named}{shared}")
