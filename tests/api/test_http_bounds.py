"""What a client may cost before anybody knows who it is, on real sockets. Both servers are made by `make_server`."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Generator
from typing import Any

import pytest
import uvloop

from turnkeeper.main.http_protocol import HttpBounds
from turnkeeper.main.serve import make_server

GET = b"GET /quick HTTP/1.1\r\nHost: x\r\n\r\n"
WITHIN_S = 20.0


paused, go_on = threading.Event(), threading.Event()


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """`/echo` answers the length of the body and the number of headers, `/late` streams until its client leaves."""
    seen = 0
    if scope["path"] == "/echo":
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            seen += len(message["body"])
            if not message["more_body"]:
                break
    body = b"%d %d" % (seen, len(scope["headers"]))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]
                if scope["path"] != "/late" else []})  # fmt: skip
    if scope["path"] == "/late":
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    await send({"type": "http.response.body", "body": body})


def pausing(protocol: Any) -> Any:
    """`protocol`, whose `/pause` stands for a process that is stopped while it reads."""

    class Pausing(protocol):
        def on_url(self, url: bytes) -> None:
            if url == b"/pause":
                paused.set()
                go_on.wait(WITHIN_S)
            super().on_url(url)  # pyright: ignore[reportUnknownMemberType] - the class is made at run time

    return Pausing


@contextlib.contextmanager
def serving(bounds: HttpBounds | None = None) -> Generator[int]:
    """The port of a server like the product's."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as sock:
        server = make_server(application, shutdown_s=1, bounds=bounds)
        server.config.http = pausing(server.config.http)
        thread = threading.Thread(
            target=lambda: uvloop.run(server.serve(sockets=[sock.dup()])), name="server", daemon=True
        )
        thread.start()
        try:
            yield sock.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(WITHIN_S)


def connect(port: int) -> socket.socket:
    """A client."""
    return socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)


def read_all(client: socket.socket) -> bytes:
    """Until the server closes; nothing more to come is an end as well where it resets."""
    parts: list[bytes] = []
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(65536):
            parts.append(part)
    return b"".join(parts)


def recv_to_the_end(client: socket.socket) -> None:
    """Returns when the server has closed."""
    while client.recv(65536):
        pass


def answer(client: socket.socket, request: bytes = GET) -> bytes:
    """One answer, whose body is short."""
    client.sendall(request)
    got = b""
    while b"\r\n\r\n" not in got or not got.partition(b"\r\n\r\n")[2]:
        part = client.recv(65536)
        assert part, got
        got += part
    return got


def pour(client: socket.socket, piece: bytes, bytes_max: int) -> int:
    """Send `piece` again and again until the server will have no more; how much was sent."""
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < bytes_max:
            client.sendall(piece)
            sent += len(piece)
    return sent


HEAD = b"GET /quick HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"GET /", b"a" * 65536),
        (HEAD + b"X: ", b"a" * 65536),
        (HEAD + b"X", b"a" * 65536),
        (HEAD, b"a: b\r\n" * 10000),
        (HEAD, b"a:\r\n" * 10000),
        (b"", b"\r\n" * 32768),
        (CHUNKED + b"1;", b"a" * 65536),
        (CHUNKED, (b"1;" + b"a" * 1000 + b"\r\nx\r\n") * 60),
        (CHUNKED + b"0\r\n", b"a: b\r\n" * 10000),
        (CHUNKED + b"0\r\nX: ", b"a" * 65536),
    ],
    ids=[
        "url",
        "value",
        "name",
        "headers",
        "empty headers",
        "line ends",
        "extension",
        "extensions",
        "trailers",
        "trailer",
    ],
)
def test_what_has_no_end_is_refused_early(begin: bytes, piece: bytes) -> None:
    """A head, trailers and chunk extensions have a bound; 431, the connection closed, the others served meanwhile."""
    with serving() as port, connect(port) as bad, connect(port) as good:
        answer(good)
        bad.sendall(begin)
        started = time.monotonic()
        sent = pour(bad, piece, 64 << 20)
        assert answer(good).startswith(b"HTTP/1.1 200")
        assert time.monotonic() - started < 10.0
        assert sent < 32 << 20
        got = read_all(bad)
        assert not got or got.startswith(b"HTTP/1.1 431 ")


