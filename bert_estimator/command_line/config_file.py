"""--config: the flags of a file, which may be the config.json of a run that is to be repeated."""

from typing import Any

from bert_estimator.command_line import provenance
from bert_estimator.command_line.flags import FlagError
from bert_estimator.storage import remote
from bert_estimator.system import disk_files, json_files

# Not taken from a run's config.json: the repeated run is a run of its own.
_OF_ONE_RUN = ("output_dir",)


def arguments(path: str) -> list[str]:
    """Returns the flags of a file, as arguments of a command line.

    Args:
      path: a JSON file (YAML, if the name ends in .yaml or .yml) with an object of flag name ->
        value; null leaves a flag out. Of the config.json of a run, the flags that the run's command
        line gave are taken, without --output_dir.

    Raises:
      FlagError: the file is not there, or does not hold flags.
    """
    try:
        values = _read(path)
        if "flags" in values:
            values = _of_run(values, path)
        return [f"--{name}={_text(value, f'{path}: {name}')}" for name, value in values.items()]
    except (OSError, json_files.JsonError) as error:
        reason = f"{path}: {error.strerror}" if isinstance(error, OSError) else error
        raise FlagError(f"--config: {reason}") from None


def _read(path):
    if not path.endswith((".yaml", ".yml")):
        return _without_nulls(remote.read_json(path))
    try:
        import yaml
    except ImportError:
        raise FlagError(
            f"--config={path}: YAML needs a package: pip install pyyaml; or write JSON"
        ) from None
    with remote.explaining(path), disk_files.reading(remote.local(path)) as reader:
        try:
            values = yaml.load(reader, _yaml_loader(yaml))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise json_files.JsonError(f"{path}: is not YAML: {error}") from None
    return _without_nulls(json_files.check(values, dict, path))


def _yaml_loader(yaml):
    """Returns PyYAML's safe loader, but a key that occurs twice is an error, as in JSON."""

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):
            keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            for number, key in enumerate(keys):
                if key.value in (before.value for before in keys[:number]):
                    raise yaml.YAMLError(f"the key {key.value} occurs twice{key.start_mark}")
            return super().construct_mapping(node, deep)

    return Loader


def _without_nulls(values):
    return {name: value for name, value in values.items() if value is not None}


def _of_run(config, path) -> dict[str, Any]:
    """Returns the flags that the command line of a run gave, by its config.json."""
    given = {}
    for name, entry in json_files.field(config, "flags", dict, path).items():
        json_files.check(entry, dict, f"{path}: flags: {name}")
        if entry.get("from") == str(provenance.FLAG) and name not in _OF_ONE_RUN:
            # An empty flag overrides a recipe or a default; config.json has null for it.
            value = entry.get("value")
            given[name] = "" if value is None else value
    return given


def _text(value, what):
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float):
        raise json_files.JsonError(f"{what}: must be a string, a number, true or false")
    return str(value)
