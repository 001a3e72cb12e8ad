"""`--compile_only`: a run's training step compiled for a TPU that need not be there.

And the flag `--export_program`, for the step to run where TensorFlow is not installed.
"""

import dataclasses
import json
import math
import os

from absl import flags as absl_flags

from bert_estimator import sharding
from bert_estimator.command_line import flags

# minutes" (You et al., 2019) trained BERT-Large in 76.19 minutes on 1024 TPU v3 chips; that is this
# share of their 123 TFLOP/s.
_SHARE_OF_PEAK_OF_THE_PAPER = 0.283

_MOST_TIMES_THE_CORES = 8

FLAGS = ("compile_only", "tpu_topology", "suggest", "export_program")


def define_flags(values):
    """Defines these flags in an `absl.flags.FlagValues`."""
    for name, text in (
        ("compile_only", "Compile the training step for --tpu_topology, say what it needs, end."),
        ("suggest", "With --compile_only: where the step does not fit, compile what may."),
    ):
        absl_flags.DEFINE_boolean(name, False, text, flag_values=values)
    for name, text in (
        ("tpu_topology", "TPU to compile for, which need not be there, such as v3:32x32."),
        ("export_program", "Write the training step there, to run without TensorFlow, and end."),
    ):
        absl_flags.DEFINE_string(name, None, text, flag_values=values)


def check(config):
    """Checks these flags, before TensorFlow is loaded."""
    if config.export_program:
        flags.check(
            config.use_tpu and not config.compile_only,
            "export_program",
            config.export_program,
            "needs --use_tpu, and goes without --compile_only",
        )
        flags.check_writable_directory("export_program", config.export_program)
    if not config.compile_only:
        for name in ("tpu_topology", "suggest"):
            value = getattr(config, name)
            flags.check(not value, name, value, "goes with --compile_only; add it")
        return
    flags.check(
        config.tpu_topology,
        "compile_only",
        True,
        "needs --tpu_topology, what to compile for, such as --tpu_topology=v3:32x32",
    )
    flags.check(
        config.use_tpu, "compile_only", True, "compiles for a TPU, but --use_tpu is not given"
    )
    flags.check(
        not config.tpu_name,
        "tpu_name",
        config.tpu_name,
        "names cores to run on; with --compile_only nothing runs, leave it out",
    )


def run(config, lower):
    """Compiles the training step, prints what the compiler says, and writes it as JSON.

    Args:
      config: the script's configuration.
      lower: function of a configuration and a number of cores that returns a `LoweredStep`.

    Returns:
      Whether the step fits the memory of a core.

    Raises:
      flags.FlagError: the topology is unknown, or the batch does not divide by its cores.
    """
    from bert_estimator.tpu.program import compile_report, topology

    name = config.tpu_topology
    try:
        cores = len(topology.find(name))
    except (RuntimeError, ValueError) as error:
        raise flags.FlagError(f"--tpu_topology={name}: {error}") from None
    source = f"the {cores} cores of --tpu_topology={name}"
    shards, per_replica = config.num_tpu_cores, config.num_cores_per_replica
    flags.check(
        cores % per_replica == 0, "num_cores_per_replica", per_replica, f"must divide {source}"
    )
    replicas = cores // per_replica
    flags.check_divides(
        config,
        replicas,
        source if per_replica == 1 else f"{source}, {per_replica} a replica",
        ["train_batch_size"],
    )
    flags.check(shards in (None, cores), "num_tpu_cores", shards, f"must be left out: {source}")

    def report(changes):
        changed = dataclasses.replace(config, **changes)
        return compile_report.report(
            lower(changed, cores),
            name,
            changed.train_batch_size,
            per_replica,
            sharding.BERT,
        )

    found = report({})
    print("\n".join(found.lines()), flush=True)
    result = {**found.as_dict(), "num_train_steps": config.num_train_steps}
    if found.fits:
        result |= _times(found, config.num_train_steps)
        print(
            f"training: {config.num_train_steps} steps, at least {result['least_step_secs']:.3g} s "
            f"each, {_duration(result['least_total_secs'])} in all; at "
            f"{_SHARE_OF_PEAK_OF_THE_PAPER:.1%} of peak, what the LAMB paper's run of BERT-Large "
            f"reached on TPU v3, {_duration(result['total_secs_at_share_of_the_paper'])}"
        )
    else:
        result["remedies"] = list(_remedies(config, replicas, found, report))
    path = _path(config)
    with open(path, "w", encoding="utf-8") as writer:
        json.dump(result, writer, indent=2)
        writer.write("\n")
    print(f"report: {path}")
    return found.fits


