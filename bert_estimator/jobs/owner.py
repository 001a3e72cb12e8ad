"""The owner of a run in remote storage: the object `owner.json` stands for a lock.

It names the process that trains. Two processes that start in the same instant may both believe that
they own the run, until the first upload of one of them.
"""

import json
import secrets
from typing import Any

from bert_estimator.storage import remote
from bert_estimator.system import json_files, lock

FILE = "owner.json"


class Owner:
    """Tells who owns a run, and owns it for this process.

    Args:
      url: the remote directory.

    Attributes:
      is_this_process: whether this process has claimed the run, and not released it.
    """

    def __init__(self, url: str):
        self._directory, self._url = url, f"{url}/{FILE}"
        self._token = None

    @property
    def is_this_process(self) -> bool:
        return self._token is not None

    def claim(self, takes_over: bool) -> None:
        """Makes this process the owner.

        Args:
          takes_over: whether the run is taken over from a process that may not have ended.

        Raises:
          lock.InUseError: another process owns the run.
        """
        other = self.other()
        if other and not takes_over:
            raise lock.InUseError(
                f"{lock.refusal(self._directory, other)} If that process has ended, as after a "
                "crash of its machine, add --take_over."
            )
        self._token = secrets.token_hex(8)
        description = json_files.parse(lock.description_of_this_process(), FILE)
        text = json.dumps({**description, "token": self._token}, indent=1)
        remote.write(text.encode(), self._url)
        self.check()

    def other(self) -> dict[str, Any]:
        """Returns what owner.json says of another process, unless it is known to have ended.

        It is empty if there is no such process.
        """
        owner = self._read()
        if self.is_this_process and owner.get("token") == self._token:
            return {}
        return {} if lock.has_ended(owner) else owner

    def check(self) -> None:
        """Raises InUseError if this process claimed the run, and another one has taken it over."""
        if self.is_this_process and (owner := self._read()).get("token") != self._token:
            raise lock.InUseError(
                f"{self._directory} was taken over by {lock.named(owner)}: this process does not "
                "upload anything more."
            )

    def release(self) -> None:
        """Gives the run free if this process owns it."""
        if self.is_this_process:
            remote.remove(self._url)
            self._token = None

    def _read(self):
        data = remote.read(self._url)
        try:
            return json_files.parse(data or b"{}", self._url)
        except json_files.JsonError:
            return {"pid": "unknown"}