def test_the_refusal_can_be_read() -> None:
    """By a client that sends a little more than it may: a problem with a stable code."""
    with serving() as port:
        for request in (
            HEAD + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
            HEAD + b"a: b\r\n" * 200 + b"\r\n",
            b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        ):
            with connect(port) as client:
                client.sendall(request)
                got = read_all(client)
                assert got.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
                assert b'"code":"too_large"' in got
        with connect(port) as client:
            client.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
            got = read_all(client)
            assert got.startswith(b"HTTP/1.1 400 ")
            assert b'"code":"bad_request"' in got


def test_what_is_allowed_is_answered() -> None:
    """Just below the bounds: a long header, many headers, a long body in chunks and whole, many requests on one connection."""
    with serving() as port, connect(port) as client:
        assert answer(client, HEAD + b"X: " + b"a" * 65_000 + b"\r\n\r\n").endswith(b"0 2")
        assert answer(client, HEAD + b"a: b\r\n" * 127 + b"\r\n").endswith(b"0 128")
        body = b"a" * 3_000_000
        head = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        assert answer(client, head + body).endswith(b"3000000 2")
        chunks = b"".join(b"1000\r\n%b\r\n" % (b"b" * 4096) for _ in range(500))
        assert answer(client, CHUNKED + chunks + b"0\r\n\r\n").endswith(b"2048000 2")
        small = b"1\r\nc\r\n" * 50_000
        assert answer(client, CHUNKED + small + b"0\r\nTrailer: dropped\r\n\r\n").endswith(b"50000 2")
        for _ in range(200):
            assert answer(client).startswith(b"HTTP/1.1 200")


def test_a_head_that_arrives_byte_by_byte_is_the_same_head() -> None:
    """Counting does not depend on how it is cut."""
    with serving() as port, connect(port) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
        for at in range(len(request) - 1):
            client.sendall(request[at : at + 1])
        assert answer(client, request[-1:]).endswith(b"3 2")


def test_pipelined_requests_are_answered_in_order_up_to_a_bound() -> None:
    """Sixteen may wait; a client that sends thousands at once is closed instead of kept in memory."""
    with serving() as port:
        with connect(port) as client:
            client.sendall(GET * 10)
            got = b""
            while got.count(b"HTTP/1.1 200") < 10:
                got += client.recv(65536)
        with connect(port) as client, contextlib.suppress(ConnectionError):
            client.sendall(GET * 3000)
            assert read_all(client).count(b"HTTP/1.1 200") < 100


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b""),
        (b"\r\n", b""),
        (b"GET / HT", b"HTTP/1.1 408 "),
        (HEAD, b"HTTP/1.1 408 "),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc", b"HTTP/1.1 408 "),
        (CHUNKED + b"5\r\nab", b"HTTP/1.1 408 "),
    ],
    ids=["nothing", "line end", "request line", "head", "body", "chunk"],
)
def test_what_does_not_go_on_is_closed(sent: bytes, status: bytes) -> None:
    """A connection that owes a request, or the rest of one, has a deadline."""
    with serving(HttpBounds(head_s=0.3, body_s=0.3)) as port:
        with connect(port) as fresh:
            fresh.sendall(sent)
            got = read_all(fresh)
            assert got.startswith(status)
            assert bool(got) == bool(status)
        if sent:
            with connect(port) as used:
                answer(used)
                used.sendall(sent)
                assert read_all(used).startswith(status)


@pytest.mark.parametrize("begin", [b"GET / HTTP/1.1\r\nX: ", CHUNKED + b"1000\r\n"], ids=["head", "body"])
def test_trickling_does_not_help(begin: bytes) -> None:
    """A byte now and then is no whole head, and no going on with a body."""
    with serving(HttpBounds(head_s=0.4, body_s=0.4)) as port, connect(port) as client:
        client.sendall(begin)
        client.settimeout(0.02)
        started = time.monotonic()
        got = None
        while got is None and time.monotonic() - started < WITHIN_S:
            with contextlib.suppress(ConnectionError):
                client.sendall(b"a")
            try:
                got = client.recv(100)
            except TimeoutError:
                continue
            except ConnectionError:
                got = b""
        assert got is not None
        assert got == b"" or got.startswith(b"HTTP/1.1 408")


