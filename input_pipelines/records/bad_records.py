"""Records that are not what they should be: the end of a run, or left out and counted."""

import logging

import numpy as np

from input_pipelines.records.record_reader import RecordError

_log = logging.getLogger("tensorflow")


class BadRecords:
    """Counts and names the bad records that are left out.

    Args:
      most: the largest number of different records that may be left out; 0 leaves out none.

    Raises:
      ValueError: the number is negative.
    """

    def __init__(self, most: int = 0):
        if most < 0:
            raise ValueError(f"most is {most}; it must be 0 or more.")
        self._most = most
        self._numbers: set[int] = set()

    @property
    def may_skip(self) -> bool:
        """Whether any record may be left out."""
        return self._most > 0

    def numbers(self) -> np.ndarray:
        """Returns the numbers of the records that are left out, int64."""
        return np.array(sorted(self._numbers), np.int64)

    def skip(self, error: RecordError) -> bool:
        """Counts and logs a bad record; returns whether it may be left out.

        Args:
          error: what is wrong with the record; it has a number.
        """
        if len(self._numbers) >= self._most:
            if self.may_skip:
                _log.warning("There are more than %d bad records.", self._most)
            return False
        self._numbers.add(error.number)
        _log.warning("Bad record %d of at most %d: %s", len(self._numbers), self._most, error)
        return True