def print_total(configs):
    """Prints what the stages of a recipe take together, from the reports of their directories.

    Args:
      configs: the configurations of stages that fit.
    """
    reports = []
    for config in configs:
        with open(_path(config), encoding="utf-8") as reader:
            reports.append(json.load(reader))
    least, likely = (
        _duration(sum(report[name] for report in reports))
        for name in ("least_total_secs", "total_secs_at_share_of_the_paper")
    )
    print(
        f"all {len(configs)} stages: {least} at least; at {_SHARE_OF_PEAK_OF_THE_PAPER:.1%} of "
        f"peak {likely}. The paper's lamb_76min took 76.19 minutes on v3:32x32"
    )


def _path(config):
    return os.path.join(config.output_dir, "compile_report.json")


def _times(report, steps):
    at_share = report.flops / report.peak / _SHARE_OF_PEAK_OF_THE_PAPER
    return {
        "least_step_secs": report.least_step_secs,
        "least_total_secs": steps * report.least_step_secs,
        "total_secs_at_share_of_the_paper": steps * at_share,
    }


def _remedies(config, replicas, found, report):
    """Prints what needs less memory; yields it as dicts, with what the compiler says of it."""
    print("What needs less memory" + ("" if config.suggest else " (--suggest compiles each):"))
    for variants in _changes(config, replicas, _times_too_big(found)):
        for text, changes in variants:
            remedy = {"flags": text}
            if config.suggest:
                changed = report(changes)
                remedy |= {"fits": changed.fits, "total": changed.memory["total"]}
                needs = f"{changed.memory['total'] / 2**30:.2f} GiB"
                verdict = f"fits, {needs}" if changed.fits else f"does not fit, {needs} at least"
                print(f"  {text}: {verdict}", flush=True)
            else:
                print(f"  {text}")
            yield remedy
            if not config.suggest or remedy["fits"]:
                break


def _times_too_big(found):
    """How many times the room for it all but weights and state takes; it grows with the batch."""
    state = found.memory["weights"] + found.memory["optimizer_state"]
    return (found.memory["total"] - state) / max(found.usable_hbm - state, 1)


def _changes(config, replicas, times_too_big):
    """Returns lists of (flags, changed settings): of each list, the first that fits is enough."""
    changes = []
    # The first try of what divides the batch: not so often as the numbers say, since the compiler
    # saves memory where it is short.
    least = max(2, 2 ** math.floor(math.log2(times_too_big)))
    if config.precision == "float32":
        changes.append([("--precision=bfloat16", {"precision": "bfloat16"})])
    if not config.recompute:
        changes.append([("--recompute", {"recompute": True})])
    if config.optimizer != "adafactor":
        options = {"lamb_bias_correction": False, "bfloat16_first_moments": False}
        changes.append([("--optimizer=adafactor", {"optimizer": "adafactor", **options})])
    share = config.train_batch_size // replicas
    rows = min(config.micro_batch_size or share, share)
    sizes = []
    for size in range(rows // least, 0, -1):
        if rows % size == 0 and (not sizes or 2 * size <= sizes[-1]):
            sizes.append(size)
    changes.append([(f"--micro_batch_size={n}", {"micro_batch_size": n}) for n in sizes])
    more, factor = [], min(least, _MOST_TIMES_THE_CORES)
    while factor <= _MOST_TIMES_THE_CORES and config.train_batch_size % (factor * replicas) == 0:
        batch = config.train_batch_size // factor
        if batch // replicas % min(rows, batch // replicas) == 0:
            # What a core needs does not depend on how many others there are.
            cores = factor * replicas * config.num_cores_per_replica
            more.append((f"{cores} cores", {"train_batch_size": batch}))
        factor *= 2
    return [*changes, more]


def _duration(secs):
    if secs < 120:
        return f"{secs:.0f} s"
    return f"{secs / 60:.0f} min" if secs < 7200 else f"{secs / 3600:.1f} h"
