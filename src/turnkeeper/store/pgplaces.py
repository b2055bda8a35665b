"""Directories and lock files of the embedded PostgreSQL: private, found again, and gone with their holders."""

import fcntl
import os
import stat
from pathlib import Path

from turnkeeper.store.errors import DatabaseRefused


def try_lock(path: Path) -> int | None:
    """An open descriptor that holds the lock file `path` alone, or None if another one does. The kernel ends it with its holders."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


def make_private(directory: Path) -> None:
    """Create `directory` and its missing parents with mode 0700; what is there keeps its mode."""
    if not directory.is_dir():
        make_private(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)


def is_private(directory: Path) -> bool:
    """Whether it is a directory, no link, of our own, that nobody else can enter."""
    try:
        status = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def short_parent() -> Path:
    """Where a private directory with a short path can be made."""
    for candidate in (Path("/run/user") / str(os.geteuid()), Path("/run"), Path("/tmp")):  # noqa: S108 - mkdtemp makes it private
        if candidate.is_dir() and os.access(candidate, os.W_OK | os.X_OK):
            return candidate
    raise DatabaseRefused("no writable directory with a short path (/run, /tmp) for PostgreSQL's socket")


def fsync_directory(directory: Path) -> None:
    """Make the names in it durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
