"""The command line of a script: the value of each flag, and where it comes from."""

from typing import Any

from bert_estimator.command_line import config_file, flags, provenance
from bert_estimator.jobs.config import JobConfig
from bert_estimator.storage.mirror import Mirror
from bert_estimator.system import paths


def read_command_line(
    config_class: type[JobConfig], argv: list[str]
) -> tuple[dict[str, Any], dict[str, provenance.Source]]:
    """Parses a command line.

    Args:
      config_class: the `JobConfig` of the script.
      argv: the arguments, the script's name included.

    Returns:
      (dict of flag name -> value, dict of flag name -> `provenance.Source`). If --output_dir is
      remote, its value is the local copy, and there is the `Mirror` of the key `mirror`.

    Raises:
      FlagError: the command line cannot be parsed, see `flags.parse`; or a remote --output_dir
        cannot be read.
    """
    values = flags.define(config_class)
    given = flags.parse(values, argv)
    if path := values["config"].value:
        # Of a flag that is given twice the last value counts: the command line's, not the file's.
        values = flags.define(config_class)
        given = flags.parse(values, [argv[0], *config_file.arguments(path), *argv[1:]])
    settings = {name: values[name].value for name in values}
    sources = {name: provenance.FLAG if name in given else provenance.DEFAULT for name in settings}
    settings["init_checkpoint"] = settings["init_checkpoint"] or None  # empty: from scratch
    if settings["compile_only"] and sources["output_dir"] == provenance.DEFAULT:
        settings["output_dir"] += "_plan"  # The default directory is for a run.
    if not any(settings[name] for name in config_class.VERBS):
        # `--nodo_train` alone asks for an evaluation only.
        for name in ("do_train", "do_eval"):
            settings[name] = settings[name] is None
    for name in config_class.VERBS:
        settings[name] = bool(settings[name])
    if paths.is_remote(settings["output_dir"]):
        settings["mirror"] = _mirror(settings["output_dir"])
        settings["output_dir"] = settings["mirror"].path
    return settings, sources


def _mirror(url):
    """Returns the mirror of a remote --output_dir; FlagError if it cannot be used."""
    with flags.named(f"output_dir={url}"):
        paths.check_no_pattern(url)
    hosts = flags.find_hosts()
    with flags.named("output_dir"):
        return Mirror(url, hosts)
