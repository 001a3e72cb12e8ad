"""What pyproject.toml says of this project."""

import pathlib

try:
    import tomllib  # novm
except ImportError:  # Python 3.10
    import tomli as tomllib

_PATH = pathlib.Path(__file__).parents[2] / "pyproject.toml"


def read():
    """Returns its table `project` as a dict."""
    return tomllib.loads(_PATH.read_text(encoding="utf-8"))["project"]
