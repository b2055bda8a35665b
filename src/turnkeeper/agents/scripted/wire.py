"""JSON lines on stdin and stdout: every byte that leaves the agent goes through here, at once and whole."""

from __future__ import annotations

import json
import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing costs every cold start
    from collections.abc import Iterator
    from typing import Any

STDOUT = 1
STDERR = 2


class ProtocolError(Exception):
    """A request that is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Answer:
    """The answer to one request of ours: ``message`` is the whole response once ``arrived`` is set."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.message: dict[str, Any] = {}


def encode(message: dict[str, Any]) -> bytes:
    """One line without its newline: UTF-8 as other agents write it, ASCII escapes only for what UTF-8 cannot say."""
    try:
        return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # a lone surrogate
        return json.dumps(message, separators=(",", ":")).encode()


def write_all(fd: int, data: bytes) -> None:
    """Write every byte of ``data``; a pipe may take less than it is given."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Wire:
    """The two streams. Threads of several turns write at the same time: a message is never torn by another."""

    def __init__(self, *, deaf: bool) -> None:
        self._deaf = deaf
        self._writing = threading.Lock()
        self._asking = threading.Lock()
        self._asked: dict[int, Answer] = {}
        self._last_id = 0

    def lines(self) -> Iterator[bytes]:
        """The lines of stdin until its end."""
        return iter(sys.stdin.buffer.readline, b"")

    def send_raw(self, *parts: bytes, pause_s: float = 0.0) -> None:
        """Write the parts as they are, each by a write of its own, ``pause_s`` apart."""
        with self._writing:
            for index, part in enumerate(parts):
                if index and pause_s:
                    threading.Event().wait(pause_s)
                try:
                    write_all(STDOUT, part)
                except OSError as error:
                    if not self._deaf:
                        write_all(STDERR, f"scripted agent: stdout is closed ({error.strerror})\n".encode())
                        os._exit(1)

    def send(self, message: dict[str, Any]) -> None:
        """Send one message."""
        self.send_raw(encode({"jsonrpc": "2.0", **message}) + b"\n")

    def reply(self, request_id: object, result: dict[str, Any]) -> None:
        """Answer a request."""
        self.send({"id": request_id, "result": result})

    def refuse(self, request_id: object, code: int, message: str) -> None:
        """Answer a request with an error."""
        self.send({"id": request_id, "error": {"code": code, "message": message}})

    def update(self, session_id: str, update: dict[str, Any]) -> None:
        """Send a ``session/update``."""
        self.send({"method": "session/update", "params": {"sessionId": session_id, "update": update}})

    def ask(self, method: str, params: dict[str, Any]) -> Answer:
        """Send a request of ours; the answer arrives from the reading thread."""
        answer = Answer()
        with self._asking:
            self._last_id += 1
            request_id = self._last_id
            self._asked[request_id] = answer
        self.send({"id": request_id, "method": method, "params": params})
        return answer

    def answered(self, message: dict[str, Any]) -> None:
        """Hand a response to whoever asked; a response that nobody waits for is ignored."""
        request_id = message.get("id")
        if not isinstance(request_id, int):
            return
        with self._asking:
            answer = self._asked.pop(request_id, None)
        if answer is not None:
            answer.message = message
            answer.arrived.set()
