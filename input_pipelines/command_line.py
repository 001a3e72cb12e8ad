"""What the commands that make data share: from arguments to an exit code."""

import sys
from collections.abc import Callable

from absl import flags

from bert_estimator.tpu import lock

_OF_A_PATH = (FileNotFoundError, IsADirectoryError, PermissionError)


def exit_code(name: str, create: Callable[[flags.FlagValues], str], argv: list[str]) -> int:
    """Runs a command and prints its summary, or on stderr what ended it.

    Args:
      name: the command's, for the message.
      create: does what the flags say; returns a summary in words.
      argv: the program's name, then its arguments.

    Returns:
      0; 2 for flags or files that cannot work, which are a ValueError or an error of a path, or if
      another process writes the same files; 1 for any other error of the system.
    """
    try:
        rest = flags.FLAGS(argv)[1:]
        if rest:
            raise ValueError(f"unknown arguments: {' '.join(rest)}; flags are --name=value")
        print(create(flags.FLAGS))
    except (flags.Error, ValueError, OSError, lock.InUseError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1 if isinstance(error, OSError) and not isinstance(error, _OF_A_PATH) else 2
    return 0
