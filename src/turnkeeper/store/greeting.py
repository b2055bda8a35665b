"""Whether a PostgreSQL server on a Unix socket serves a database, by the first messages of its protocol alone.

For a supervisor, which has nothing else to say to its server: the driver would be a third of its memory. Protocol 3.0,
"Message Flow: Start-up" in PostgreSQL's documentation.
"""

import contextlib
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from turnkeeper.kit.sockets import connect_unix, peer_credentials

NO_SUCH_DATABASE: Final = "3D000"
CANNOT_CONNECT_NOW: Final = "57P03"
_PROTOCOL: Final = 0x00030000
_MESSAGE_BYTES_MAX: Final = 64 << 10
_MESSAGES_MAX: Final = 200
_HEAD: Final = struct.Struct("!cI")


@dataclass(frozen=True)
class Served:
    """It is ready for a query. `pid` is the process that listens."""

    pid: int


@dataclass(frozen=True)
class NotServed:
    """It answered with an error. `sqlstate` is empty where it asks for a password, or says what nobody understands."""

    pid: int
    sqlstate: str = ""


def greet(path: Path, *, user: str, database: str, timeout_s: float) -> Served | NotServed | None:
    """Log in and leave. None: no whole answer, each step of which is awaited for at most `timeout_s`."""
    pairs = "".join(f"{name}\0{value}\0" for name, value in (("user", user), ("database", database)))
    start = struct.pack("!I", _PROTOCOL) + pairs.encode() + b"\0"
    try:
        with contextlib.closing(connect_unix(path, timeout_s)) as sock:
            pid = peer_credentials(sock).pid
            sock.sendall(struct.pack("!I", len(start) + 4) + start)
            sqlstate = _read_until_ready(sock)
            if sqlstate is None:
                sock.sendall(_HEAD.pack(b"X", 4))
                return Served(pid)
            return NotServed(pid, sqlstate)
    except (OSError, EOFError, ValueError):
        return None


def _read_until_ready(sock: socket.socket) -> str | None:
    """None: ready. Otherwise why not, as an SQLSTATE."""
    for _ in range(_MESSAGES_MAX):
        kind, size = _HEAD.unpack(_read(sock, _HEAD.size))
        if not 4 <= size <= _MESSAGE_BYTES_MAX:
            raise ValueError("no message of PostgreSQL")
        body = _read(sock, size - 4)
        if kind == b"Z":
            return None
        if kind == b"E":
            return _sqlstate(body)
        if kind == b"R" and body != b"\0\0\0\0":
            return ""
    raise ValueError("it says too much")


def _sqlstate(body: bytes) -> str:
    """Of an ErrorResponse: fields of one letter and a text each."""
    codes = [field[1:] for field in body.split(b"\0") if field.startswith(b"C")]
    return codes[0].decode("ascii", "replace") if codes else ""


def _read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data
