"""Compiles a run's training step for a TPU that need not be there, as `--compile_only` asks."""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

from bert_estimator.command_line import flags
from bert_estimator.command_line.provenance import Origin, Provenance
from bert_estimator.storage import remote
from bert_estimator.system import disk_files, json_files, ticker

# A real run reaches only a share of a chip's peak. "Large batch optimization for deep learning:
# training BERT in 76 minutes" (You et al., 2019) trained BERT-Large in 76.19 minutes on 1024 TPU v3
# chips: it reached this share of their peak, 123 TFLOP/s a chip.
_SHARE_OF_PEAK_OF_THE_PAPER = 0.283

_MOST_TIMES_THE_CORES = 8


@flags.group(flags.TASKS, is_setting=False)
class Plan:
    """Says what is to be compiled in the place of a run."""

    compile_only: bool = flags.field(
        False,
        "Compile the training step for --tpu_topology, report what it needs, and end. (A run "
        "says at its start whether it fits this machine.)",
    )
    tpu_topology: str | None = flags.field(
        None,
        "Compile for this TPU, such as v3:32x32; it need not be there.",
        heading=flags.CORES,
    )

    def check(self, output_dir: str, use_tpu: bool, tpu_name: str | None) -> None:
        """Checks --compile_only with the flags that go with it, before TensorFlow is loaded."""
        if not self.compile_only:
            for name, value in flags.values_of(self).items():
                flags.check(not value, name, value, "goes with --compile_only; add it")
            return
        flags.check(
            self.tpu_topology,
            "compile_only",
            True,
            "needs --tpu_topology, what to compile for, such as --tpu_topology=v3:32x32",
        )
        rule = "compiles for a TPU, but --use_tpu is not given"
        flags.check(use_tpu, "compile_only", True, rule)
        rule = "names cores to run on; with --compile_only nothing runs, leave it out"
        flags.check(not tpu_name, "tpu_name", tpu_name, rule)
        flags.check(
            not os.path.exists(os.path.join(output_dir, "config.json")),
            "output_dir",
            output_dir,
            "has a run; give another directory for the report of --compile_only",
        )


def run(
    config: Any,
    lower: Callable[[int, int], tuple[Any, float | None]],
    num_train_steps: int,
    input_secs: float | None = None,
) -> bool:
    """Compiles the training step, prints and writes what it needs; returns whether it fits.

    Args:
      lower: function of a number of cores and a number of hosts that returns (a `LoweredStep`, the
        share of its positions that are tokens, or None if it is not known).
      input_secs: the seconds that one core of a host takes to read an example; None if the examples
        are in memory.
    """
    # This module belongs to the configuration, which is checked before TensorFlow is loaded.
    from bert_estimator.interchange import network_variables
    from bert_estimator.tpu import compile_report

    flags.make_directory("output_dir", config.output_dir)
    name = config.plan.tpu_topology
    try:
        devices = compile_report.find(name)
    except (RuntimeError, ValueError) as error:
        raise flags.FlagError(f"--tpu_topology={name}: {error}") from None
    cores, hosts = len(devices), len({core.process_index for core in devices})
    replicas = _check_cores(config, cores)
    with _saying_so(name, config.progress.log_every_secs):
        lowered, token_share = lower(cores, hosts)
        report = compile_report.report(
            lowered,
            name,
            config.training.train_batch_size,
            config.devices.num_cores_per_replica,
            network_variables.SHARDING,
        )
    print("\n".join(report.lines()), flush=True)
    result = {**dataclasses.asdict(report), "num_train_steps": num_train_steps}
    if token_share is not None:
        print(f"positions: {token_share:.1%} of what a step computes are tokens, not padding")
        result["token_share"] = token_share
    if report.fits:
        result |= _times(report, num_train_steps)
        print(_training(result))
        if input_secs is not None:
            result |= _input(report, input_secs)
    else:
        remedies = list(_remedies(config, replicas, report))
        print("\n  ".join(["What needs less memory:", *remedies]))
        result["remedies"] = [{"flags": remedy} for remedy in remedies]
    path = _path(config.output_dir)
    with disk_files.writer(path) as writer:
        json.dump(result, writer, indent=2)
        writer.write("\n")
    print(f"report: {remote.shown(path)}")
    return report.fits


def _check_cores(config, cores):
    """Returns the number of replicas; raises FlagError if a flag does not fit the cores."""
    source = f"the {cores} cores of --tpu_topology={config.plan.tpu_topology}"
    per_replica, number = config.devices.num_cores_per_replica, config.devices.num_tpu_cores
    flags.check(
        cores % per_replica == 0, "num_cores_per_replica", per_replica, f"must divide {source}"
    )
    replicas = cores // per_replica
    config.check_divides(
        replicas,
        source if per_replica == 1 else f"{source}, {per_replica} a replica",
        ("train_batch_size",),
    )
    topology = f"--tpu_topology={config.plan.tpu_topology}"
    rule = f"is not the number of cores of {topology}, {cores}; leave it out"
    flags.check(number in (None, cores), "num_tpu_cores", number, rule)
    return replicas


