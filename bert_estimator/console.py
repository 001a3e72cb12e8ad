"""What the scripts print: TensorFlow's logger with short lines, and without its chatter."""

import logging
import re

# Lines of TensorFlow that tell a user of a script nothing.
_CHATTER = re.compile(
    r"Graph was finalized|Running local_init_op|Done running local_init_op|"
    r"Calling checkpoint listeners|Create CheckpointSaverHook|Restoring parameters from"
)


def set_up(logger):
    """Makes a logger print its information as plain lines, and its warnings with their level."""
    logger.setLevel(logging.INFO)
    logger.propagate = False  # absl's handler would print every line again
    for handler in logger.handlers:
        handler.setFormatter(_Formatter())
    logger.addFilter(lambda record: not _CHATTER.search(str(record.msg)))


class _Formatter(logging.Formatter):
    def format(self, record):
        text = record.getMessage()
        return text if record.levelno == logging.INFO else f"{record.levelname}: {text}"
