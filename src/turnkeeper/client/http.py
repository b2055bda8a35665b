"""The shared base of all typed clients: one peer, kept connections, bounded times, problems as exceptions.

`HttpClient` blocks and may be used from several threads; `AsyncHttpClient` belongs to one event loop. Both accept
`http://host:port`, `https://…` and `unix:/path` (also paths longer than a socket address holds). Nothing is ever sent
twice by itself, no redirect is followed, and no proxy setting of the environment is obeyed.

A call has one time for all of it: connect, write, head and body. Each wait is given what is left, so a peer that trickles
its answer byte by byte holds nobody longer than one that is silent (F-04, L-07). Streams have a bound on silence only, for
they may last; `HttpClient.interrupt` ends from another thread whatever blocks, by shutting its socket down. Only the name
service is asked without a bound of ours; its own is some seconds.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Self, TypeVar

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
    fail_after,
    fail_before,
    operation_name,
    parse_address,
    parsed,
    path,
    refuse_in_transaction,
    transport_failures,
)
from turnkeeper.client.blocking import BlockingConnection, Bound, Silence, WholeCall
from turnkeeper.client.evented import EventedConnection, EventedPool
from turnkeeper.client.failures import CallError, ClientError, ConnectionFailed
from turnkeeper.client.response import TOTAL_TIMEOUT, Response

__all__ = [
    "TOTAL_TIMEOUT",
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
_IDLE_MAX = 16


class AsyncHttpClient(ClientBase):
    """See the module. `async with` it, or call `close`."""

    _pool: EventedPool | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes every connection that is not in use. May be called twice."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

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
        fail_before(operation)
        try:
            async with asyncio.timeout(limit), self._open(operation, departure) as connection:
                with transport_failures(operation, departure):
                    data = self.whole_request(method, name, body, params, headers)
                    departure.sent = True
                    connection.send(data)
                    response = await connection.wait_for_head()
                    content = await _read_async(operation, connection)
        except TimeoutError as error:
            raise ConnectionFailed(operation, "Timeout", sent=departure.sent) from error
        fail_after(operation)
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
        fail_before(operation)
        async with contextlib.AsyncExitStack() as held:
            try:
                async with asyncio.timeout(limit):
                    connection = await held.enter_async_context(self._open(operation, departure))
                    with transport_failures(operation, departure):
                        data = self.whole_request(method, name, body, params, headers)
                        departure.sent = True
                        connection.send(data)
                        response = await connection.wait_for_head()
                        if response.status >= 400:
                            checked(operation, response, await _read_async(operation, connection))
            except TimeoutError as error:
                raise ConnectionFailed(operation, "Timeout", sent=departure.sent) from error
            fail_after(operation)
            yield AsyncStream(operation, connection, silence_s)

    @contextlib.asynccontextmanager
    async def forward(
        self, method: str, target: str, content: bytes | AsyncIterator[bytes], headers: Headers
    ) -> AsyncGenerator["AsyncStream"]:
        """For a proxy: whatever the status, the answer as it comes, with no bound on silence. Leaving the block closes.

        A `content` that comes in pieces is sent in chunks, or as it is where `headers` hold its `content-length`.
        """
        operation, departure = operation_name(method, target), Departure()
        async with self._open(operation, departure) as connection:
            with transport_failures(operation, departure):
                departure.sent = True
                if isinstance(content, bytes):
                    connection.send(self.whole_request(method, target, content, None, headers))
                else:
                    chunked = "content-length" not in headers
                    sent = {**self.headers, **headers, **({"transfer-encoding": "chunked"} if chunked else {})}
                    head = self.head(method, target, None, sent) + b"\r\n"
                    await connection.send_pieces(head, content, chunked=chunked)
                await connection.wait_for_head()
            yield AsyncStream(operation, connection, None)

    @contextlib.asynccontextmanager
    async def _open(self, operation: str, departure: Departure) -> AsyncGenerator[EventedConnection]:
        """A connection for one call. Afterwards it is kept if the answer was read to its end, else closed."""
        refuse_in_transaction(operation)
        if self._pool is None:
            self._pool = EventedPool(self.address, self.timeouts.connect)
        pool = self._pool
        with transport_failures(operation, departure):
            connection = await pool.take()
        try:
            yield connection
        finally:
            pool.put(connection)


class AsyncStream:
    """The body of an open answer."""

    def __init__(self, operation: str, connection: EventedConnection, silence_s: float | None) -> None:
        self.operation = operation
        self.status = connection.response.status
        self.pairs = connection.response.pairs
        self._connection = connection
        self._silence_s = silence_s

    @property
    def headers(self) -> Headers:
        """By name in lower case."""
        return self._connection.response.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        while (chunk := await self._read()) is not None:
            yield chunk

    async def lines(self, bytes_max: int = LINE_BYTES_MAX) -> AsyncIterator[bytes]:
        """Whole lines without their newline. A rest without one is dropped: it was cut (a connection that ended early)."""
        joiner = LineJoiner(self.operation, bytes_max)
        while (chunk := await self._read()) is not None:
            for line in joiner.feed(chunk):
                yield line

    def abort(self) -> None:
        """Close the connection at once; whoever reads gets `ConnectionFailed`."""
        self._connection.abort()

    async def _read(self) -> bytes | None:
        try:
            with transport_failures(self.operation, None):
                if self._silence_s is None:
                    return await self._connection.read()
                async with asyncio.timeout(self._silence_s):
                    return await self._connection.read()
        except TimeoutError:
            raise ConnectionFailed(self.operation, "ReadTimeout", sent=True) from None


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
        self._lock = threading.Lock()
        self._idle: list[BlockingConnection] = []
        self._used: set[BlockingConnection] = set()
        self._interrupted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes every connection that is not in use. May be called twice. Wakes no blocked call: `interrupt` does."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def interrupt(self) -> None:
        """From any thread: every call, those in flight included, ends at once with `ConnectionFailed` `Interrupted`. For good."""
        with self._lock:
            self._interrupted = True
            connections = [*self._used, *self._idle]
        for connection in connections:
            connection.shut_down()

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
        """One call, whole answer. `timeout_s` bounds it as a whole. Errors as in `AsyncHttpClient.request`."""
        bound = WholeCall(self.timeouts.call if timeout_s is None else timeout_s)
        with self._open(method, name, body, params, headers, bound) as stream:
            content = stream.whole()
        fail_after(stream.operation)
        return checked(stream.operation, stream.response, content)

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
        with self._open(method, name, body, params, headers, Silence(silence_s)) as stream:
            if stream.status >= 400:
                checked(stream.operation, stream.response, stream.whole())
            fail_after(stream.operation)
            yield stream

    @contextlib.contextmanager
    def _open(
        self,
        method: str,
        name: str,
        body: Body,
        params: Params | None,
        headers: Headers | None,
        bound: Bound,
    ) -> Generator["Stream"]:
        """One call up to the head of its answer. Afterwards its connection is kept if that was read to its end, else closed."""
        operation, departure = operation_name(method, name), Departure()
        refuse_in_transaction(operation)
        fail_before(operation)
        with transport_failures(operation, departure, self._interrupt_seen):
            data = self.whole_request(method, name, body, params, headers)
            connection = self._take(operation, bound)
        response = Response()
        try:
            with transport_failures(operation, departure, self._interrupt_seen):
                departure.sent = True
                connection.send(data, bound.at_most(self.timeouts.read, "WriteTimeout"))
                while not response.head_complete:
                    connection.receive(response, bound)
            yield Stream(operation, connection, response, bound, self._interrupt_seen)
        finally:
            self._put(connection, reusable=response.complete and response.keep_alive and not response.buffered)

    def _take(self, operation: str, bound: Bound) -> BlockingConnection:
        connection = self._take_idle()
        if connection is None:
            connect_s = bound.at_most(self.timeouts.connect, "ConnectTimeout")
            connection = BlockingConnection.open(self.address, connect_s)
        with self._lock:
            self._used.add(connection)
            interrupted = self._interrupted
        if interrupted:  # before, or while it connected
            self._put(connection, reusable=False)
            raise ConnectionFailed(operation, "Interrupted", sent=False)
        return connection

    def _take_idle(self) -> BlockingConnection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.close()

    def _put(self, connection: BlockingConnection, *, reusable: bool) -> None:
        connection.rest()
        with self._lock:
            self._used.discard(connection)
            if reusable and not self._interrupted and len(self._idle) < _IDLE_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def _interrupt_seen(self) -> bool:
        return self._interrupted


class Stream:
    """The body of an open answer."""

    def __init__(
        self,
        operation: str,
        connection: BlockingConnection,
        response: Response,
        bound: Bound,
        interrupted: Callable[[], bool],
    ) -> None:
        self.operation = operation
        self.response = response
        self.status = response.status
        self._connection = connection
        self._bound = bound
        self._interrupted = interrupted

    @property
    def headers(self) -> Headers:
        """By name in lower case."""
        return self.response.headers

    def chunks(self) -> Iterator[bytes]:
        """The body as it arrives."""
        while (chunk := self._read()) is not None:
            yield chunk

    def lines(self, bytes_max: int = LINE_BYTES_MAX) -> Iterator[bytes]:
        """Whole lines without their newline. A rest without one is dropped: it was cut (a connection that ended early)."""
        joiner = LineJoiner(self.operation, bytes_max)
        while (chunk := self._read()) is not None:
            yield from joiner.feed(chunk)

    def whole(self) -> bytes:
        """All of the body, up to a size that nothing honest reaches."""
        body = BoundedBody(self.operation, self.status)
        for chunk in self.chunks():
            body.add(chunk)
        return body.whole()

    def _read(self) -> bytes | None:
        with transport_failures(self.operation, None, self._interrupted):
            while not self.response.buffered:
                if self.response.complete:
                    return None
                self._connection.receive(self.response, self._bound)
        return self.response.take()


async def _read_async(operation: str, connection: EventedConnection) -> bytes:
    body = BoundedBody(operation, connection.response.status)
    while (chunk := await connection.read()) is not None:
        body.add(chunk)
    return body.whole()
