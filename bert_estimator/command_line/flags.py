"""The flags the scripts share: their definitions and their checks. Does not import TensorFlow.

Names and meanings are google-research/bert's. A flag left out has the default given here, or the
one of the plan the script runs; `config.json` says which value came from where.
"""

import difflib
import glob
import os
import re

from absl import flags

from bert_estimator.choices import OPTIMIZERS

PRECISIONS = ("float32", "bfloat16")
BATCH_SIZES = ("train_batch_size", "eval_batch_size", "predict_batch_size")  # the last: classifier

_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}


class FlagError(ValueError):
    """A flag's value cannot work: the text names the flag, what is allowed, and what to do."""


def define(values, output_dir):
    """Defines the flags all scripts have in an `absl.flags.FlagValues`.

    Args:
      values: where to define them.
      output_dir: the script's default for --output_dir.
    """

    def string(name, default, text):
        flags.DEFINE_string(name, default, text, flag_values=values)

    def integer(name, default, text):
        flags.DEFINE_integer(name, default, text, flag_values=values)

    def boolean(name, default, text):
        flags.DEFINE_boolean(name, default, text, flag_values=values)

    string("output_dir", output_dir, "Where checkpoints, events, metrics and curves go.")
    string("bert_config_file", None, "The network: bert_config.json, or transformers' config.json.")
    string(
        "init_checkpoint",
        None,
        "Checkpoint whose weights training starts from: Google's or Hugging Face's; path without "
        ".index, directory, or zip archive.",
    )
    boolean(
        "allow_partial_init",
        False,
        "Variables that --init_checkpoint lacks start anew; others of it stay unused.",
    )
    boolean("do_train", None, "Train. With neither --do_train nor --do_eval, both are done.")
    boolean("do_eval", None, "Evaluate.")
    integer("train_batch_size", 32, "Examples in a global training batch.")
    integer(
        "eval_batch_size",
        8,
        "Examples in a global evaluation batch; by default one a core at least.",
    )
    flags.DEFINE_float("learning_rate", 5e-5, "Peak learning rate.", flag_values=values)
    integer("save_checkpoints_steps", 1000, "Steps between checkpoints.")
    integer("iterations_per_loop", 1000, "Steps between visits of hooks, checkpoints and logs.")
    boolean("use_tpu", False, "Run by the TPU's rules, on a TPU where there is one.")
    string("tpu_name", None, "local, gpu, rehearse:N; if unset, $TPU_NAME, or a TPU if found.")
    integer("num_tpu_cores", None, "Number of cores; those found by default.")
    integer("num_cores_per_replica", 1, "Cores that share one copy of the model, split over them.")
    string("precision", "float32", f"What the network computes in: {', '.join(PRECISIONS)}.")
    string("optimizer", None, f"One of {', '.join(OPTIMIZERS)}.")
    integer("micro_batch_size", None, "Most rows computed at a time within a step; all by default.")
    boolean(
        "recompute", False, "Compute each layer again for its gradient: less memory, more work."
    )
    boolean(
        "use_one_hot_embeddings",
        False,
        "Look embeddings up by a matrix product, as google-research/bert did on TPUs.",
    )
    integer("random_seed", 12345, "Seed of weights, dropout and the order of the data.")


def parse(values, argv):
    """Parses a command line. Returns the set of names of the flags given.

    Raises:
      FlagError: an unknown flag (the nearest is suggested), a value that cannot be parsed, or a
        positional argument.
    """
    try:
        rest = values(argv)
    except flags.UnrecognizedFlagError as error:
        near = difflib.get_close_matches(error.flagname, list(values), n=1, cutoff=0.0)
        raise FlagError(f"--{error.flagname}: no such flag; did you mean --{near[0]}?") from None
    except flags.IllegalFlagValueError as error:
        name, value = re.match(r"flag --(\w+)=(.*?): ", str(error), re.DOTALL).groups()
        check(False, name, value, f"must be {_KINDS[values[name].flag_type()]}")
    except flags.Error as error:
        raise FlagError(str(error)) from None
    if len(rest) > 1:
        raise FlagError(f"{rest[1]!r} is no flag: flags are written --name=value")
    return {name for name in values if values[name].present}


def check(ok, name, value, rule):
    """Raises FlagError unless `ok`."""
    if not ok:
        raise FlagError(f"--{name}={value}: {rule}")


def find_hosts():
    """Returns the `tpu.hosts.Hosts` that run the script together; a wrong TF_CONFIG is as a wrong
    flag."""
    from bert_estimator.tpu.program import hosts

    try:
        return hosts.find()
    except (TypeError, ValueError) as error:
        raise FlagError(str(error)) from None


