"""Unix sockets, also under paths that are longer than the 107 bytes that a socket address holds."""

import contextlib
import os
import socket
import struct
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ADDRESS_BYTES_MAX: Final = 107
_UCRED = struct.Struct("3i")


@dataclass(frozen=True)
class PeerCredentials:
    """Who connected, as the kernel saw it at that moment."""

    pid: int
    uid: int
    gid: int


@contextlib.contextmanager
def unix_address(path: Path) -> Generator[str]:
    """An address for `path` that is valid within the block.

    A long path is reached through `/proc/self/fd/N/name`, where N holds its directory open. The name itself must still
    fit; the clear error for one that does not is an `OSError`.
    """
    raw = os.fsencode(path)
    if len(raw) <= ADDRESS_BYTES_MAX:
        yield os.fsdecode(raw)
        return
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        short = f"/proc/self/fd/{fd}/{path.name}"
        if len(os.fsencode(short)) > ADDRESS_BYTES_MAX:
            raise OSError(f"the socket's file name is too long: {path.name!r}; at most 80 bytes are safe")
        yield short
    finally:
        os.close(fd)


def connect_unix(path: Path, timeout_s: float) -> socket.socket:
    """A connected stream socket. `timeout_s` bounds the connect and stays set on the socket."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        with unix_address(path) as address:
            sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def bind_unix(path: Path, *, mode: int = 0o600, backlog: int = 128) -> socket.socket:
    """A listening stream socket at `path`, with exactly `mode` from the moment that it can be connected to.

    A socket file without a listener is replaced; a live listener or another kind of file is an `OSError`
    (`EADDRINUSE`). The directory must be one that only we write to.
    """
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with unix_address(path) as address:
            sock.bind(address)
            path.chmod(mode)  # before listen: nobody can connect in between
        sock.listen(backlog)
    except BaseException:
        sock.close()
        raise
    return sock


def peer_credentials(sock: socket.socket) -> PeerCredentials:
    """The credentials of the process at the other end of a Unix socket."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    return PeerCredentials(pid=pid, uid=uid, gid=gid)


def _remove_stale(path: Path) -> None:
    if not path.is_socket():
        return  # bind itself refuses a file of another kind
    try:
        connect_unix(path, timeout_s=1.0).close()
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)
