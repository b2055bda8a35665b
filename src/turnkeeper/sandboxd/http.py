"""A small HTTP/1.1 server on a listening descriptor: bounded requests, keep-alive, JSON answers and streams with backpressure.

Own, because a sandbox pays for every import before it answers: this one adds httptools to asyncio (about 10 ms), where
uvicorn and Starlette add 60 to 100 ms and 10 MB. It is spoken to by one client, the provisioner's proxy.

A handler runs to its end even if its client goes away (a barrier that is half passed must be passed); only the stream of an
answer ends with its client.
"""

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import parse_qsl, unquote

import httptools

from turnkeeper.kit.log import get_logger

_log = get_logger("sandboxd.http")
HEADERS_BYTES_MAX: Final = 64 * 1024
CONNECTIONS_MAX: Final = 256
# A chunk may cost this much beside its bytes: its length and line ends, and a short extension.
_CHUNK_BYTES: Final = 16
_PIPELINE_MAX: Final = 16
_LINGER_S: Final = 2.0
_HIGH_WATER_BYTES: Final = 512 * 1024
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    410: "Gone",
    413: "Content Too Large",
    422: "Unprocessable Content",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True)
class HttpRequest:
    """One request; header names in lower case. A request that could not be taken has `refused` with its status instead."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    refused: int | None = None


@dataclass(frozen=True)
class HttpAnswer:
    """A status with a body, or with a stream of bytes."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    stream: AsyncIterator[bytes] | None = field(default=None, compare=False)


Handler = Callable[[HttpRequest], Awaitable[HttpAnswer]]


@dataclass
class _Incoming:
    method: str = ""
    url: bytes = b""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    header_bytes: int = 0
    complete: bool = False
    body: bytearray = field(default_factory=bytearray)
    keep_alive: bool = True
    refused: int | None = None


class _Connection(asyncio.Protocol):
    """One client. Requests are answered one after the other, in their order."""

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._incoming = _Incoming()
        self._queue: deque[_Incoming] = deque()
        self._answering: asyncio.Task[None] | None = None
        self._stream: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._closing = False
        self._began = False
        self._spent = 0
        self._paid = 0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        if not self._server.admit(self):
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - how it was lost makes no difference
        self._closing = True
        self._writable.set()
        self._server.forget(self)
        if self._stream is not None:
            self._stream.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400)
        except httptools.HttpParserError:
            self._refuse(400)
        # What the parser keeps to itself: a line without an end, chunk extensions. Parsing gets slower with its length.
        self._spent = 0 if self._began else max(0, self._spent + len(data) - self._paid)
        self._began, self._paid = False, 0
        if self._spent > HEADERS_BYTES_MAX:
            self._refuse(431)

    # httptools

    def on_message_begin(self) -> None:
        self._incoming = _Incoming()
        self._began = True

    def on_url(self, url: bytes) -> None:
        self._incoming.url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if self._incoming.refused is None and not self._incoming.complete:  # no trailers
            self._incoming.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._incoming.complete = True
        self._began = True

    def on_body(self, body: bytes) -> None:
        self._paid += 3 * len(body) + _CHUNK_BYTES
        if self._incoming.refused is not None:
            return
        self._incoming.body += body
        if len(self._incoming.body) > self._server.body_bytes_max:
            self._refuse(413)

    def on_message_complete(self) -> None:
        if self._closing:
            return
        self._incoming.method = self._parser.get_method().decode("latin-1")
        self._incoming.keep_alive = self._parser.should_keep_alive()
        self._enqueue(self._incoming)

    def _count(self, size: int) -> None:
        self._incoming.header_bytes += size
        if self._incoming.header_bytes > HEADERS_BYTES_MAX and self._incoming.refused is None:
            self._refuse(431)

    def _refuse(self, status: int) -> None:
        """Answer what cannot be taken after what came before it, then close: the rest of the stream means nothing."""
        if self._closing:
            return
        self._closing = True
        self._incoming.refused = status
        self._incoming.keep_alive = False
        self._incoming.body.clear()
        self._enqueue(self._incoming)

    def _enqueue(self, incoming: _Incoming) -> None:
        self._queue.append(incoming)
        if len(self._queue) > _PIPELINE_MAX and self._transport is not None:
            self._transport.pause_reading()
        if self._answering is None or self._answering.done():
            self._answering = asyncio.get_running_loop().create_task(self._answer_all())

    async def _answer_all(self) -> None:
        transport = self._transport
        while self._queue and transport is not None:
            incoming = self._queue.popleft()
            if not self._closing:
                transport.resume_reading()
            answer = await self._server.respond(_request(incoming))
            keep_alive = incoming.keep_alive
            if answer.stream is None:
                self._write_head(transport, answer, keep_alive=keep_alive)
            else:
                keep_alive = await self._write_stream(transport, answer, answer.stream, keep_alive=keep_alive)
            if not keep_alive:
                self._closing = True
                self._close(transport, linger=incoming.refused is not None)
                return

    @staticmethod
    def _close(transport: asyncio.Transport, *, linger: bool) -> None:
        """Close; where the client may still be sending what was refused, let it come to its end and read the answer first."""
        if not linger or transport.is_closing():
            transport.close()
            return
        transport.resume_reading()
        transport.write_eof()
        asyncio.get_running_loop().call_later(_LINGER_S, transport.close)

    @staticmethod
    def _write_head(transport: asyncio.Transport, answer: HttpAnswer, *, keep_alive: bool) -> None:
        if transport.is_closing():
            return
        length = "transfer-encoding: chunked" if answer.stream is not None else f"content-length: {len(answer.body)}"
        head = (
            f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Status')}\r\n"
            f"content-type: {answer.content_type}\r\n{length}\r\n"
            f"connection: {'keep-alive' if keep_alive else 'close'}\r\n\r\n"
        )
        transport.write(head.encode("latin-1") + answer.body)

    async def _write_stream(
        self, transport: asyncio.Transport, answer: HttpAnswer, stream: AsyncIterator[bytes], *, keep_alive: bool
    ) -> bool:
        """False: the stream did not come to its end, and the connection says so by not ending the body."""
        self._write_head(transport, answer, keep_alive=keep_alive)
        self._stream = asyncio.get_running_loop().create_task(self._pump(transport, stream))
        done, _ = await asyncio.wait({self._stream})
        self._stream = None
        task = done.pop()
        if task.cancelled() or transport.is_closing():
            return False
        if (failure := task.exception()) is not None:
            _log.error("stream_failed", exception=type(failure).__name__)
            return False
        transport.write(b"0\r\n\r\n")
        return keep_alive

    async def _pump(self, transport: asyncio.Transport, stream: AsyncIterator[bytes]) -> None:
        try:
            async for chunk in stream:
                await self._writable.wait()
                if transport.is_closing():
                    return
                if chunk:
                    transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()