def test_a_body_that_goes_on_slowly_is_waited_for() -> None:
    """Longer than the deadline in all, never without progress."""
    with serving(HttpBounds(body_s=0.5, body_step_bytes=100)) as port, connect(port) as client:
        client.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n")
        for _ in range(20):
            client.sendall(b"a" * 100)
            threading.Event().wait(0.06)
        assert answer(client, b"").endswith(b"2000 2")


def test_what_came_in_a_pause_of_ours_came_in_time() -> None:
    """The process stood still beyond the deadline, and the request was there when it went on."""
    paused.clear()
    go_on.clear()
    with serving(HttpBounds(head_s=0.3)) as port, connect(port) as client, connect(port) as stopping:
        stopping.sendall(b"GET /pause HTTP/1.1\r\nHost: x\r\n\r\n")
        assert paused.wait(WITHIN_S)
        client.sendall(GET)
        threading.Event().wait(0.6)
        go_on.set()
        assert answer(client, b"").startswith(b"HTTP/1.1 200")


def test_an_answer_that_is_on_its_way_has_no_deadline() -> None:
    """A stream without a word outlives every deadline for requests."""
    with serving(HttpBounds(head_s=0.2, body_s=0.2)) as port, connect(port) as client:
        client.sendall(b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n")
        got = b""
        while b"first" not in got:
            got += client.recv(1000)
        client.settimeout(1.0)
        with pytest.raises(TimeoutError):
            client.recv(1000)


def test_who_owes_a_request_makes_place_for_who_comes() -> None:
    """With all room taken the oldest idle or half-sent connection goes; one that is answered stays."""
    with serving(HttpBounds(connections_max=40)) as port, contextlib.ExitStack() as stack:
        reader = stack.enter_context(connect(port))
        reader.sendall(b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n")
        assert reader.recv(10)
        slow = stack.enter_context(connect(port))
        slow.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\nabc")
        half = [stack.enter_context(connect(port)) for _ in range(100)]
        for client in half:
            with contextlib.suppress(ConnectionError):
                client.sendall(b"GET / HTTP/1.1\r\nX: ")
        for _ in range(20):
            with connect(port) as worker:
                assert answer(worker).startswith(b"HTTP/1.1 200")
        assert read_all(half[0]) == b""
        assert read_all(slow) == b""
        reader.settimeout(0.2)
        with pytest.raises(TimeoutError):
            recv_to_the_end(reader)


def test_one_that_is_not_served_is_not_let_in() -> None:
    """Where all room belongs to clients that are being answered, a newcomer is closed; with the next place it is served."""
    with serving(HttpBounds(connections_max=3)) as port, contextlib.ExitStack() as stack:
        readers = [stack.enter_context(connect(port)) for _ in range(3)]
        for reader in readers:
            reader.sendall(b"GET /late HTTP/1.1\r\nHost: x\r\n\r\n")
            assert reader.recv(10)
        with connect(port) as client:
            assert read_all(client) == b""
        readers[0].close()
        ends = time.monotonic() + WITHIN_S
        served = False
        while not served and time.monotonic() < ends:
            with connect(port) as client, contextlib.suppress(ConnectionError, AssertionError):
                served = answer(client).startswith(b"HTTP/1.1 200")
        assert served


def test_an_answer_that_nobody_reads_is_given_up() -> None:
    """The connection of a client that leaves all buffers full is ended."""

    async def flood(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        ended.append(False)
        while not ended[-1] and len(ended) < 100_000:
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
            ended.append(False)

    ended: list[bool] = []
    with socket.create_server(("127.0.0.1", 0)) as sock:
        server = make_server(flood, shutdown_s=1, bounds=HttpBounds(unread_s=0.3))
        thread = threading.Thread(target=lambda: uvloop.run(server.serve(sockets=[sock.dup()])), daemon=True)
        thread.start()
        try:
            with connect(sock.getsockname()[1]) as client:
                client.sendall(GET)
                ends = time.monotonic() + WITHIN_S
                while not server.server_state.connections and time.monotonic() < ends:
                    time.sleep(0.01)
                while server.server_state.connections and time.monotonic() < ends:
                    time.sleep(0.01)
                assert not server.server_state.connections
        finally:
            ended.append(True)
            server.should_exit = True
            thread.join(WITHIN_S)
