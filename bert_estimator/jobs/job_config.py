"""The configuration that the jobs of all scripts share, and what is checked of several groups.

This module does not import TensorFlow, so wrong flags are reported before it is loaded.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from bert_estimator.command_line import flags, own_directory, provenance
from bert_estimator.command_line.run_directory import RunDirectory, recorded_settings
from bert_estimator.jobs.compile_only import Plan
from bert_estimator.jobs.groups import (
    Cores,
    DataFlags,
    DeviceFlags,
    EvaluationFlags,
    NetworkFlags,
    ProgressFlags,
    TrainingFlags,
)
from bert_estimator.storage import remote
from bert_estimator.storage.mirror import Mirror
from bert_estimator.system import paths


@flags.group(flags.TASKS, may_differ=True)
class JobConfig:
    """Holds the flags of a run in groups, and three further fields; each script extends it."""

    VERBS: ClassVar[tuple[str, ...]] = ("do_train", "do_eval")  # the flags that say what to do

    output_dir: str = flags.field(
        "runs/here",
        "Write checkpoints, events, metrics and curves into this directory.",
        heading=flags.COMMON,
    )
    do_train: bool = flags.field(None, "Train. If no flag says what to do, train and evaluate.")
    do_eval: bool = flags.field(None, "Evaluate.")
    data: DataFlags = flags.member(DataFlags)
    network: NetworkFlags = flags.member(NetworkFlags)
    training: TrainingFlags = flags.member(TrainingFlags)
    progress: ProgressFlags = flags.member(ProgressFlags)
    evaluation: EvaluationFlags = flags.member(EvaluationFlags)
    devices: DeviceFlags = flags.member(DeviceFlags)
    plan: Plan = flags.member(Plan)
    config: str | None = flags.field(
        None,
        "Take the flags of this JSON file, such as the config.json of a run that is to be "
        "repeated. Flags on the command line come first.",
        is_setting=False,
        heading=flags.COMMON,
    )
    take_over: bool = flags.field(
        False,
        "Take over a run in a remote --output_dir from the process that owner.json names, which "
        "has ended; if it has not, it is stopped.",
        is_setting=False,
        heading=flags.CHECKPOINTS,
    )

    sources: dict[str, provenance.Provenance] = dataclasses.field(default_factory=dict)  # by flag
    # Whether no data was given, so that the text that comes with Python is used.
    embedded: bool = False
    # Only a remote --output_dir has a mirror; `output_dir` is in its local directory.
    mirror: Mirror | None = dataclasses.field(default=None, compare=False, repr=False)

    def settings(self) -> dict[str, Any]:
        """Returns flag name -> value of the flags that say how to run, for config.json."""
        values = flags.values_of(self)
        names = [flag.name for flag in flags.of(type(self)) if flag.metadata["is_setting"]]
        # Local copies are in other places in the next process.
        return {n: remote.shown(v) if isinstance(v := values[n], str) else v for n in names}

    def settings_to_go_on(self) -> dict[str, Any]:
        """Returns the settings that a run must share with the run that it resumes or evaluates."""
        allowed = {True} if self.do_train else {True, flags.EVALUATING}
        may_differ = {f.name for f in flags.of(type(self)) if f.metadata["may_differ"] in allowed}
        # `as_begun` takes what the run began with.
        may_differ |= {name for name in provenance.EARLIER if not self.is_given(name)}
        # Without training, the flag names what to evaluate, and its default does not count.
        is_own = RunDirectory(self.output_dir).is_checkpoint(self.network.init_checkpoint)
        if not self.do_train and (is_own or not self.is_given("init_checkpoint")):
            may_differ.add("init_checkpoint")
        return {name: value for name, value in self.settings().items() if name not in may_differ}

    def directory_to_write(self) -> str:
        """Returns where this process writes the files of the run. The chief of several hosts writes
        the run's own files; the others keep theirs apart."""
        hosts = flags.find_hosts()
        return self.output_dir if hosts.is_chief else f"{self.output_dir}/host-{hosts.index}"

    def open_directory(self) -> RunDirectory:
        """Makes and returns the run's directory, which must not hold a run of other settings."""
        path = self.directory_to_write()
        for directory in (self.output_dir, path):
            flags.make_directory("output_dir", directory)
        directory = RunDirectory(path, checkpoints_in=self.output_dir)
        directory.check_config(self.settings_to_go_on())
        if self.do_train:
            own_directory.check_start(directory, self.network.init_checkpoint)
        return directory

    def as_begun(self, directory: RunDirectory) -> "JobConfig":
        """Returns the configuration that goes on as a directory's run began, in what may have begun
        otherwise (`provenance.EARLIER`) and no flag says."""
        if not (self.do_train and directory.holds_checkpoint()):
            return self
        # google-research/bert, too, leaves checkpoints, without config.json.
        before = recorded_settings(self.output_dir) or provenance.EARLIER
        own = flags.values_of(self)
        names = [n for n in provenance.EARLIER if n in own and not self.is_given(n)]
        return flags.changed(self, **{name: before[name] for name in names})

    @property
    def may_pack(self) -> bool:
        """Whether rows of the training may be packed; the records may decide it."""
        return bool(flags.values_of(self).get("pack"))

    def is_given(self, name: str) -> bool:
        """Returns whether the command line gives a flag."""
        return self.sources.get(name) == provenance.FLAG

    def evaluates_while_training(self) -> bool:
        """Returns whether training stops at checkpoints to evaluate."""
        return self.do_train and bool(self.evaluation.while_training())

    def batch_sizes(self) -> dict[str, int]:
        """Returns flag -> value of the global batches; training's comes first."""
        names = "train_batch_size", "eval_batch_size", "predict_batch_size"
        values = flags.values_of(self)
        return {name: values[name] for name in names if name in values}

    def fixed_batches(self) -> tuple[str, ...]:
        """Returns the names of the batch sizes that may not be changed to fit the cores."""
        # A changed batch of training would change the numbers; the others are kept if the user gave
        # them.
        train, *others = self.batch_sizes()
        fixed = [train] if self.do_train else []
        return (*fixed, *(name for name in others if self.is_given(name)))

    def fitted(self, cores: Cores) -> "JobConfig":
        """Returns the configuration whose batches divide by the replicas; the batches of evaluation
        and prediction that are not given are rounded up from their defaults."""
        # The cores that one core stands in for were compared before they were looked for.
        fixed = self.fixed_batches() if cores.master else ()
        self.check_divides(cores.replicas, cores.source, fixed)
        if cores.master:
            # Not before: all hosts have compared their flags by now, and end with the same error.
            asked, number = self.devices.num_tpu_cores, self.devices.num_cores_per_replica
            rule = f"there are {cores.source}; leave the flag out"
            is_expected = asked in (None, cores.replicas * number)
            flags.check(is_expected, "num_tpu_cores", asked, rule)
        _, *others = self.batch_sizes().items()
        whole = {name: -(-value // cores.replicas) * cores.replicas for name, value in others}
        return flags.changed(self, **{n: size for n, size in whole.items() if not self.is_given(n)})

    def check_divides(self, num_replicas: int, source: str, batches: tuple[str, ...]) -> None:
        """Checks that batches divide by replicas, and a replica's batch by its micro-batches;
        `source` is what sets the number of replicas, for the message."""
        sizes = self.batch_sizes()
        for name in batches:
            is_multiple = sizes[name] % num_replicas == 0
            flags.check(is_multiple, name, sizes[name], f"must be a multiple of {source}")
        batch, rows = self.training.train_batch_size, self.training.micro_batch_size
        if rows is not None and (self.do_train or self.plan.compile_only):
            of_batch, share = f"--train_batch_size={batch}", batch // num_replicas
            if num_replicas > 1:
                of_batch = f"{share}, a core's share of {of_batch}"
            fits = rows >= share or share % rows == 0
            flags.check(fits, "micro_batch_size", rows, f"must divide {of_batch}, or not be less")

    def check(self) -> None:
        """Checks all of the common flags that can be checked before TensorFlow is loaded."""
        # Single values come first: checks of several flags would misread a wrong value.
        flags.check_values(self)
        self.training.check(self.is_given)
        self._check_batches()
        flags.check(
            self.mirror is not None or not self.take_over,
            "take_over",
            self.take_over,
            "is for a remote --output_dir; leave it out: a killed process of this machine keeps no "
            "lock",
        )
        self.devices.check()
        verbs = [f"--{name}" for name in self.VERBS[1:]]
        flags.check(
            any(getattr(self, name) for name in self.VERBS),
            self.VERBS[0],
            False,
            f"nothing to do: {_enumerated(verbs)} off too; leave one of them on",
        )
        self.plan.check(self.output_dir, self.devices.use_tpu, self.devices.tpu_name)

    def _check_batches(self):
        """Checks batches against --num_tpu_cores; the cores of a name are found later."""
        cores, per_replica = self.devices.num_tpu_cores, self.devices.num_cores_per_replica
        if not self.devices.use_tpu:
            self.check_divides(1, "1 core", ())
        elif cores and cores % per_replica == 0:  # else `DeviceFlags.check` refuses them
            source = f"--num_tpu_cores={cores}"
            if per_replica > 1:
                source += f" over --num_cores_per_replica={per_replica}"
            self.check_divides(cores // per_replica, source, self.fixed_batches())


def open_directories(configs: Sequence[JobConfig]) -> None:
    """Makes the directories of runs; raises FlagError as `JobConfig.open_directory` does."""
    for config in configs:
        if not config.plan.compile_only:
            config.open_directory()


def _enumerated(names):
    """Returns "a is", or "a, b and c are"."""
    if len(names) == 1:
        return f"{names[0]} is"
    return f"{', '.join(names[:-1])} and {names[-1]} are"


def find_output_dir(output_dir: str) -> tuple[str, Mirror | None]:
    """Checks that a run may write into --output_dir; returns (the directory of this machine, the
    `Mirror` that has copied a remote directory there, or None)."""
    is_remote = paths.is_remote(output_dir)
    if is_remote:
        with flags.named(f"output_dir={output_dir}"):
            paths.check_no_pattern(output_dir)
    # Before anything is copied, the directory must be a run's, or be empty.
    own_directory.check_run(output_dir)
    if not is_remote:
        return output_dir, None
    hosts = flags.find_hosts()
    with flags.named("output_dir"):
        mirror = Mirror(output_dir, hosts)
    return mirror.path, mirror
