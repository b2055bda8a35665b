"""Connections for callers that block: each serves one call at a time, and may be shut down from another thread."""

import contextlib
import select
import socket
import ssl

from turnkeeper.client.base import KEEP_ALIVE_S, Address
from turnkeeper.client.response import Response, TransportError
from turnkeeper.kit.clock import system_clock
from turnkeeper.kit.sockets import unix_address

_RECEIVE_BYTES = 64 << 10


class BlockingConnection:
    """One connected socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._idle_since = system_clock.monotonic()

    @classmethod
    def open(cls, address: Address, timeout_s: float) -> "BlockingConnection":
        """Connect. `TransportError`."""
        try:
            return cls(_connect(address, timeout_s))
        except TimeoutError:
            raise TransportError("ConnectTimeout") from None
        except OSError as error:
            raise TransportError("ConnectError") from error

    def send(self, data: bytes, timeout_s: float) -> None:
        """Send all of `data`. `TransportError`."""
        try:
            self._sock.settimeout(timeout_s)
            self._sock.sendall(data)
        except TimeoutError:
            raise TransportError("WriteTimeout") from None
        except OSError as error:
            raise TransportError("WriteError") from error

    def receive(self, response: Response, timeout_s: float | None) -> None:
        """Wait for the next bytes, at most `timeout_s` (None: no bound), and feed them. `TransportError`."""
        try:
            self._sock.settimeout(timeout_s)
            data = self._sock.recv(_RECEIVE_BYTES)
        except TimeoutError:
            raise TransportError("ReadTimeout") from None
        except OSError as error:
            raise TransportError("ReadError") from error
        if data:
            response.feed(data)
        else:
            response.end()

    def rest(self) -> None:
        """Nobody uses it for now."""
        self._idle_since = system_clock.monotonic()

    def is_usable(self) -> bool:
        """Whether it may carry another call: not idle for too long, and nothing has arrived that nobody asked for."""
        if system_clock.monotonic() - self._idle_since > KEEP_ALIVE_S:
            return False
        poll = select.poll()
        try:
            poll.register(self._sock, select.POLLIN)
        except ValueError:  # it is closed
            return False
        return not poll.poll(0)

    def shut_down(self) -> None:
        """From any thread: whoever waits for it wakes at once."""
        with contextlib.suppress(OSError):  # it was closed in the meantime
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it."""
        with contextlib.suppress(OSError):
            self._sock.close()


def _connect(address: Address, timeout_s: float) -> socket.socket:
    if address.socket_path is not None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            with unix_address(address.socket_path) as name:
                sock.connect(name)
        except BaseException:
            sock.close()
            raise
        return sock
    sock = socket.create_connection((address.host, address.port), timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not address.secure:
        return sock
    try:
        return ssl.create_default_context().wrap_socket(sock, server_hostname=address.host)
    except BaseException:
        sock.close()
        raise
