"""Connections for callers that block: each serves one call at a time, and may be shut down from another thread."""

import contextlib
import select
import socket
import ssl
from typing import Final

from turnkeeper.client.base import KEEP_ALIVE_S, Address
from turnkeeper.client.response import TOTAL_TIMEOUT, Response, TransportError
from turnkeeper.kit.clock import system_clock
from turnkeeper.kit.sockets import unix_address

_RECEIVE_BYTES = 64 << 10


class Silence:
    """Bounds each wait by itself (None: not at all): for what may last as long as it likes, if it is not silent."""

    kind: Final = "ReadTimeout"

    def __init__(self, silence_s: float | None) -> None:
        self._silence_s = silence_s

    def left(self) -> float | None:
        """Seconds for the next wait for an answer."""
        return self._silence_s

    def at_most(self, timeout_s: float, kind: str) -> float:  # noqa: ARG002 - it never ends
        """Seconds for a wait that has a bound of its own."""
        return timeout_s


class WholeCall:
    """Bounds a call as a whole, from now on: each wait is given what the ones before have left of it."""

    kind: Final = TOTAL_TIMEOUT

    def __init__(self, timeout_s: float) -> None:
        self._ends_at = system_clock.monotonic() + timeout_s

    def left(self) -> float:
        """Seconds for the next wait for an answer. `TransportError` where none are left."""
        return self._left(self.kind)

    def at_most(self, timeout_s: float, kind: str) -> float:
        """Seconds for a wait that has a bound of its own. `TransportError` `kind` where none are left."""
        return min(timeout_s, self._left(kind))

    def _left(self, kind: str) -> float:
        left_s = self._ends_at - system_clock.monotonic()
        if left_s <= 0:  # to a socket 0 means: do not block
            raise TransportError(kind)
        return left_s


Bound = Silence | WholeCall


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

    def receive(self, response: Response, bound: Bound) -> None:
        """Wait for the next bytes, for as long as `bound` has left, and feed them. `TransportError`."""
        try:
            self._sock.settimeout(bound.left())
            data = self._sock.recv(_RECEIVE_BYTES)
        except TimeoutError:
            raise TransportError(bound.kind) from None
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


def _connect_tcp(address: Address, timeout_s: float) -> socket.socket:
    """To the first of a name's addresses that answers; `timeout_s` is for all of them."""
    ends_at = system_clock.monotonic() + timeout_s
    failed: OSError = TimeoutError()
    for family, kind, protocol, _, place in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
        left_s = ends_at - system_clock.monotonic()
        if left_s <= 0:
            break
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(left_s)
            sock.connect(place)
        except OSError as error:
            sock.close()
            failed = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failed


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
    sock = _connect_tcp(address, timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not address.secure:
        return sock
    try:
        return ssl.create_default_context().wrap_socket(sock, server_hostname=address.host)
    except BaseException:
        sock.close()
        raise
