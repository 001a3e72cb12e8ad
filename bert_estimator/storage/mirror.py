"""A run in remote storage: a local copy of its directory, which is uploaded as the run goes on.

`--output_dir=gs://bucket/run` is written in a directory of this machine, below $TMPDIR. A mirror
copies what the remote directory holds to it when a command starts. After each checkpoint, and when
the command ends, it uploads what has changed.

Why a mirror: the promises of a run's directory rest on locks, renames and `fsync`. Object stores
have none of them. So everything that writes a run stays as it is, on a file system that keeps these
promises; only this module knows of the other storage. What holds there is the order of uploads. An
object is there as a whole or not at all, and is uploaded before the objects that refer to it:

1. config.json, which tells that the directory is a run's; then what else a resumed run reads
   beside a checkpoint, and what it can cut to the checkpoint's step: the network, the vocabulary,
   metrics.jsonl, rollbacks.json, events.
2. The best checkpoint and then `best/best.json`. A resumed run forgets the evaluations of later
   steps, but it would not repeat the evaluations of steps before its checkpoint.
3. A checkpoint's data, and then its index, by which a resumed run finds it.
4. Only then are files removed that are gone here, such as old checkpoints, and the state file
   `checkpoint` is uploaded last: a resumed run would never remove a checkpoint that it lacks.

So after a kill at any instant the remote directory holds what a local directory may hold after a
kill.
"""

import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from typing import Any

from bert_estimator.cluster import hosts
from bert_estimator.storage import remote
from bert_estimator.storage.staging import LocalFolder
from bert_estimator.system import json_files, lock
from bert_estimator.system.termination import Termination

FILE = "owner.json"

_logger = logging.getLogger("tensorflow")


class Owner:
    """Tells who owns a run, and owns it for this process from `claim` to `release`."""

    def __init__(self, url: str):
        self._directory, self._url = url, f"{url}/{FILE}"
        self._token = None

    @property
    def is_this_process(self) -> bool:
        return self._token is not None

    def claim(self, takes_over: bool) -> None:
        """Makes this process the owner, also of a run that it takes over from another one."""
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
        # Of two processes that claim the run at once, the token of only one is there in the end.
        self.check()

    def other(self) -> dict[str, Any]:
        """Returns what owner.json says of another process; {} if there is no such process, or if it
        is known to have ended."""
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
            # A damaged file says that there is an owner, whoever it is.
            return {"pid": "unknown"}


# They are only written by a run; nothing of them is read when it is resumed.
_NOT_COPIED = re.compile(rf"{re.escape(FILE)}|(.*/)?events\.out\.tfevents[^/]*|(.*/)?export/.*")
_NOT_UPLOADED = re.compile(r"(.*/)?(\.[^/]*lock|[^/]*\.tmp)|(.*/)?temp-[^/]*/.*")
_CHECKPOINT = re.compile(r"model\.ckpt-\d+\.(.*)")
# What an evaluation or a prediction writes as a whole, and nothing reads when a run is resumed.
RESULTS = re.compile(
    r"(.*/)?(eval_results\.txt|eval_report[^/]*|test_results[^/]*|(nbest_)?predictions\.json"
    r"|null_odds\.json)"
)
_UPLOADING = "uploading what there is before the command ends"
_RANK_OF_REMOVALS = 7  # see `_rank`
# After so many uploads in a row that failed, training ends.
_MOST_FAILURES = 3
# What another process writes meanwhile is listed at most so often, until nothing has changed.
_MOST_LISTINGS = 5