def _request(incoming: _Incoming) -> HttpRequest:
    if incoming.refused is not None:
        return HttpRequest("", "", {}, {}, b"", incoming.refused)
    try:
        url = httptools.parse_url(incoming.url)
    except httptools.HttpParserInvalidURLError:
        return HttpRequest("", "", {}, {}, b"", 400)
    query = (url.query or b"").decode("latin-1")
    return HttpRequest(
        method=incoming.method,
        path=unquote((url.path or b"/").decode("latin-1")),
        query=dict(parse_qsl(query, keep_blank_values=True)),
        headers=incoming.headers,
        body=bytes(incoming.body),
    )


class HttpServer:
    """Serves `handler` on one listening socket (Unix or TCP)."""

    def __init__(self, handler: Handler, body_bytes_max: int) -> None:
        self._handler = handler
        self.body_bytes_max = body_bytes_max
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self, sock: socket.socket) -> None:
        """Begin to accept."""
        loop = asyncio.get_running_loop()
        sock.setblocking(False)
        if sock.family == socket.AF_UNIX:
            self._server = await loop.create_unix_server(lambda: _Connection(self), sock=sock)
        else:
            self._server = await loop.create_server(lambda: _Connection(self), sock=sock)

    def admit(self, connection: _Connection) -> bool:
        """Whether there is room for one more client."""
        if len(self._connections) >= CONNECTIONS_MAX:
            return False
        self._connections.add(connection)
        return True

    def forget(self, connection: _Connection) -> None:
        """The client has gone."""
        self._connections.discard(connection)

    async def respond(self, request: HttpRequest) -> HttpAnswer:
        """The handler's answer; a defect in it is answered 500 and logged, and never shown."""
        try:
            return await self._handler(request)
        except Exception:
            _log.exception("request_failed", method=request.method, path=request.path)
            return HttpAnswer(500, b'{"title":"Internal Server Error","status":500,"code":"internal"}')
