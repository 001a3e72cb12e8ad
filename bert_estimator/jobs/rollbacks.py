"""Rollbacks: after a loss or a weight that is not finite, training goes on without some batches.

Training goes back to the newest checkpoint, and skips the batches from there to the failing step.
`rollbacks.json` lists the rollbacks of a run. So a resumed training skips the same batches, and a
rollback counts once, whatever was killed.
"""

import json
import os

from bert_estimator.command_line.flags import FlagError
from bert_estimator.system import disk_files, json_files

_FILE = "rollbacks.json"


class Rollbacks:
    """Keeps the rollbacks of a run.

    Args:
      output_dir: the directory of the run.
      most: how many rollbacks the run may have in total.

    Attributes:
      skipped: list of (step, number): from the batch of this global step on, training reads the
        batches so many places later. The numbers of several entries add up.

    Raises:
      FlagError: rollbacks.json cannot be read.
    """

    def __init__(self, output_dir: str, most: int):
        self._path, self._most = os.path.join(output_dir, _FILE), most
        self.skipped = self._read()

    def begin(self) -> None:
        """Forgets rollbacks of an earlier attempt, for a training that starts from scratch."""
        if self.skipped:
            self.skipped = []
            self._write()

    def add(self, checkpoint_step: int, failed_step: int) -> bool:
        """Notes a rollback, if the run may have another one.

        Args:
          checkpoint_step: the global step to go back to.
          failed_step: the global step whose loss or weights are not finite.

        Returns:
          Whether training may go on.
        """
        if len(self.skipped) >= self._most or failed_step <= checkpoint_step:
            return False
        self.skipped.append((checkpoint_step, failed_step - checkpoint_step))
        self._write()
        return True

    def _read(self):
        if not os.path.exists(self._path):
            return []
        try:
            entries = json_files.field(json_files.read(self._path), "rollbacks", list, self._path)
            return [
                tuple(json_files.field(e, name, int, self._path) for name in ("step", "skipped"))
                for e in json_files.items(entries, dict, f"{self._path}: rollbacks")
            ]
        except (ValueError, OSError) as error:
            raise FlagError(
                f"--output_dir: {self._path} cannot be read ({error}). It says which batches the "
                "run has skipped: put back a copy, or use another directory"
            ) from None

    def _write(self):
        entries = [{"step": step, "skipped": number} for step, number in self.skipped]
        with disk_files.writer(self._path) as writer:
            json.dump({"rollbacks": entries}, writer, indent=1)
