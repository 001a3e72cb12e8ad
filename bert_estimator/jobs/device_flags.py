"""What a run runs on: the flags that ask for it, and what is found.

This module does not import TensorFlow, so wrong flags are reported before it is loaded.
"""

import os
from typing import NamedTuple

from bert_estimator.command_line import flags
from bert_estimator.command_line.choices import CORES_PER_REPLICA


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
        "Split each copy of the model over this many cores.",
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
        rule = f"{named} has {cores} cores; leave the flag out"
        is_expected = self.num_tpu_cores in (None, cores)
        flags.check(is_expected, "num_tpu_cores", self.num_tpu_cores, rule)
        shared = f", {per_replica} a replica" if per_replica > 1 else ""
        return Cores(master, cores // per_replica, f"the {cores} cores of {named}{shared}")