def _saying_so(topology, log_every_secs):
    """Says every few seconds that the compiler still works."""
    compiling = ticker.so_far(
        f"Compiling for {topology}, which takes a minute for a small network and many minutes for "
        "BERT-Large"
    )
    return ticker.every(log_every_secs or ticker.LONGEST_SILENCE_SECS, compiling)


def print_total(configs: Sequence[Any]) -> None:
    """Prints how long the stages of a recipe, all of which fit, take together by their reports."""
    paths = [_path(config.output_dir) for config in configs]
    reports = {path: json_files.read(path) for path in paths}
    least, likely = (
        sum(json_files.field(r, name, float, path) for path, r in reports.items())
        for name in (_LEAST, _LIKELY)
    )
    line = (
        f"all {len(configs)} stages: {_duration(least)} at least; at "
        f"{_SHARE_OF_PEAK_OF_THE_PAPER:.1%} of peak {_duration(likely)}"
    )
    # The network is the paper's, too.
    paper = Provenance(Origin.PAPER, "lamb_76min")
    if all(config.sources["bert_config"] == paper for config in configs):
        line += ". The paper's lamb_76min took 76.19 minutes on v3:32x32"
    print(line)


def _path(output_dir):
    return os.path.join(output_dir, "compile_report.json")


# The keys of a report: the seconds of a whole training.
_LEAST, _LIKELY = "least_total_secs", "total_secs_at_share_of_the_paper"


def _times(report, steps):
    at_share = report.flops / report.peak / _SHARE_OF_PEAK_OF_THE_PAPER
    return {
        "least_step_secs": report.least_step_secs,
        _LEAST: steps * report.least_step_secs,
        # The bound may have other reasons than arithmetic, such as memory.
        _LIKELY: steps * max(at_share, report.least_step_secs),
    }


def _training(result):
    """Returns the times of a training in words."""
    return (
        f"training: {result['num_train_steps']} steps, at least {result['least_step_secs']:.3g} s "
        f"each, {_duration(result[_LEAST])} in all; at {_SHARE_OF_PEAK_OF_THE_PAPER:.1%} of peak, "
        f"what the LAMB paper's run of BERT-Large reached on TPU v3, {_duration(result[_LIKELY])}"
    )


def _input(report, input_secs):
    """Prints and returns what the fastest steps need of each host."""
    rate = report.train_batch_size / report.hosts / report.least_step_secs
    cores = rate * input_secs
    print(
        f"input: each host ({report.hosts}) reads at most {rate:,.0f} examples a second, which "
        f"keeps {cores:.2g} cores of its CPU busy"
    )
    return {"input_examples_per_sec_per_host": rate, "input_cores_per_host": cores}


# If so many cores of a host share the update, each holds less of the weights and of two moments
# than with Adafactor. That has little state, but its update cannot be shared: each has all weights.
_SHARERS_OF_LITTLE = 4


def _remedies(config, replicas, report):
    """Yields flags, and a number of cores, that need less memory than a report says."""
    training, per_replica = config.training, config.devices.num_cores_per_replica
    # All memory but the weights and the optimizer's state grows with the batch.
    state = report.memory["weights"] + report.memory["optimizer_state"]
    times_too_big = (report.memory["total"] - state) / max(report.usable_hbm - state, 1)
    # The parts may be larger than the numbers suggest: the compiler saves memory when it is short
    # of it.
    least = max(2, 2 ** math.floor(math.log2(times_too_big)))
    if config.network.precision == "float32":
        yield "--precision=bfloat16"
    if not config.network.recompute:
        yield "--recompute"
    sharers = replicas // report.hosts if per_replica == 1 else 1
    if training.optimizer != "adafactor" and sharers < _SHARERS_OF_LITTLE:
        yield "--optimizer=adafactor"
    share = training.train_batch_size // replicas
    rows = min(training.micro_batch_size or share, share)
    if sizes := [size for size in range(1, rows // least + 1) if rows % size == 0]:
        yield f"--micro_batch_size={sizes[-1]}"
    factor = min(least, _MOST_TIMES_THE_CORES)
    while factor <= _MOST_TIMES_THE_CORES and share % factor == 0:
        if share // factor % min(rows, share // factor) == 0:
            yield f"{factor * replicas * per_replica} cores"
            return
        factor *= 2


def _duration(secs):
    if secs < 120:
        return f"{secs:.0f} s" if secs >= 10 else f"{secs:.2g} s"
    return f"{secs / 60:.0f} min" if secs < 7200 else f"{secs / 3600:.1f} h"
