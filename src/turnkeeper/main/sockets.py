"""Listening sockets, bound before anything else is started."""

import errno
import socket

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
