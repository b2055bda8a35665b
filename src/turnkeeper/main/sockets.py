"""Listening sockets, bound before anything else is started."""

import contextlib
import errno
import os
import socket
from pathlib import Path
from typing import Self

from turnkeeper.domain.errors import SettingRefused
from turnkeeper.kit.sockets import bind_unix
from turnkeeper.main.environment import ListenAddress

BACKLOG = 1024
_OF_THE_PORT = (errno.EADDRINUSE, errno.EACCES, errno.EPERM)


def bind(address: ListenAddress, setting: str, host_setting: str | None = None) -> socket.socket:
    """A listening socket, before anything else is started: a port in use stops the start, with one line.

    `setting` gave the port, and `host_setting`, where it is another one, the address.
    """
    if address.descriptor is not None:
        return socket.socket(fileno=address.descriptor)
    if address.socket_path is not None:
        try:
            return bind_unix(address.socket_path)
        except OSError as error:
            raise SettingRefused(f"{setting}: cannot listen on {address.socket_path} ({error.strerror})") from error
    family = socket.AF_INET6 if address.host and ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((address.host or "127.0.0.1", address.port or 0))
        # Listening now, not when the server starts: of two starts at the same moment one must lose here.
        sock.listen(BACKLOG)
    except (OSError, socket.gaierror) as error:
        sock.close()
        why = "it is in use" if error.errno == errno.EADDRINUSE else str(error.strerror)
        blamed = setting if error.errno in _OF_THE_PORT else host_setting or setting
        raise SettingRefused(
            f"{blamed}: cannot listen on {address.host}:{address.port} ({why}); choose another"
        ) from error
    return sock


class KeptListener:
    """A Unix socket that is listened on, and made anew where its name was taken away: nobody would reach it any more.

    `descriptor` stays the same number over that. Processes that were given it before hold the old socket until they are
    started again.
    """

    def __init__(self, path: Path, setting: str) -> None:
        """`SettingRefused` where nothing can be made there."""
        self.path = path
        self._setting = setting
        self._sock = bind(ListenAddress(socket_path=path), setting)
        self._made = _identity(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Its name goes too, where it is still ours: a copy of the directory would find a socket in its way."""
        with contextlib.suppress(OSError):
            if self.is_there():
                self.path.unlink()
        self._sock.close()

    @property
    def descriptor(self) -> int:
        """The listening socket, for processes that inherit it."""
        return self._sock.fileno()

    def is_there(self) -> bool:
        """Whether the name still leads to it. `OSError` where that cannot be told."""
        try:
            return _identity(self.path) == self._made
        except (FileNotFoundError, NotADirectoryError):
            return False

    def renew(self) -> None:
        """Listen at the name again. `SettingRefused` where something else is in its place; a stale socket is replaced."""
        with bind(ListenAddress(socket_path=self.path), self._setting) as sock:
            made = _identity(self.path)
            os.dup2(sock.fileno(), self._sock.fileno(), inheritable=False)
        self._made = made


def _identity(path: Path) -> tuple[int, int]:
    """Which file it is. The number of a removed socket is given to no other file for as long as somebody listens on it."""
    found = path.lstat()
    return found.st_dev, found.st_ino
