"""The configuration that the jobs of all scripts share: their common flags, and their checks.

Names and meanings of the flags are google-research/bert's. This module does not import TensorFlow,
so wrong flags are reported before it is loaded.
"""

import dataclasses
from typing import Any, ClassVar

from bert_estimator.command_line import flags, provenance
from bert_estimator.command_line.choices import CORES_PER_REPLICA, OPTIMIZERS, PRECISIONS
from bert_estimator.command_line.run_directory import RunDirectory
from bert_estimator.jobs import compile_only
from bert_estimator.storage import remote
from bert_estimator.storage.mirror import Mirror
from bert_estimator.system import paths

_GREATEST_RATE = 3e38
_GREATEST_BATCH = 1 << 24  # 256 times the paper's; batches beyond it do not fit into any memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobConfig:
    """A run, resolved and checked: a field for each flag, of the same name, and three more.

    A script's own configuration extends this one with the script's own flags.

    Attributes:
      sources: name of a field -> the `provenance.Source` of its value.
      embedded: whether no data was given, so that the text that comes with Python is used.
      mirror: the `Mirror` whose local directory `output_dir` is in, if --output_dir is remote.
      VERBS: the flags that say what to do.
      BATCH_SIZES: the flags of global batches; training comes first.
      EVALUATE_WHILE_TRAINING: the flags that ask for evaluations while training.
      OPTIMIZER_FLAGS: flag that only some optimizers have -> names of these optimizers.
    """

    VERBS: ClassVar[tuple[str, ...]] = ("do_train", "do_eval")
    BATCH_SIZES: ClassVar[tuple[str, ...]] = ("train_batch_size", "eval_batch_size")
    EVALUATE_WHILE_TRAINING: ClassVar[tuple[str, ...]] = (
        "eval_steps", "keep_best_checkpoint", "early_stopping_patience"
    )  # fmt: skip
    OPTIMIZER_FLAGS: ClassVar[dict[str, tuple[str, ...]]] = {}

    config: str | None = flags.field(
        None,
        "Take the flags of this JSON or YAML file, such as the config.json of a run that is to be "
        "repeated. Flags on the command line come first.",
        is_setting=False,
    )
    output_dir: str = flags.field(
        "runs/here",
        "Write checkpoints, events, metrics and curves into this directory.",
        may_differ=True,
    )
    bert_config_file: str | None = flags.field(
        None,
        "Build this network: a bert_config.json, or the config.json of transformers.",
        eval_may_differ=True,
    )
    init_checkpoint: str | None = flags.field(
        None,
        "Start training from the weights of this checkpoint, Google's, Hugging Face's or TF Hub's: "
        "a path without .index, a directory, or a zip archive. Empty: start from scratch.",
    )
    allow_partial_init: bool = flags.field(
        False,
        "Initialize the variables that --init_checkpoint lacks, and ignore its other variables; "
        "its vocabulary may be another.",
        eval_may_differ=True,
    )
    do_train: bool = flags.field(
        None, "Train. If no flag says what to do, train and evaluate.", may_differ=True
    )
    do_eval: bool = flags.field(None, "Evaluate.", may_differ=True)
    train_batch_size: int = flags.field(
        32, "Train on global batches of this many examples.", eval_may_differ=True
    )
    eval_steps: int | None = flags.field(
        None,
        "Evaluate while training, at the first checkpoint after every so many steps.",
        may_differ=True,
    )
    keep_best_checkpoint: bool = flags.field(
        False,
        "Evaluate while training, by default at every checkpoint; end with the best checkpoint.",
        may_differ=True,
    )
    early_stopping_patience: int = flags.field(
        0,
        "End after this many evaluations in a row that are not better; 0: never.",
        may_differ=True,
    )
    eval_batch_size: int = flags.field(
        8,
        "Evaluate on global batches of this many examples; by default at least one on each core.",
        may_differ=True,
    )
    learning_rate: float = flags.field(5e-5, "Set the peak learning rate.", eval_may_differ=True)
    save_checkpoints_steps: int = flags.field(
        1000, "Set the number of steps between checkpoints.", may_differ=True
    )
    iterations_per_loop: int = flags.field(
        1000,
        "Set the number of steps between visits of hooks and checkpoints, with --use_tpu.",
        may_differ=True,
    )
    log_every_secs: float = flags.field(
        10.0,
        "Log a line whenever so many seconds have passed; 0: a line for each line of "
        "metrics.jsonl but the first.",
        may_differ=True,
    )
    use_tpu: bool = flags.field(
        False, "Follow the rules of TPUs, and run on a TPU if one is found.", may_differ=True
    )
    tpu_name: str | None = flags.field(
        None,
        "Run on local, gpu or rehearse:N; by default on $TPU_NAME, or on a TPU if one is found.",
        may_differ=True,
    )
    num_tpu_cores: int | None = flags.field(
        None, "Expect this many cores; by default all that are found.", may_differ=True
    )
    num_cores_per_replica: int = flags.field(
        1, "Split each copy of the model over this many cores.", may_differ=True
    )
    max_rollbacks: int = flags.field(
        0,
        "Leave out the batches since the newest checkpoint if a loss or weight is not finite, and "
        "go on from it, at most so many times; 0: end with an error.",
        may_differ=True,
    )
    host_wait_secs: float = flags.field(
        600.0, "Wait so many seconds for the other hosts of TF_CONFIG to start.", may_differ=True
    )
    precision: str = flags.field("float32", f"Compute the network in {' or '.join(PRECISIONS)}.")
    optimizer: str = flags.field(
        None, f"Choose one of {', '.join(OPTIMIZERS)}.", eval_may_differ=True
    )
    micro_batch_size: int | None = flags.field(
        None,
        "Compute at most this many rows at a time within a step; by default all.",
        eval_may_differ=True,
    )
    recompute: bool = flags.field(
        False,
        "Compute each layer again for its gradient: less memory, more work.",
        eval_may_differ=True,
    )
    use_one_hot_embeddings: bool = flags.field(
        False,
        "Look embeddings up by a matrix product, as google-research/bert did on TPUs.",
        eval_may_differ=True,
    )
    random_seed: int = flags.field(
        12345,
        "Choose the seed of weights, dropout and the order of the data.",
        eval_may_differ=True,
    )
    max_seq_length: int = flags.field(128, "Set the length of sequences in tokens.")
    compile_only: bool = flags.field(
        False,
        "Compile the training step for --tpu_topology, report what it needs, and end.",
        is_setting=False,
    )
    tpu_topology: str | None = flags.field(
        None,
        "Compile for this TPU, such as v3:32x32; it need not be there.",
        is_setting=False,
    )
    suggest: bool = flags.field(
        False,
        "Compile, with --compile_only, what may fit if the step does not.",
        is_setting=False,
    )
    price_per_chip_hour: float | None = flags.field(
        None,
        "Print, with --compile_only, what the training costs at this price of a chip's hour.",
        is_setting=False,
    )

    take_over: bool = flags.field(
        False,
        "Take over a run in a remote --output_dir from the process that owner.json names, which "
        "has ended; if it has not, it is stopped.",
        is_setting=False,
    )

    sources: dict[str, provenance.Source] = dataclasses.field(default_factory=dict)
    embedded: bool = False
    mirror: Mirror | None = dataclasses.field(default=None, compare=False, repr=False)

    def settings(self) -> dict[str, Any]:
        """Returns flag name -> value of the flags that say how to run, for config.json."""
        settings = {
            field.name: getattr(self, field.name)
            for field in flags.of(type(self))
            if field.metadata["is_setting"]
        }
        # Local copies are in other places in the next process.
        return {n: remote.shown(v) if isinstance(v, str) else v for n, v in settings.items()}

    def settings_to_go_on(self) -> dict[str, Any]:
        """Returns the settings that a run must share with the run that it resumes or evaluates."""
        may_differ = {
            each.name
            for each in flags.of(type(self))
            if each.metadata["may_differ"]
            or (each.metadata["eval_may_differ"] and not self.do_train)
        }
        # Without training, the flag names what to evaluate, and its default does not count.
        is_own = RunDirectory(self.output_dir).is_checkpoint(self.init_checkpoint)
        if not self.do_train and (is_own or not self.is_given("init_checkpoint")):
            may_differ.add("init_checkpoint")
        return {name: value for name, value in self.settings().items() if name not in may_differ}

    def directory_to_write(self) -> str:
        """Returns where this process writes the files of the run. The chief of several hosts writes
        the run's own files; the others keep theirs apart."""
        hosts = flags.find_hosts()
        return self.output_dir if hosts.is_chief else f"{self.output_dir}/host-{hosts.index}"

    def open_directory(self) -> RunDirectory:
        """Returns the directory of the run.

        Raises:
          FlagError: it holds a run of other settings.
        """
        directory = RunDirectory(self.directory_to_write(), checkpoints_in=self.output_dir)
        directory.check_config(self.settings_to_go_on())
        return directory

    def is_given(self, name: str) -> bool:
        """Returns whether the command line gives a flag."""
        return self.sources.get(name) == provenance.FLAG

    def evaluates_while_training(self) -> bool:
        """Returns whether training stops at checkpoints to evaluate."""
        return self.do_train and any(getattr(self, name) for name in self.EVALUATE_WHILE_TRAINING)

    def keeps_best(self) -> bool:
        """Returns whether the run delivers its best checkpoint, and not its last one."""
        return bool(self.keep_best_checkpoint or self.early_stopping_patience)

    def fixed_batches(self) -> tuple[str, ...]:
        """Returns the names of the batch sizes that may not be changed to fit the cores.

        They are the batch of training, which changes the numbers, and each that the user gave.
        """
        train, *others = self.BATCH_SIZES
        fixed = [train] if self.do_train else []
        return (*fixed, *(name for name in others if self.is_given(name)))

    def whole_batches(self, num_replicas: int) -> dict[str, int]:
        """Returns name -> value of the batch sizes of evaluation and prediction that are not given.

        Each is rounded up from its default to a multiple of the number of replicas.
        """
        return {
            name: -(-getattr(self, name) // num_replicas) * num_replicas
            for name in self.BATCH_SIZES[1:]
            if not self.is_given(name)
        }

    def check_divides(self, num_replicas: int, source: str, batches: tuple[str, ...]) -> None:
        """Checks that batches divide by replicas, and a replica's batch by its micro-batches.

        Args:
          num_replicas: how many copies of the model share a batch.
          source: what sets the number of replicas, for the message.
          batches: names of the batch sizes to check.

        Raises:
          FlagError: a batch does not divide.
        """
        for name in batches:
            value = getattr(self, name)
            flags.check(value % num_replicas == 0, name, value, f"must be a multiple of {source}")
        share, rows = self.train_batch_size // num_replicas, self.micro_batch_size
        if rows is not None and (self.do_train or self.compile_only):
            of_batch = f"--train_batch_size={self.train_batch_size}"
            if num_replicas > 1:
                of_batch = f"{share}, a core's share of {of_batch}"
            fits = rows >= share or share % rows == 0
            flags.check(fits, "micro_batch_size", rows, f"must divide {of_batch}, or not be less")

    def check(self) -> None:
        """Checks all of the common flags that can be checked before TensorFlow is loaded.

        Raises:
          FlagError: it names the flag, what is allowed, and what to do.
        """
        self._check_numbers()
        flags.check_choice("precision", self.precision, PRECISIONS)
        flags.check_choice("optimizer", self.optimizer, OPTIMIZERS)
        for name, optimizers in self.OPTIMIZER_FLAGS.items():
            value = getattr(self, name)
            flags.check(
                self.optimizer in optimizers or value == getattr(type(self), name),
                name,
                value,
                f"needs --optimizer={' or '.join(optimizers)}, not {self.optimizer}",
            )
        self._check_cores()
        flags.check_file("bert_config_file", self.bert_config_file)
        checkpoint = self.init_checkpoint
        if checkpoint and not paths.is_remote(checkpoint):
            flags.check_checkpoint("init_checkpoint", checkpoint)
        flags.check(
            self.mirror is not None or not self.take_over,
            "take_over",
            self.take_over,
            "is for a remote --output_dir; leave it out: a killed process of this machine keeps no "
            "lock",
        )
        flags.check(
            self.use_tpu or not self.tpu_name,
            "tpu_name",
            self.tpu_name,
            "names a TPU, but --use_tpu is not given; add it",
        )
        verbs = [f"--{name}" for name in self.VERBS[1:]]
        flags.check(
            any(getattr(self, name) for name in self.VERBS),
            self.VERBS[0],
            False,
            f"nothing to do: {_enumerated(verbs)} off too; leave one of them on",
        )
        compile_only.check(self)

    def _check_numbers(self):
        for name in (
            *self.BATCH_SIZES, "save_checkpoints_steps", "iterations_per_loop", "micro_batch_size",
            "num_tpu_cores", "num_cores_per_replica", "eval_steps",
        ):  # fmt: skip
            flags.check_positive(name, getattr(self, name))
        for name in self.BATCH_SIZES:
            value = getattr(self, name)
            flags.check(value <= _GREATEST_BATCH, name, value, f"must be at most {_GREATEST_BATCH}")
        per_replica = self.num_cores_per_replica
        flags.check(
            per_replica in CORES_PER_REPLICA,
            "num_cores_per_replica",
            per_replica,
            f"must be one of {', '.join(map(str, CORES_PER_REPLICA))}",
        )
        secs = self.log_every_secs
        flags.check(
            0 <= secs < float("inf"), "log_every_secs", secs, "must be 0 or a positive number"
        )
        patience = self.early_stopping_patience
        flags.check(patience >= 0, "early_stopping_patience", patience, "must not be negative")
        rate = self.learning_rate
        is_rate = 0 < rate <= _GREATEST_RATE
        flags.check(is_rate, "learning_rate", rate, "must be a positive number of 32 bits")
        seed = self.random_seed
        flags.check(0 <= seed < 2**31, "random_seed", seed, "must be from 0 to 2147483647")
        flags.check(
            self.max_rollbacks >= 0, "max_rollbacks", self.max_rollbacks, "must not be negative"
        )
        flags.check(
            not self.max_rollbacks or flags.find_hosts().number == 1,
            "max_rollbacks",
            self.max_rollbacks,
            "is for one host, but TF_CONFIG names several; leave it out",
        )
        wait = self.host_wait_secs
        flags.check(0 < wait < float("inf"), "host_wait_secs", wait, "must be a positive number")

    def _check_cores(self):
        """Checks batches against --num_tpu_cores; the cores of a name are found later."""
        if not self.use_tpu:
            self.check_divides(1, "1 core", ())
        if not (self.use_tpu and self.num_tpu_cores):
            return
        cores, per_replica = self.num_tpu_cores, self.num_cores_per_replica
        flags.check(
            cores % per_replica == 0,
            "num_cores_per_replica",
            per_replica,
            f"must divide --num_tpu_cores={cores}",
        )
        source = f"--num_tpu_cores={cores}"
        if per_replica > 1:
            source += f" over --num_cores_per_replica={per_replica}"
        self.check_divides(cores // per_replica, source, self.fixed_batches())


def _enumerated(names):
    """Returns "a is", or "a, b and c are"."""
    if len(names) == 1:
        return f"{names[0]} is"
    return f"{', '.join(names[:-1])} and {names[-1]} are"