def check_common(config):
    """Checks the values of the shared flags, given as attributes of a configuration."""
    for name in (*BATCH_SIZES, "save_checkpoints_steps", "iterations_per_loop"):
        check(getattr(config, name, 1) > 0, name, getattr(config, name, 1), "must be positive")
    for name in ("micro_batch_size", "num_tpu_cores", "num_cores_per_replica"):
        value = getattr(config, name)
        check(value is None or value > 0, name, value, "must be positive")
    rate = config.learning_rate
    check(0 < rate < float("inf"), "learning_rate", rate, "must be a positive number")
    check_choice("precision", config.precision, PRECISIONS)
    check_choice("optimizer", config.optimizer, OPTIMIZERS)
    seed = config.random_seed
    check(0 <= seed < 2**31, "random_seed", seed, "must be from 0 to 2147483647")
    if config.use_tpu and config.num_tpu_cores:
        cores, per_replica = config.num_tpu_cores, config.num_cores_per_replica
        check(
            cores % per_replica == 0,
            "num_cores_per_replica",
            per_replica,
            f"must divide --num_tpu_cores={cores}",
        )
        source = f"--num_tpu_cores={cores}"
        if per_replica > 1:
            source += f" over --num_cores_per_replica={per_replica}"
        check_divides(config, cores // per_replica, source, fixed_batches(config))
    elif not config.tpu_name:  # its cores, and their shares of a batch, are found later
        check_divides(config, 1, "1 core", ())
    check_file("bert_config_file", config.bert_config_file)
    if config.init_checkpoint and not _is_remote(config.init_checkpoint):
        check(
            os.path.exists(config.init_checkpoint + ".index")
            or os.path.exists(config.init_checkpoint),
            "init_checkpoint",
            config.init_checkpoint,
            "there is no such checkpoint. Give the path without .index or .data, such as "
            "uncased_L-12_H-768_A-12/bert_model.ckpt, a directory, or a zip archive",
        )
    if config.tpu_name:
        check(
            config.use_tpu,
            "tpu_name",
            config.tpu_name,
            "names a TPU, but --use_tpu is not given; add it",
        )


def fixed_batches(config):
    """Returns the names of the batch sizes that must divide by the cores as they are: that of
    training, which the numbers depend on, and those given. See `whole_batches` for the others."""
    others = (name for name in BATCH_SIZES[1:] if config.sources.get(name) == "flag")
    return (*BATCH_SIZES[:1], *others) if config.do_train else tuple(others)


def whole_batches(config, cores):
    """Returns the batch sizes of evaluation and prediction that no flag gives, as a dict: the least
    multiple of the cores that is not below the default."""
    return {
        name: -(-getattr(config, name) // cores) * cores
        for name in BATCH_SIZES[1:]
        if hasattr(config, name) and config.sources.get(name) != "flag"
    }


def check_divides(config, cores, source, batches):
    """Checks that batches divide by cores, and a core's batch by the rows of a micro-batch.

    Args:
      cores: how many there are; `source` says where from.
      batches: names of the flags to check.
    """
    for name in batches:
        value = getattr(config, name, cores)
        check(value % cores == 0, name, value, f"must be a multiple of {source}")
    batch, micro = config.train_batch_size // cores, config.micro_batch_size
    if micro is not None and config.do_train:
        of_batch = f"--train_batch_size={config.train_batch_size}"
        if cores > 1:
            of_batch = f"{batch}, a core's share of {of_batch}"
        fits = micro >= batch or batch % micro == 0
        check(fits, "micro_batch_size", micro, f"must divide {of_batch}, or not be less")


def check_choice(name, value, choices):
    """Raises FlagError unless the value is one of the choices; suggests the nearest."""
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise FlagError(f"--{name}={value}: must be one of {', '.join(choices)}{hint}")


def check_file(name, path):
    """Raises FlagError unless the path is None, remote, or a file."""
    if path is not None and not _is_remote(path):
        check(os.path.isfile(path), name, path, "there is no such file")


def check_patterns(name, patterns):
    """Raises FlagError unless each of the comma-separated patterns is remote or matches a file."""
    for pattern in patterns.split(",") if patterns is not None else ():
        found = _is_remote(pattern) or any(os.path.isfile(path) for path in glob.glob(pattern))
        check(found, name, patterns, f"no file matches {pattern!r}; give record files or patterns")


def check_writable_directory(name, path):
    """Makes the directory, and raises FlagError where nothing can be written into it."""
    rule = "must be a directory of this machine; a bucket can be mounted as one (gcsfuse)"
    check(not _is_remote(path), name, path, rule)
    try:
        os.makedirs(path, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise FlagError(
            f"--{name}={path}: is a file, or below one; choose another directory"
        ) from None
    except OSError as error:
        raise FlagError(f"--{name}={path}: cannot be made: {error.strerror}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise FlagError(f"--{name}={path}: is not writable by this user; choose another directory")


def _is_remote(path):
    return re.match(r"[a-z0-9]+://", path) is not None