class Mirror:
    """Keeps a local copy, `path`, of a remote directory, and uploads what is written in it."""

    def __init__(self, url: str, host: hosts.Hosts | None = None):
        self.url = url.rstrip("/")
        self._local = LocalFolder(self.url)
        self.path = self._local.run
        remote.show(self.path, self.url)
        self._uploaded: dict[str, tuple[int, int, int]] = {}  # name -> `_signature` of the file
        self._remote: dict[str, tuple[int, int]] = {}  # name -> size and time there
        self._host, self._owner = host or hosts.find(), Owner(self.url)
        self._thread, self._error, self._num_failures = None, None, 0
        self._is_agreed = self._host.number == 1  # on what the remote directory holds
        remote.check(self.url)  # A wrong name is reported at once: this is tried only once.
        self._download()

    def _download(self):
        """Copies what the remote directory holds; removes here what it does not hold any more."""
        os.makedirs(self.path, exist_ok=True)
        # While another process owns the run, files may come and go between listing and copying.
        for _ in range(_MOST_LISTINGS):
            listed = remote.files(self.url)
            is_written = FILE in listed and not self._owner.is_this_process
            listed = {n: stat for n, stat in listed.items() if not _NOT_COPIED.fullmatch(n)}
            changed = [name for name, stat in listed.items() if self._remote.get(name) != stat]
            gone = set(self._remote) - set(listed)
            self._copy({name: listed[name] for name in sorted(changed, key=_rank)})
            for name in gone:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(os.path.join(self.path, name))
                del self._remote[name]
                self._uploaded.pop(name, None)
            if not is_written or not (changed or gone):
                return

    def _copy(self, stats):
        """Copies files, which are given with what the listing says of each."""
        if stats:
            megabytes = sum(size for size, _ in stats.values()) / 1e6
            _logger.info("Copying %d files (%.0f MB) from %s.", len(stats), megabytes, self.url)
        for name, stat in stats.items():
            path = os.path.join(self.path, name)
            try:
                remote.download(f"{self.url}/{name}", path)
            except remote.StorageError:
                if remote.check(f"{self.url}/{name}"):
                    raise
                continue  # The process that trains there meanwhile has removed it.
            self._uploaded[name], self._remote[name] = _signature(path), stat

    @contextlib.contextmanager
    def followed(self, owns: bool, takes_over: bool) -> Iterator[None]:
        """Uploads at the end of the `with` block what the block has written, also after an
        exception or SIGTERM; `owns` says that it trains, so that no other process may meanwhile."""
        with Termination() as termination:
            # A block that does not train may take over, too: otherwise its files would be left out.
            if self._host.is_chief and (owns or (takes_over and self._owner.other())):
                self._claim(takes_over)
            try:
                yield
            except (Exception, KeyboardInterrupt, SystemExit):
                try:
                    with termination.postponed(_UPLOADING):
                        self._finish()
                except Exception as another:  # The first error is the one to raise.
                    _logger.warning("%s", str(another))
                raise
            with termination.postponed(_UPLOADING):
                self._finish()
            termination.raise_if_it_came()

    def _claim(self, takes_over):
        self._owner.claim(takes_over)
        try:
            self._download()  # The owner before may have uploaded more since this command began.
        except (Exception, KeyboardInterrupt, SystemExit):
            with contextlib.suppress(remote.StorageError):
                self._owner.release()
            raise

    def agree(self) -> None:
        """Gives all hosts the same copy, in its first call; each host calls this after they met."""
        # The chief copies anew once it has claimed the run, and so may have later files than the
        # others, which began before. Without a claim, another process may train there meanwhile.
        for _ in range(0 if self._is_agreed else _MOST_LISTINGS):
            digest = zlib.crc32(repr(sorted(self._remote.items())).encode()) >> 1
            if len({*hosts.gather(digest).tolist()}) == 1:
                break
            self._download()
        self._is_agreed = True

    def upload(self) -> None:
        """Uploads in a thread what has changed; waits first until the last upload has ended."""
        self.wait()
        # The snapshot is made while training waits, so that it is of one instant.
        snapshot = self._snapshot()
        self._thread = threading.Thread(
            target=self._run, args=(snapshot,), name="storage", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Waits until the last upload has ended, and raises its error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error

    def share(self) -> None:
        """Gives all hosts what the chief has written; each host calls this."""
        if self._host.number == 1:
            return
        if self._host.is_chief:
            self.wait()
            self._upload(*self._snapshot())  # If it fails, the others must not go on without it.
        hosts.gather(0)
        if not self._host.is_chief:
            self._download()

    def _run(self, snapshot):
        try:
            self._upload(*snapshot)
            self._num_failures = 0
        except remote.StorageError as error:
            # Training goes on if the store does not answer for a while.
            self._num_failures += 1
            if self._num_failures >= _MOST_FAILURES:
                self._error = error
            else:
                _logger.warning(
                    "%s. The next checkpoint is uploaded with what is missing now.", error
                )
        except BaseException as error:  # `wait` raises it in the thread of the training.
            self._error = error

    def _snapshot(self):
        """Returns (directory, name -> signature of each file in it, names to remove)."""
        folder = tempfile.mkdtemp(dir=self._local.path, prefix="upload_")
        changed, names = {}, set()
        for parent, _, files in os.walk(self.path):
            for name in files:
                path = os.path.join(parent, name)
                name = os.path.relpath(path, self.path)
                if _NOT_UPLOADED.fullmatch(name) or not self._is_own(name):
                    continue
                names.add(name)
                signature = _signature(path)
                if self._uploaded.get(name) != signature:
                    copy = os.path.join(folder, name)
                    os.makedirs(os.path.dirname(copy), exist_ok=True)
                    # Big files are linked, since they are never changed in place; small ones are
                    # copied.
                    is_of_checkpoint = _CHECKPOINT.fullmatch(os.path.basename(name))
                    (os.link if is_of_checkpoint else shutil.copyfile)(path, copy)
                    changed[name] = signature
        gone = [name for name in self._uploaded if name not in names and self._is_own(name)]
        return folder, changed, gone

    def _is_own(self, name):
        """Returns whether this host writes a file. Each but the chief has a directory."""
        return self._host.is_chief or f"host-{self._host.index}" in name.split("/")

    def _upload(self, folder, changed, gone):
        """Uploads the files of a snapshot, and removes the files that are gone."""
        start, num_bytes = time.perf_counter(), 0
        try:
            ranked = [(_rank(name), name) for name in changed]
            ranked += [(_RANK_OF_REMOVALS, name) for name in gone]
            for rank, name in sorted(ranked):
                # Before every file, so that a process whose run was taken over stops.
                self._owner.check()
                if rank == _RANK_OF_REMOVALS:
                    remote.remove(f"{self.url}/{name}")
                    del self._uploaded[name]
                    continue
                path = os.path.join(folder, name)
                remote.upload(path, f"{self.url}/{name}")
                num_bytes += os.path.getsize(path)
                self._uploaded[name] = changed[name]
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if changed:
            secs = time.perf_counter() - start
            _logger.info("Uploaded %.1f MB to %s (%.1f s).", num_bytes / 1e6, self.url, secs)

    def _finish(self):
        """Uploads what is left, gives the run free, and removes the local directory."""
        advice = "Copy it to the remote directory, the file checkpoint last, before the run resumes"
        try:
            self._upload_rest()
        # The process that took the run over has written it since: nothing here is to be copied by
        # hand.
        except lock.InUseError:
            raise
        except remote.StorageError as error:
            raise remote.StorageError(f"{error}. {self._local.keep()}. {advice}") from None
        except (Exception, KeyboardInterrupt, SystemExit):
            _logger.warning("%s. %s.", self._local.keep(), advice)
            raise
        self._local.remove()

    def _upload_rest(self):
        # What an upload before has left out is in this snapshot, too.
        with contextlib.suppress(remote.StorageError):
            self.wait()
        folder, changed, gone = self._snapshot()
        anothers = {}
        if self._host.is_chief and not self._owner.is_this_process:
            anothers = self._anothers({*changed, *gone})
        self._owner.check()
        self._upload(
            folder,
            {name: signature for name, signature in changed.items() if name not in anothers},
            [name for name in gone if name not in anothers],
        )
        self._owner.release()
        for reason in dict.fromkeys(anothers.values()):
            if names := sorted(name for name in changed if anothers.get(name) == reason):
                listed = ", ".join(names)
                _logger.warning("%s: stays in %s as it is. %s", listed, self.url, reason)
        if left_out := set(changed) & set(anothers):
            _logger.warning("%s.", self._local.keep(left_out))

    def _anothers(self, names):
        """Returns file -> reason, a sentence, of the files that are left to another process."""
        other, stats = self._owner.other(), remote.files(self.url)
        anothers = {}
        for name in names & set(stats):
            # What the owner writes is more than this command has read of it, but the owner does not
            # need the results of this command.
            if other and not RESULTS.fullmatch(name):
                anothers[name] = (
                    f"{FILE} names {lock.named(other)} as the owner of the run. If that "
                    "process has ended, add --take_over."
                )
            elif stats[name] != self._remote.get(name):
                anothers[name] = "Another process has written there since this command began."
        return anothers


def _rank(name):
    """Returns the place of a file in the order of uploads; see the head of this module."""
    *folders, base = name.split("/")
    match = _CHECKPOINT.fullmatch(base)
    if base == "saved_model.pb":
        return 9
    if base == "checkpoint" and "best" not in folders:
        return 8
    if base == "best.json":
        return 4
    if "best" in folders:
        return 3 if match and match[1] == "index" else 2
    if match:
        return 6 if match[1] == "index" else 5
    return 0 if base == "config.json" else 1


def _signature(path):
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns, stat.st_ino
