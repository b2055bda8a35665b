"""The shared base of all typed clients: one peer, kept connections, bounded times, problems as exceptions.

`HttpClient` blocks and may be used from several threads; `AsyncHttpClient` belongs to one event loop. Both accept
`http://host:port`, `https://…` and `unix:/path` (also paths longer than a socket address holds). Nothing is ever sent
twice by itself, no redirect is followed, and no proxy setting of the environment is obeyed.

The timeouts of the transport bound connect, pool, write and each read one by one, so a peer that trickles bytes is never
timed out by them (L-07). `AsyncHttpClient` also bounds the whole call; a blocking call is ended from another thread by
`HttpClient.interrupt`, which shuts its socket down.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

import httpx2
from pydantic import BaseModel

from turnkeeper.client.base import (
    DEFAULT_TIMEOUTS,
    LINE_BYTES_MAX,
    Address,
    Body,
    BoundedBody,
    ClientBase,
    Departure,
    Headers,
    LineJoiner,
    LineTooLongError,
    Params,
    Reply,
    Timeouts,
    checked,
    operation_name,
    parse_address,
    parsed,
    path,
    refuse_in_transaction,
    request_options,
    transport_failures,
)
from turnkeeper.client.failures import CallError, ClientError, ConnectionFailed

__all__ = [
    "Address",
    "AsyncHttpClient",
    "AsyncStream",
    "CallError",
    "ClientError",
    "ConnectionFailed",
    "HttpClient",
    "LineTooLongError",
    "Reply",
    "Stream",
    "Timeouts",
    "parse_address",
    "path",
]

A = TypeVar("A", bound=BaseModel)


class AsyncHttpClient(ClientBase):
    """See the module. `async with` it, or call `close`."""

    _client: httpx2.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes every connection. May be called twice."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
        self.held.close()

    async def request(
        self,
        method: str,
        name: str,
        *,
        body: Body = None,
        params: Params | None = None,
        headers: Headers | None = None,
        timeout_s: float | None = None,
    ) -> Reply:
        """One call, whole answer. Statuses from 400 are `ClientError`; no whole answer within `timeout_s` is `ConnectionFailed`."""
        limit = self.timeouts.call if timeout_s is None else timeout_s
        operation, departure = operation_name(method, name), Departure()
        try:
            async with (
                asyncio.timeout(limit),
                self._open(method, name, body, params, headers, limit, departure) as response,
            ):
                content = await _read_async(response, operation)
        except TimeoutError as error:
            raise ConnectionFailed(operation, "Timeout", sent=departure.sent) from error
        return checked(operation, response, content)

    async def call(
        self,
        method: str,
        name: str,
        answer: type[A],
        *,
        body: Body = None,
        params: Params | None = None,
        headers: Headers | None = None,
        timeout_s: float | None = None,
    ) -> A:
        """`request` whose answer is read as `answer`; one that does not fit is `ClientError` `bad_answer`."""
        reply = await self.request(method, name, body=body, params=params, headers=headers, timeout_s=timeout_s)
        return parsed(operation_name(method, name), reply, answer)

    @contextlib.asynccontextmanager
    async def stream(
        self,
        method: str,
        name: str,
        *,
        body: Body = None,
        params: Params | None = None,
        headers: Headers | None = None,
        timeout_s: float | None = None,
        silence_s: float | None = None,
    ) -> AsyncGenerator["AsyncStream"]:
        """An answer that is read piece by piece. `timeout_s` bounds the wait for its head, `silence_s` (None: no
        bound) the wait for each piece. Leaving the block before the end closes the connection at once."""
        limit = self.timeouts.call if timeout_s is None else timeout_s
        operation, departure = operation_name(method, name), Departure()
        async with contextlib.AsyncExitStack() as held:
            try:
                async with asyncio.timeout(limit):
                    opened = self._open(method, name, body, params, headers, silence_s, departure)
                    response = await held.enter_async_context(opened)
                    if response.status_code >= 400:
                        checked(operation, response, await _read_async(response, operation))
            except TimeoutError as error:
                raise ConnectionFailed(operation, "Timeout", sent=departure.sent) from error
            yield AsyncStream(operation, response)

    @contextlib.asynccontextmanager
    async def forward(
        self, method: str, target: str, content: bytes | AsyncIterator[bytes], headers: Sequence[tuple[bytes, bytes]]
    ) -> AsyncGenerator["AsyncStream"]:
        """For a proxy: whatever the status, the answer as it comes, with no bound on silence. Leaving the block closes."""
        async with self._open(method, target, content, None, list(headers), None, Departure()) as response:
            yield AsyncStream(operation_name(method, target), response)

    @contextlib.asynccontextmanager
    async def _open(
        self,
        method: str,
        name: str,
        body: Body | AsyncIterator[bytes],
        params: Params | None,
        headers: Headers | list[tuple[bytes, bytes]] | None,
        read_s: float | None,
        departure: Departure,
    ) -> AsyncGenerator[httpx2.Response]:
        async def trace(event: str, _info: Mapping[str, Any]) -> None:
            departure.note(event)

        refuse_in_transaction(operation_name(method, name))
        with transport_failures(operation_name(method, name), departure):
            if self._client is None:
                transport = httpx2.AsyncHTTPTransport(**self.transport_options())
                self._client = httpx2.AsyncClient(transport=transport, headers=self.headers, trust_env=False)
            request = self._client.build_request(
                method,
                self.address.base + name,
                params=params,
                timeout=self.timeouts.transport(read_s),
                extensions={"trace": trace},
                **request_options(body, headers),
            )
            response = await self._client.send(request, stream=True)
        try:
            yield response
        finally:
            await response.aclose()


class AsyncStream:
    """The body of an open answer."""

    def __init__(self, operation: str, response: httpx2.Response) -> None:
        self.operation = operation
        self.status = response.status_code
        self.headers = response.headers
        self._response = response

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        with transport_failures(self.operation, None):
            async for chunk in self._response.aiter_raw():
                yield chunk

    async def lines(self, bytes_max: int = LINE_BYTES_MAX) -> AsyncIterator[bytes]:
        """Whole lines without their newline. A rest without one is dropped: it was cut (a connection that ended early)."""
        joiner = LineJoiner(self.operation, bytes_max)
        async for chunk in self.chunks():
            for line in joiner.feed(chunk):
                yield line


class HttpClient(ClientBase):
    """See the module. `with` it, or call `close`."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        headers: Headers | None = None,
    ) -> None:
        super().__init__(url, token=token, timeouts=timeouts, headers=headers)
        self._client: httpx2.Client | None = None
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._interrupted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes every connection. May be called twice. Does not wake a blocked call: `interrupt` does."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
        self.held.close()

    def interrupt(self) -> None:
        """From any thread: every call, those in flight included, ends at once with `ConnectionFailed` `Interrupted`. For good."""
        with self._lock:
            self._interrupted = True
            sockets, self._sockets = self._sockets, []
        for sock in sockets:
            with contextlib.suppress(OSError):  # it was closed in the meantime
                sock.shutdown(socket.SHUT_RDWR)

    def request(
        self,
        method: str,
        name: str,
        *,
        body: Body = None,
        params: Params | None = None,
        headers: Headers | None = None,
        timeout_s: float | None = None,
    ) -> Reply:
        """One call, whole answer. `timeout_s` bounds each wait, not the whole (L-07). Errors as in `AsyncHttpClient.request`."""
        limit = self.timeouts.read if timeout_s is None else timeout_s
        operation = operation_name(method, name)
        with self._open(method, name, body, params, headers, limit) as response:
            content = _read(response, operation, self._interrupt_seen)
        return checked(operation, response, content)

    def call(
        self,
        method: str,
        name: str,
        answer: type[A],
        *,
        body: Body = None,
        params: Params | None = None,
        headers: Headers | None = None,
        timeout_s: float | None = None,
    ) -> A:
        """`request` whose answer is read as `answer`; one that does not fit is `ClientError` `bad_answer`."""
        reply = self.request(method, name, body=body, params=params, headers=headers, timeout_s=timeout_s)
        return parsed(operation_name(method, name), reply, answer)

    @contextlib.contextmanager
    def stream(
        self,
        method: str,
        name: str,
        *,
        body: Body = None,
        params: Params | None = None,
        headers: Headers | None = None,
        silence_s: float | None = None,
    ) -> Generator["Stream"]:
        """An answer that is read piece by piece, each awaited for at most `silence_s` (None: no bound; `interrupt` ends it)."""
        operation = operation_name(method, name)
        with self._open(method, name, body, params, headers, silence_s) as response:
            if response.status_code >= 400:
                checked(operation, response, _read(response, operation, self._interrupt_seen))
            yield Stream(operation, response, self._interrupt_seen)

    @contextlib.contextmanager
    def _open(
        self,
        method: str,
        name: str,
        body: Body,
        params: Params | None,
        headers: Headers | None,
        read_s: float | None,
    ) -> Generator[httpx2.Response]:
        operation, departure = operation_name(method, name), Departure()

        def trace(event: str, info: Mapping[str, Any]) -> None:
            departure.note(event)
            if event.startswith("connection.connect_") and event.endswith(".complete"):
                self._keep(info["return_value"].get_extra_info("socket"))

        refuse_in_transaction(operation)
        with transport_failures(operation, departure, self._interrupt_seen):
            client = self._connect(operation)
            request = client.build_request(
                method,
                self.address.base + name,
                params=params,
                timeout=self.timeouts.transport(read_s),
                extensions={"trace": trace},
                **request_options(body, headers),
            )
            response = client.send(request, stream=True)
        try:
            yield response
        finally:
            response.close()

    def _connect(self, operation: str) -> httpx2.Client:
        with self._lock:
            if self._interrupted:
                raise ConnectionFailed(operation, "Interrupted", sent=False)
            if self._client is None:
                transport = httpx2.HTTPTransport(**self.transport_options())
                self._client = httpx2.Client(transport=transport, headers=self.headers, trust_env=False)
            return self._client

    def _keep(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets = [kept for kept in self._sockets if kept.fileno() >= 0]
            self._sockets.append(sock)
            if self._interrupted:  # it came between the connect and now
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _interrupt_seen(self) -> bool:
        return self._interrupted


class Stream:
    """The body of an open answer."""

    def __init__(self, operation: str, response: httpx2.Response, interrupted: Callable[[], bool]) -> None:
        self.operation = operation
        self.status = response.status_code
        self.headers = response.headers
        self._response = response
        self._interrupted = interrupted

    def chunks(self) -> Iterator[bytes]:
        """The body as it arrives."""
        with transport_failures(self.operation, None, self._interrupted):
            yield from self._response.iter_raw()

    def lines(self, bytes_max: int = LINE_BYTES_MAX) -> Iterator[bytes]:
        """Whole lines without their newline. A rest without one is dropped: it was cut (a connection that ended early)."""
        joiner = LineJoiner(self.operation, bytes_max)
        for chunk in self.chunks():
            yield from joiner.feed(chunk)


def _read(response: httpx2.Response, operation: str, interrupted: Callable[[], bool]) -> bytes:
    body = BoundedBody(operation, response)
    with transport_failures(operation, None, interrupted):
        for part in response.iter_raw():
            body.add(part)
    return body.whole()


async def _read_async(response: httpx2.Response, operation: str) -> bytes:
    body = BoundedBody(operation, response)
    with transport_failures(operation, None):
        async for part in response.aiter_raw():
            body.add(part)
    return body.whole()
