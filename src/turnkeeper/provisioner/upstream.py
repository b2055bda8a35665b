"""Connections from the proxy to one sandbox manager: HTTP/1.1 over its socket, parsed by httptools.

A client library of general use costs more than a millisecond of processor time for each call here, and the proxy is on the
way of every call of every turn. This one does only what the proxy needs: keep a few connections, send a request, hand over
the answer piece by piece with backpressure, and close at once when it is told to. It repeats nothing.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, cast

import httptools

from turnkeeper.client.http import parse_address
from turnkeeper.kit.sockets import unix_address

_IDLE_S: Final = 4.0  # a server with uvicorn's default closes an idle connection after 5
_IDLE_MAX: Final = 16
_CONNECT_S: Final = 5.0
_BUFFER_BYTES: Final = 256 << 10

Headers = list[tuple[bytes, bytes]]


class UpstreamFailedError(Exception):
    """No connection, or it ended before the answer did."""


class Upstream:
    """The manager at `url` (`unix:/path` or `http://host:port`). Belongs to one event loop."""

    def __init__(self, url: str) -> None:
        self._address = parse_address(url)
        self._idle: deque[_Connection] = deque()
        self._closed = False

    async def request(self, method: str, target: str, headers: Headers, body: bytes | AsyncIterator[bytes]) -> "Answer":
        """Send a request; returns when the head of the answer is here. The caller closes the answer. `UpstreamFailedError`."""
        connection = await self._connection()
        try:
            head = [f"{method} {target} HTTP/1.1\r\nhost: sandbox\r\n".encode("latin-1")]
            head += [name + b": " + value + b"\r\n" for name, value in headers]
            if isinstance(body, bytes):
                connection.write(b"".join([*head, b"content-length: %d\r\n\r\n" % len(body), body]))
            else:
                await connection.write_pieces(b"".join(head), headers, body)
            await connection.wait_for_head()
        except BaseException:
            connection.abort()
            raise
        return Answer(self, connection)

    def close(self) -> None:
        """Close what is idle; calls in flight end on their own."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort()

    def keep(self, connection: "_Connection") -> None:
        """A connection whose call is over and that may carry another."""
        if self._closed or len(self._idle) >= _IDLE_MAX:
            connection.abort()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    async def _connection(self) -> "_Connection":
        oldest = asyncio.get_running_loop().time() - _IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if not connection.lost and connection.idle_since > oldest:
                connection.begin()
                return connection
            connection.abort()
        try:
            async with asyncio.timeout(_CONNECT_S):
                return await self._connect()
        except (OSError, TimeoutError) as error:
            raise UpstreamFailedError(type(error).__name__) from error

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        path: Path | None = self._address.socket_path
        if path is not None:
            with unix_address(path) as address:
                _, connection = await loop.create_unix_connection(_Connection, address)
            return connection
        host, _, port = self._address.base.rpartition("//")[2].rpartition(":")
        _, connection = await loop.create_connection(_Connection, host, int(port))
        return connection


class Answer:
    """The answer of one call."""

    def __init__(self, upstream: Upstream, connection: "_Connection") -> None:
        self._upstream = upstream
        self._connection = connection
        self.status = connection.status
        self.headers = connection.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, without its transfer encoding. `UpstreamFailedError` where it ends early."""
        while (chunk := await self._connection.read()) is not None:
            yield chunk

    def close(self) -> None:
        """Keep the connection if the answer was read to its end, else close it at once."""
        if self._connection.reusable:
            self._upstream.keep(self._connection)
        else:
            self._connection.abort()

    def abort(self) -> None:
        """Close at once; whoever reads gets `UpstreamFailedError`. From the event loop."""
        self._connection.abort()


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.lost = False
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.begin()

    def begin(self) -> None:
        """Make ready for a call."""
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: Headers = []
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._paused = False
        self._complete = False
        self._keep_alive = False
        self._sent = False
        self._head_complete = False
        self._changed: asyncio.Future[None] | None = None

    @property
    def reusable(self) -> bool:
        """Whether the call is over on both sides and the connection may carry another."""
        return self._complete and self._sent and not self._chunks and not self.lost and self._keep_alive

    def write(self, data: bytes) -> None:
        """Send a whole request."""
        self._open_transport().write(data)
        self._sent = True

    async def write_pieces(self, head: bytes, headers: Headers, pieces: AsyncIterator[bytes]) -> None:
        """Send a request whose body comes piece by piece, with the length that `headers` hold or in chunks."""
        transport = self._open_transport()
        chunked = not any(name == b"content-length" for name, _ in headers)
        transport.write(head + (b"transfer-encoding: chunked\r\n\r\n" if chunked else b"\r\n"))
        async for piece in pieces:
            if self._complete:
                return  # it has answered without reading on; the connection is not used again
            await self._writable.wait()
            self._open_transport().write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            transport.write(b"0\r\n\r\n")
        self._sent = True

    async def wait_for_head(self) -> None:
        """Until status and headers are here."""
        while not self._head_complete:
            await self._wait()

    async def read(self) -> bytes | None:
        """The next piece of the body; None at its end."""
        while not self._chunks:
            if self._complete:
                return None
            await self._wait()
        if len(self._chunks) == 1:
            data = self._chunks.popleft()
        else:
            data = b"".join(self._chunks)
            self._chunks.clear()
        self._buffered = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return data

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
        self.connection_lost(None)

    async def _wait(self) -> None:
        if self.lost:
            raise UpstreamFailedError("the connection ended early")
        self._changed = asyncio.get_running_loop().create_future()
        await self._changed

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _open_transport(self) -> asyncio.Transport:
        if self._transport is None or self.lost:
            raise UpstreamFailedError("the connection ended early")
        return self._transport

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A connection is there."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one by its methods alone

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self.abort()
        if self._buffered > _BUFFER_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the name is asyncio's
        """It is over, by whichever side."""
        self.lost = True
        self._writable.set()
        self._wake()

    def pause_writing(self) -> None:
        """The kernel's buffer is full."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """There is room again."""
        self._writable.set()

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer."""
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is whole. An interim answer (1xx) is followed by the real one."""
        status = self._parser.get_status_code()
        if status < 200:
            self.headers = []
            return
        self.status = status
        self._head_complete = True
        self._wake()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._chunks.append(body)
        self._buffered += len(body)
        self._wake()

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._head_complete:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()  # the parser forgets it after this callback
            self._wake()
