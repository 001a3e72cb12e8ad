"""What the scripts print: TensorFlow's logger with short lines, and what ended a script."""

import logging
import re
import sys

from bert_estimator.flags import FlagError

# Lines of TensorFlow that tell a user of a script nothing.
_CHATTER = re.compile(
    r"Graph was finalized|Running local_init_op|Done running local_init_op|"
    r"Calling checkpoint listeners|Create CheckpointSaverHook|Restoring parameters from"
)

# Exceptions whose message says what is wrong, where, and what to do: no traceback is needed. By
# name, since an exception of an input_fn that went through TensorFlow is only its text.
_SELF_EXPLAINING = ("RecordError", "NanLossDuringTrainingError", "NonFiniteWeightsError")


def set_up(logger):
    """Makes a logger print its information as plain lines, and its warnings with their level."""
    logger.setLevel(logging.INFO)
    logger.propagate = False  # absl's handler would print every line again
    if not logger.handlers:  # TensorFlow adds none where the root logger has some
        logger.addHandler(logging.StreamHandler())
    for handler in logger.handlers:
        handler.setFormatter(_Formatter())
    logger.addFilter(_is_news)


def exit_code(script, body):
    """Runs a script's body and says on stderr what ended it.

    Args:
      script: the script's name, for the message.
      body: function without arguments.

    Returns:
      0 if the body ran to its end; 2 for a `FlagError`; 130 after Ctrl-C; 1 for a failure that its
      message explains.

    Raises:
      whatever else the body raised: the traceback is the explanation, and Python exits with 1.
    """
    try:
        body()
    except FlagError as error:
        print(f"{script}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            f"{script}: stopped. The same command goes on from the last checkpoint.",
            file=sys.stderr,
        )
        return 130
    except Exception as error:
        message = _explanation(error)
        if message is None:
            raise
        print(f"{script}: error: {message}", file=sys.stderr)
        return 1
    return 0


def _explanation(error):
    """Returns the message of a self-explaining exception, else None."""
    if type(error).__name__ in _SELF_EXPLAINING:
        return str(error.args[0])  # TensorFlow's NaN error has a str() of its own
    carried = re.search(rf"\b(?:{'|'.join(_SELF_EXPLAINING)}): (.+)", str(error))
    return carried[1] if carried else None


def _is_news(record):
    return not _CHATTER.search(str(record.msg))


class _Formatter(logging.Formatter):
    def format(self, record):
        text = record.getMessage()
        return text if record.levelno == logging.INFO else f"{record.levelname}: {text}"
