"""Sessions on disk, and the ledger of every prompt received."""

# Importing pathlib takes 20 ms of every cold start, hence:
# ruff: noqa: PTH103, PTH105, PTH111, PTH112, PTH117, PTH118, PTH120, PTH123

from __future__ import annotations

import json
import os
import threading
import time

from turnkeeper.agents.scripted.wire import ProtocolError, encode, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs every cold start
    from typing import Any

REPLY_CHARS_MAX = 65536
ID_CHARS = frozenset("0123456789abcdef-")

INVALID_REQUEST, INVALID_PARAMS, INTERNAL, NOT_FOUND = -32600, -32602, -32603, -32002


class Session:
    """One session: its turns are ``{"turn", "text", "reply", "stop"}``; stop is None until the turn is answered."""

    def __init__(self, path: str, session_id: str, cwd: str, turns: list[dict[str, Any]]) -> None:
        self.id = session_id
        self.cwd = cwd
        self.turns = turns
        self._path = path

    def begin(self, text: str) -> tuple[int, int]:
        """Record a prompt; returns its turn number and how many earlier turns were answered."""
        remembered = sum(1 for turn in self.turns if turn["stop"] is not None)
        self.turns.append({"turn": len(self.turns) + 1, "text": text, "reply": None, "stop": None})
        self.save()
        return len(self.turns), remembered

    def end(self, reply: str, stop: str) -> None:
        """Record that the newest turn is about to be answered."""
        self.turns[-1].update(reply=reply[:REPLY_CHARS_MAX], stop=stop)
        self.save()

    def save(self) -> None:
        """Replace the file atomically and durably."""
        scratch = f"{self._path}.{os.getpid()}.tmp"
        fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            write_all(fd, encode({"id": self.id, "cwd": self.cwd, "turns": self.turns}))
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(scratch, self._path)
        directory = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


class SessionStore:
    """The sessions below one HOME; those that this process has opened are kept in memory."""

    def __init__(self, home: str) -> None:
        self._folder = os.path.join(home, ".scripted-agent", "sessions")
        self._open: dict[str, Session] = {}

    def new(self, cwd: str) -> Session:
        """Make a session and store it."""
        require_absolute(cwd)
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        session_id = os.urandom(16).hex()
        session = Session(self._path(session_id), session_id, cwd, [])
        session.save()
        self._open[session_id] = session
        return session

    def reopen(self, session_id: str, cwd: str) -> Session:
        """The stored session; ProtocolError when the id is unknown or the cwd is another."""
        require_absolute(cwd)
        session = self._open.get(session_id) or self._read(session_id)
        if session.cwd != cwd:
            raise ProtocolError(INVALID_PARAMS, f"session {session_id} belongs to cwd {session.cwd!r}, not {cwd!r}")
        self._open[session_id] = session
        return session

    def find(self, session_id: str) -> Session | None:
        """The session if this process has it open."""
        return self._open.get(session_id)

    def get(self, session_id: str) -> Session:
        """The session that this process has open; ProtocolError otherwise."""
        session = self._open.get(session_id)
        if session is None:
            raise ProtocolError(NOT_FOUND, f"session {session_id!r} is not open")
        return session

    def forget(self, session_id: str) -> None:
        """Close it; the file stays."""
        self._open.pop(session_id, None)

    def _path(self, session_id: str) -> str:
        return os.path.join(self._folder, f"{session_id}.json")

    def _read(self, session_id: str) -> Session:
        missing = ProtocolError(NOT_FOUND, f"session {session_id!r} does not exist")
        if not session_id or not ID_CHARS.issuperset(session_id):  # an id is never a path
            raise missing
        try:
            with open(self._path(session_id), "rb") as file:
                stored = json.loads(file.read())
        except FileNotFoundError:
            raise missing from None
        return Session(self._path(session_id), session_id, stored["cwd"], stored["turns"])


def require_absolute(cwd: str) -> None:
    """ProtocolError unless ``cwd`` is an absolute path of a directory."""
    if not os.path.isabs(cwd) or "\0" in cwd or not os.path.isdir(cwd):
        raise ProtocolError(INVALID_PARAMS, f"cwd {cwd!r} is not the absolute path of a directory")


class Ledger:
    """The file that says what the agent itself received; without a path it records nothing."""

    def __init__(self, path: str) -> None:
        self._path = os.path.expanduser(path)
        self._lock = threading.Lock()

    def record(self, session_id: str, turn: int | None, text: str) -> None:
        """Append one prompt durably; ProtocolError when that is impossible."""
        if not self._path:
            return
        line = {"t": time.time_ns(), "session": session_id, "turn": turn, "pid": os.getpid(), "text": text}
        try:
            with self._lock:
                fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                try:
                    write_all(fd, encode(line) + b"\n")
                    os.fsync(fd)
                finally:
                    os.close(fd)
        except OSError as error:
            raise ProtocolError(INTERNAL, f"ledger {self._path!r} cannot be written: {error.strerror}") from None
