"""Readers of event streams over raw sockets, which a test may cut anywhere, inside a frame too."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
WAIT_S = 20.0


@dataclass(frozen=True)
class Frame:
    """One frame as a browser would dispatch it. `seq` None: without an id."""

    kind: str
    seq: int | None
    data: Json


class StreamReader:
    """One connection to a stream. Frames come as they are complete; what is cut is lost."""

    def __init__(
        self, port: int, path: str, token: str, headers: dict[str, str] | None = None, *, rcvbuf: int = 0
    ) -> None:
        self._socket = socket.socket()
        if rcvbuf:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        self._socket.settimeout(WAIT_S)
        self._socket.connect(("127.0.0.1", port))
        lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Authorization: Bearer {token}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self._socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        self._raw = b""
        self._body = b""
        self.ended = False
        self.comments = 0
        self.commented = threading.Event()
        self.status = self._read_head()

    def close(self) -> None:
        """Cut the connection, with whatever is still on its way."""
        self._socket.close()

    def frames(self, timeout_s: float = WAIT_S) -> Iterator[Frame]:
        """Frames until the stream ends. `TimeoutError` when nothing at all comes for `timeout_s`."""
        self._socket.settimeout(timeout_s)
        while True:
            while b"\n\n" in self._body:
                block, self._body = self._body.split(b"\n\n", 1)
                frame = self._frame(block.decode())
                if frame is not None:
                    yield frame
            if self.ended:
                return
            self._read_chunk()

    def bytes_of(self, frames: int, extra: int) -> list[Frame]:
        """`frames` whole frames (or up to an end), then `extra` bytes of the next one at most: a cut inside a frame."""
        found: list[Frame] = []
        for frame in self.frames():
            found.append(frame)
            if len(found) == frames or frame.kind == "end":
                break
        if extra and not self.ended and len(self._body) < extra:
            with contextlib.suppress(TimeoutError):
                self._socket.settimeout(0.05)
                self._read_chunk()
        return found

    def until(self, kind: str, timeout_s: float = WAIT_S) -> list[Frame]:
        """Frames up to the first of `kind`."""
        found: list[Frame] = []
        end = time.monotonic() + timeout_s
        for frame in self.frames(timeout_s):
            found.append(frame)
            if frame.kind == kind:
                return found
            assert time.monotonic() < end, f"no {kind} within {timeout_s} s: {found[-3:]}"
        raise AssertionError(f"the stream ended without {kind}: {found[-3:]}")

    def _frame(self, block: str) -> Frame | None:
        kind, seq, data = "message", None, ""
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if line.startswith(":"):
                self.comments += 1
                self.commented.set()
            elif name == "event":
                kind = value
            elif name == "id":
                seq = int(value)
            elif name == "data":
                data += value
        return Frame(kind, seq, json.loads(data)) if data else None

    def _read_head(self) -> int:
        while b"\r\n\r\n" not in self._raw:
            self._fill()
        head, self._raw = self._raw.split(b"\r\n\r\n", 1)
        return int(head.split(b" ", 2)[1])

    def _read_chunk(self) -> None:
        while b"\r\n" not in self._raw:
            self._fill()
        size_line, _, rest = self._raw.partition(b"\r\n")
        size = int(size_line, 16)
        while len(rest) < size + 2:
            self._raw = size_line + b"\r\n" + rest
            self._fill()
            rest = self._raw.partition(b"\r\n")[2]
        self._body += rest[:size]
        self._raw = rest[size + 2 :]
        if size == 0:
            self.ended = True

    def _fill(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionError("the server closed the connection in the middle")
        self._raw += data


@contextlib.contextmanager
def reading(
    port: int, path: str, token: str, headers: dict[str, str] | None = None, *, rcvbuf: int = 0
) -> Generator[StreamReader]:
    """An open stream, cut at the end of the block."""
    reader = StreamReader(port, path, token, headers, rcvbuf=rcvbuf)
    try:
        yield reader
    finally:
        reader.close()
