"""What was begun and settled, on disk: the only witness of a native session once its process or sandbox is gone (R-07).

`<HOME>/.turnkeeper/journal` holds one line per fact: `begun N ACTIVATION SESSION` before the prompt's first byte is
written, `settled N ACTIVATION SESSION` when its response came, `withdrawn N ACTIVATION SESSION` where the turn was ended
between the two and the prompt was never written; each fsynced before anything goes on. SESSION is a JSON string.

The agent owns the HOME, so every component is opened without following links, only a regular file of at most 1 MiB counts,
and a line of any other form makes it no journal; an agent that forges its own harms its own conversation.
"""

import contextlib
import errno
import json
import os
import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from turnkeeper.domain.admission import Journal, JournalUnknown
from turnkeeper.kit import failpoint, files
from turnkeeper.kit.failpoint import Point

JOURNAL_BYTES_MAX: Final = 1024 * 1024
_COMPACT_BYTES: Final = 512 * 1024
_FOLDER: Final = ".turnkeeper"
_NAME: Final = "journal"
_LINE: Final = re.compile(rb"(begun|settled|withdrawn) ([1-9][0-9]{0,17}) ([0-9a-f-]{36}) (\".{0,8000}\")")
_MISSING: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EISDIR})


@dataclass(frozen=True)
class Entry:
    """One line."""

    fact: str
    turn: int
    activation: str
    native_session: str

    def line(self) -> bytes:
        """As it is written."""
        return f"{self.fact} {self.turn} {self.activation} {json.dumps(self.native_session)}\n".encode("ascii")


class JournalWriteError(Exception):
    """The fact could not be made durable, so nothing that depends on it may happen."""


class SessionJournal:
    """The journal of one HOME. Every call does file I/O and blocks."""

    def __init__(self, workspace: str, home: str) -> None:
        """`home` is absolute and lies below `workspace`; `files.UnsafePathError` otherwise."""
        self._workspace = workspace
        self._relative = relative_to(workspace, home)

    def read(self) -> Journal | JournalUnknown | None:
        """The last turn begun and the last one settled; None where there is no journal, whatever is in its place."""
        try:
            with self._folder(create=False) as folder:
                data = files.read_bounded(_NAME, JOURNAL_BYTES_MAX, dir_fd=folder)
        except (files.NotRegularError, files.TooLargeError, files.UnsafePathError):
            return None
        except OSError as error:
            return None if error.errno in _MISSING else JournalUnknown(os.strerror(error.errno or 0))
        return parse(data)

    def begun(self, turn: int, activation: str, native_session: str) -> None:
        """Make durable that turn `turn` is about to reach the agent; JournalWriteError."""
        failpoint.before(Point.EFFECT_BEGUN)
        self._append(Entry("begun", turn, activation, native_session))
        failpoint.after(Point.EFFECT_BEGUN)

    def settled(self, turn: int, activation: str, native_session: str) -> None:
        """Make durable that turn `turn` got its response; JournalWriteError."""
        failpoint.before(Point.EFFECT_SETTLED)
        self._append(Entry("settled", turn, activation, native_session))
        failpoint.after(Point.EFFECT_SETTLED)

    def withdrawn(self, turn: int, activation: str, native_session: str) -> None:
        """Make durable that turn `turn` was begun and its prompt never written; JournalWriteError."""
        self._append(Entry("withdrawn", turn, activation, native_session))

    def _append(self, entry: Entry) -> None:
        try:
            with self._folder(create=True) as folder:
                fd = self._open(folder)
                try:
                    is_new = self._repair(fd) == 0
                    write_all(fd, entry.line())
                    os.fsync(fd)
                finally:
                    os.close(fd)
            if is_new:
                self._sync_folders()
        except OSError as error:
            raise JournalWriteError(f"the journal cannot be written: {os.strerror(error.errno or 0)}") from error

    @staticmethod
    def _open(folder: int) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(_NAME, flags, 0o600, dir_fd=folder)
        try:
            files.read_regular(fd, JOURNAL_BYTES_MAX, _NAME)
        except BaseException:
            os.close(fd)
            raise
        return fd

    @staticmethod
    def _repair(fd: int) -> int:
        """Drop a torn last line, which says nothing, and the old ones of a long journal, of which only the last count.

        Returns how many bytes there are now.
        """
        data = files.read_regular(fd, JOURNAL_BYTES_MAX, _NAME)
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) > _COMPACT_BYTES:
            # Cut at the front in one write over the file: torn by a crash it is no journal, and the session is lost, not wrong.
            whole = b"".join(whole.splitlines(keepends=True)[-4:])
            os.ftruncate(fd, 0)
            write_all(fd, whole)
        elif len(whole) < len(data):
            os.ftruncate(fd, len(whole))
        return len(whole)

    def _sync_folders(self) -> None:
        """Make the names durable by which a new journal is found, from the workspace down."""
        parts = [*self._relative.split("/"), _FOLDER]
        root = os.open(self._workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(root)
            for depth in range(1, len(parts) + 1):
                folder = _open_folder(root, "/".join(parts[:depth]))
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
        finally:
            os.close(root)

    @contextlib.contextmanager
    def _folder(self, *, create: bool) -> Generator[int]:
        root = os.open(self._workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            relative = f"{self._relative}/{_FOLDER}"
            open_folder = files.make_dirs_beneath if create else _open_folder
            folder = open_folder(root, relative)
        finally:
            os.close(root)
        try:
            yield folder
        finally:
            os.close(folder)


def _open_folder(root: int, relative: str) -> int:
    return files.open_beneath(root, relative, os.O_RDONLY | os.O_DIRECTORY)


def parse(data: bytes) -> Journal | None:
    """What a journal says; None for anything that is none. A last line without its end was torn by a crash and is not there."""
    begun, settled, session, settled_session = 0, 0, "", ""
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            return None
        try:
            named: object = json.loads(match[4])
        except ValueError:
            return None
        turn = int(match[2])
        if match[1] == b"begun":
            begun, session = turn, str(named)
        elif match[1] == b"settled":
            settled, settled_session = turn, str(named)
        elif turn == begun:
            begun, session = turn - 1, settled_session
    if begun == settled and session != settled_session:
        return None
    return Journal(session, begun, settled)


def relative_to(root: str, path: str) -> str:
    """`path` relative to `root`; `files.UnsafePathError` where it does not lie below it or says `..`."""
    prefix = root.rstrip("/") + "/"
    if not path.startswith(prefix):
        raise files.UnsafePathError(errno.EINVAL, f"{path!r} does not lie below {root!r}")
    relative = path[len(prefix) :].rstrip("/")
    files.split_relative(relative)
    return relative


def write_all(fd: int, data: bytes) -> None:
    """Write every byte."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
