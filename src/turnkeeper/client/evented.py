"""Connections for one event loop: kept between calls, with backpressure, closed at once when they are told to."""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, cast

from turnkeeper.client.base import KEEP_ALIVE_S, Address
from turnkeeper.client.response import Response, TransportError
from turnkeeper.kit.sockets import unix_address

_IDLE_MAX: Final = 32
_BUFFER_BYTES: Final = 256 << 10


class EventedConnection(asyncio.Protocol):
    """One connection, for one call at a time."""

    def __init__(self) -> None:
        self.lost = False
        self.idle_since = 0.0
        self.response = Response()
        self._sent = False
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._paused = False
        self._failure: TransportError | None = None
        self._changed: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Make ready for another call."""
        self.response = Response()
        self._sent = False

    @property
    def reusable(self) -> bool:
        """Whether the call is over on both sides and the connection may carry another."""
        response = self.response
        return self._sent and response.complete and response.keep_alive and not response.buffered and not self.lost

    def send(self, data: bytes) -> None:
        """Send a whole request. `TransportError`."""
        self._open_transport().write(data)
        self._sent = True

    async def send_pieces(self, head: bytes, pieces: AsyncIterator[bytes], *, chunked: bool) -> None:
        """Send `head` and a body that comes piece by piece, in chunks or as it is. `TransportError`."""
        self._open_transport().write(head)
        async for piece in pieces:
            if self.response.complete:
                return  # it was answered without being read to its end: the connection is not used again
            await self._writable.wait()
            self._open_transport().write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            self._open_transport().write(b"0\r\n\r\n")
        self._sent = True

    async def wait_for_head(self) -> Response:
        """Until status and headers are here. `TransportError`."""
        while not self.response.head_complete:
            await self._wait()
        return self.response

    async def read(self) -> bytes | None:
        """The next piece of the body; None at its end. `TransportError` where it ends early."""
        response = self.response
        while not response.buffered:
            if response.complete:
                return None
            await self._wait()
        data = response.take()
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def abort(self) -> None:
        """Close at once; whoever waits gets a `TransportError`."""
        if self._transport is not None:
            self._transport.abort()
        self._lose(TransportError("ReadError"))

    async def _wait(self) -> None:
        if self._failure is not None:
            raise TransportError(self._failure.kind)
        self._changed = asyncio.get_running_loop().create_future()
        await self._changed

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _lose(self, failure: TransportError) -> None:
        self.lost = True
        self._failure = self._failure or failure
        self._writable.set()
        self._wake()

    def _open_transport(self) -> asyncio.Transport:
        if self._transport is None or self.lost:
            raise TransportError("WriteError")
        return self._transport

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is connected."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by its methods alone

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer."""
        try:
            self.response.feed(data)
        except TransportError as failure:
            self._lose(failure)
            self.abort()
            return
        if self.response.buffered > _BUFFER_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over, by whichever side."""
        try:
            self.response.end()
        except TransportError as failure:
            self._lose(TransportError("ReadError") if exc is not None else failure)
            return
        self._lose(TransportError("ReadError"))

    def pause_writing(self) -> None:
        """The kernel's buffer is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """There is room again."""
        self._writable.set()


class EventedPool:
    """Connections to one address."""

    def __init__(self, address: Address, connect_timeout_s: float) -> None:
        self._address = address
        self._connect_timeout_s = connect_timeout_s
        self._idle: deque[EventedConnection] = deque()
        self._closed = False
        self._ssl = ssl.create_default_context() if address.secure else None

    async def take(self) -> EventedConnection:
        """A connection for one call; `put` it back. `TransportError` where none can be made."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - KEEP_ALIVE_S
        while self._idle:
            connection = self._idle.pop()
            if not connection.lost and connection.idle_since > oldest:
                connection.begin()
                return connection
            connection.abort()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                return await self._connect(loop)
        except TimeoutError:
            raise TransportError("ConnectTimeout") from None
        except OSError as error:
            raise TransportError("ConnectError") from error

    def put(self, connection: EventedConnection) -> None:
        """Keep the connection where its call is over, else close it at once."""
        if self._closed or not connection.reusable or len(self._idle) >= _IDLE_MAX:
            connection.abort()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def close(self) -> None:
        """Close what is idle; calls in flight end on their own."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort()

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> EventedConnection:
        address = self._address
        if address.socket_path is not None:
            with unix_address(address.socket_path) as name:
                _, connection = await loop.create_unix_connection(EventedConnection, name)
            return connection
        server_hostname = address.host if self._ssl is not None else None
        _, connection = await loop.create_connection(
            EventedConnection, address.host, address.port, ssl=self._ssl, server_hostname=server_hostname
        )
        return connection
