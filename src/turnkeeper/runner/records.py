"""What a host remembers of its children across its own restarts (protocol.md section 2, "Host").

One small file per attempt, written before the hand-over. A child is known by pid *and* start time, within one boot of the
machine. The files are not fsynced: after a power cut no child lives any more, and what is not reported is left to the
lease.
"""

import contextlib
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from turnkeeper.domain.errors import SettingRefused
from turnkeeper.kit import failpoint
from turnkeeper.kit.failpoint import Point
from turnkeeper.kit.files import NotRegularError, TooLargeError, read_bounded
from turnkeeper.kit.log import get_logger
from turnkeeper.kit.procs import ProcessId, boot_id, is_alive
from turnkeeper.wire.base import Answer, Id
from turnkeeper.wire.host import GoneChild
from turnkeeper.wire.worker import Claim

_RECORD_BYTES_MAX = 64 << 10
_RECORD_BYTES_USUAL = 512


class ChildRecord(Answer):
    """One child and the attempt that it was given. `machine_boot` is the kernel's boot id. No token is in here."""

    pid: int
    start_ticks: int
    machine_boot: str
    incarnation: Id
    job: Id
    attempt: Id
    lease_generation: int
    root_run_id: Id

    @classmethod
    def of(cls, process: ProcessId, claim: Claim, incarnation: str) -> "ChildRecord":
        """The record of `process`, which is about to be given `claim`."""
        return cls(
            pid=process.pid,
            start_ticks=process.start_ticks,
            machine_boot=boot_id(),
            incarnation=incarnation,
            job=claim.job,
            attempt=claim.attempt,
            lease_generation=claim.lease_generation,
            root_run_id=claim.root_run_id,
        )

    @property
    def process(self) -> ProcessId:
        """The child's identity, within `machine_boot`."""
        return ProcessId(self.pid, self.start_ticks)

    @property
    def alive(self) -> bool:
        """Whether exactly this process still runs."""
        return self.machine_boot == boot_id() and is_alive(self.process)

    @property
    def gone(self) -> GoneChild:
        """As it is reported once it is gone."""
        return GoneChild(job=self.job, attempt=self.attempt, lease_generation=self.lease_generation)


@dataclass(frozen=True)
class StateLock:
    """Held for as long as the process lives: one host of a name at a time."""

    fd: int

    def release(self) -> None:
        """Let another host of this name start."""
        os.close(self.fd)


class ChildRecords:
    """The directory of records of one host."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self.directory = state / "children"

    def open(self) -> StateLock:
        """Make the directory and take its lock; `SettingRefused` where that cannot be done or another host has it."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self._state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise SettingRefused(
                f"the host's state directory {self._state} cannot be used: {error.strerror}"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise SettingRefused(
                f"a host called {self._state.name!r} already runs here; give this one another name"
            ) from None
        return StateLock(fd)

    def write(self, record: ChildRecord) -> None:
        """Remember a child. Replaced in one step, so that a reader never finds half a record."""
        failpoint.before(Point.EFFECT_CHILD_RECORD)
        self._put(self._path(record.attempt), record.model_dump_json().encode())
        failpoint.after(Point.EFFECT_CHILD_RECORD)

    def check(self) -> None:
        """Whether a record could be written now: one of usual size is, and removed. A directory that is gone is made anew.

        `OSError` where that cannot be done.
        """
        path = self.directory / "check"
        try:
            self._put(path, bytes(_RECORD_BYTES_USUAL))
        except FileNotFoundError:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._put(path, bytes(_RECORD_BYTES_USUAL))
        path.unlink(missing_ok=True)

    def remove(self, attempt: str) -> None:
        """Forget a child whose end is known where it has to be. One that cannot be is reported gone once more, which is heard
        as often as it is said."""
        try:
            self._path(attempt).unlink(missing_ok=True)
        except NotADirectoryError:
            return  # somebody has put a file in the directory's place: there are no records
        except OSError as error:
            get_logger("runner.host").warning(
                "child_record_not_removed", attempt=attempt, exception=type(error).__name__
            )

    def read_all(self) -> list[ChildRecord]:
        """Every record. One that cannot be read is logged and removed: its attempt is left to the lease."""
        records: list[ChildRecord] = []
        for path in sorted(self.directory.glob("*.json")):
            try:
                records.append(ChildRecord.model_validate_json(read_bounded(path, _RECORD_BYTES_MAX)))
            except (ValidationError, NotRegularError, TooLargeError):
                get_logger("runner.host").warning("child_record_unreadable", file=path.name)
                path.unlink(missing_ok=True)
        return records

    def _put(self, path: Path, content: bytes) -> None:
        temporary = path.with_suffix(".new")
        try:
            temporary.write_bytes(content)
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)  # on a full disk it would hold a little of what is missing
            raise

    def _path(self, attempt: str) -> Path:
        return self.directory / f"{attempt}.json"
