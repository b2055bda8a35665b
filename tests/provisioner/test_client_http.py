"""The shared HTTP client against real sockets: addresses, problems, silence, interruption, streams that are cut."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from pydantic import BaseModel

from turnkeeper.client.http import (
    AsyncHttpClient,
    ClientError,
    ConnectionFailed,
    HttpClient,
    LineTooLongError,
    Timeouts,
    parse_address,
    path,
)
from turnkeeper.kit.sockets import bind_unix


class Answer(BaseModel):
    ok: bool


def reply(body: bytes, status: str = "200 OK", media: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {media}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


@contextlib.contextmanager
def peer(listener: socket.socket, serve: Callable[[socket.socket], None]) -> Generator[None]:
    """Accepts connections until the block ends, each served in a thread of its own."""
    threads: list[threading.Thread] = []
    open_sockets: list[socket.socket] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = listener.accept()
                open_sockets.append(sock)
                thread = threading.Thread(target=run, args=(sock,))
                thread.start()
                threads.append(thread)

    def run(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            serve(sock)

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield
    finally:
        for sock in [listener, *open_sockets]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in [acceptor, *threads]:
            thread.join(timeout=5)


def read_request(sock: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        part = sock.recv(65536)
        if not part:
            raise OSError("closed")
        data += part
    return data


def answering(*answers: bytes) -> Callable[[socket.socket], None]:
    def serve(sock: socket.socket) -> None:
        for answer in answers:
            read_request(sock)
            sock.sendall(answer)

    return serve


@pytest.fixture
def tcp() -> Generator[tuple[str, socket.socket]]:
    listener = socket.create_server(("127.0.0.1", 0))
    with listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", listener


def test_unix_path_longer_than_an_address(tmp_path: Path) -> None:
    """A socket path over 107 bytes is reached, and the connection is kept between calls."""
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    listener = bind_unix(directory / "x.sock")
    answer = reply(b'{"ok": true}')
    with peer(listener, answering(answer, answer)), HttpClient(f"unix:{directory / 'x.sock'}") as client:
        assert client.call("GET", "/a", Answer).ok
        assert client.call("GET", "/a", Answer).ok


async def test_async_unix(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    listener = bind_unix(directory / "x.sock")
    with peer(listener, answering(reply(b'{"ok": true}'))):
        async with AsyncHttpClient(f"unix:{directory / 'x.sock'}") as client:
            assert (await client.call("POST", "/a", Answer, body=Answer(ok=False))).ok


async def test_problem_is_a_client_error(tcp: tuple[str, socket.socket]) -> None:
    """A problem's code, detail and further members arrive; a body that is no problem gives `unexpected_answer`."""
    url, listener = tcp
    problem = b'{"title": "t", "status": 409, "code": "workdir_held", "detail": "held", "holder": "x"}'
    answers = reply(problem, "409 Conflict", "application/problem+json"), reply(b"<html>", "502 Bad Gateway")
    with peer(listener, answering(*answers)):
        async with AsyncHttpClient(url) as client:
            with pytest.raises(ClientError) as refused:
                await client.request("GET", "/v1/sandboxes/4f/touch")
            with pytest.raises(ClientError) as odd:
                await client.request("GET", "/a")
    error = refused.value
    assert (error.status, error.code, error.detail, error.extra) == (409, "workdir_held", "held", {"holder": "x"})
    assert not error.retryable
    assert (odd.value.code, odd.value.retryable) == ("unexpected_answer", True)


async def test_answer_that_does_not_fit(tcp: tuple[str, socket.socket]) -> None:
    """Proves: E-02 (the message of a bad answer repeats none of its values)."""
    url, listener = tcp
    with peer(listener, answering(reply(b'{"ok": "tkp_secret"}'))):
        async with AsyncHttpClient(url) as client:
            with pytest.raises(ClientError) as error:
                await client.call("GET", "/a", Answer)
    assert error.value.code == "bad_answer"
    assert "secret" not in str(error.value)


async def test_no_listener_means_not_sent(tcp: tuple[str, socket.socket], tmp_path: Path) -> None:
    """A call that could not connect says that it never left; one that was cut says that it may have arrived."""
    url, listener = tcp
    async with AsyncHttpClient(f"unix:{tmp_path / 'nothing' / ('x' * 100)}") as client:
        with pytest.raises(ConnectionFailed) as failure:
            await client.request("GET", "/a")
    assert not failure.value.sent

    def cut(sock: socket.socket) -> None:
        read_request(sock)

    with peer(listener, cut):
        async with AsyncHttpClient(url) as client:
            with pytest.raises(ConnectionFailed) as failure:
                await client.request("POST", "/a")
    assert failure.value.sent


async def test_trickling_peer_is_timed_out(tcp: tuple[str, socket.socket]) -> None:
    """An asynchronous call is bounded as a whole, also by a peer that sends a byte now and then (L-07)."""
    url, listener = tcp

    def trickle(sock: socket.socket) -> None:
        read_request(sock)
        for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + b"x" * 100:
            sock.sendall(bytes([byte]))
            time.sleep(0.02)

    with peer(listener, trickle):
        async with AsyncHttpClient(url, timeouts=Timeouts(call=0.3)) as client:
            with pytest.raises(ConnectionFailed) as failure:
                await client.request("GET", "/a")
    assert failure.value.kind == "Timeout"
    assert failure.value.sent


@pytest.mark.parametrize("at_once", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"], ids=["head", "body"])
def test_a_blocking_call_is_bounded_as_a_whole_too(tcp: tuple[str, socket.socket], at_once: bytes) -> None:
    """Whether the head trickles or the body, by the call's own time or the client's (F-04, L-07)."""
    url, listener = tcp

    def trickle(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(at_once)
        for byte in (b"" if at_once else b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n") + b"x" * 9000:
            sock.sendall(bytes([byte]))
            time.sleep(0.02)

    with peer(listener, trickle), HttpClient(url, timeouts=Timeouts(call=0.3, read=20)) as client:
        for own_s in (None, 0.4):
            began = time.monotonic()
            with pytest.raises(ConnectionFailed) as failure:
                client.request("GET", "/a", timeout_s=own_s)
            assert (failure.value.kind, failure.value.sent) == ("TotalTimeout", True)
            assert (own_s or 0.3) <= time.monotonic() - began < 10


def test_a_blocking_call_whose_time_is_over_before_it_is_sent(tcp: tuple[str, socket.socket]) -> None:
    """It never left, and says so."""
    url, _ = tcp
    with HttpClient(url) as client, pytest.raises(ConnectionFailed) as failure:
        client.request("GET", "/a", timeout_s=0.0)
    assert (failure.value.kind, failure.value.sent) == ("ConnectTimeout", False)


def test_interrupt_ends_a_blocked_call(tcp: tuple[str, socket.socket]) -> None:
    """Another thread ends a call that is blocked in its read, at once and for good (L-07)."""
    url, listener = tcp
    arrived = threading.Event()
    failures: list[ConnectionFailed] = []

    def silent(sock: socket.socket) -> None:
        read_request(sock)
        arrived.set()
        sock.recv(1)

    def call(client: HttpClient) -> None:
        try:
            client.request("GET", "/a")
        except ConnectionFailed as failure:
            failures.append(failure)

    with peer(listener, silent), HttpClient(url) as client:
        thread = threading.Thread(target=call, args=(client,))
        thread.start()
        assert arrived.wait(5)
        begun = time.monotonic()
        client.interrupt()
        thread.join(5)
        assert time.monotonic() - begun < 1
        assert [failure.kind for failure in failures] == ["Interrupted"]
        with pytest.raises(ConnectionFailed) as again:
            client.request("GET", "/a")
    assert (again.value.kind, again.value.sent) == ("Interrupted", False)


def chunked(*chunks: bytes, end: bool = True) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b"".join(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n" for chunk in chunks)
    return head + body + (b"0\r\n\r\n" if end else b"")


async def test_lines_of_a_stream(tcp: tuple[str, socket.socket]) -> None:
    """Lines come whole however they are cut; a stream that was cut gives its whole lines and then fails."""
    url, listener = tcp
    with peer(listener, answering(chunked(b'{"n"', b":1}\n{}\n\n", b"x\ny"))):
        async with AsyncHttpClient(url) as client, client.stream("GET", "/e") as stream:
            assert [line async for line in stream.lines()] == [b'{"n":1}', b"{}", b"", b"x"]


def test_lines_of_a_cut_stream(tcp: tuple[str, socket.socket]) -> None:
    url, listener = tcp
    seen: list[bytes] = []
    with (
        peer(listener, answering(chunked(b"a\nb", end=False))),
        HttpClient(url) as client,
        pytest.raises(ConnectionFailed),
        client.stream("GET", "/e") as stream,
    ):
        seen.extend(stream.lines())
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        peer(other, answering(chunked(b"a\nbcd\n", end=False))),
        HttpClient(f"http://127.0.0.1:{other.getsockname()[1]}") as client,
        pytest.raises(LineTooLongError),
        client.stream("GET", "/e") as stream,
    ):
        seen.extend(stream.lines(bytes_max=2))
    assert seen == [b"a"]


async def test_errors_of_the_caller_pass_through(tcp: tuple[str, socket.socket]) -> None:
    """An OSError of the code that reads a stream is its own, never taken for the connection's."""
    url, listener = tcp
    with peer(listener, answering(chunked(b"a\n"))):
        async with AsyncHttpClient(url) as client:
            with pytest.raises(IsADirectoryError):
                async with client.stream("GET", "/e"):
                    raise IsADirectoryError("mine")


async def test_leaving_a_stream_closes_it(tcp: tuple[str, socket.socket]) -> None:
    """A reader that leaves a stream early closes the connection at once."""
    url, listener = tcp
    closed = threading.Event()

    def endless(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(chunked(b"a\n", end=False))
        assert sock.recv(1) == b""
        closed.set()

    with peer(listener, endless):
        async with AsyncHttpClient(url) as client:
            async with client.stream("GET", "/e") as stream:
                async for line in stream.lines():
                    assert line == b"a"
                    break
            assert await asyncio.to_thread(closed.wait, 2)


@pytest.mark.parametrize("url", ["unix:relative", "unix:", "ftp://x", "127.0.0.1:80", "http://", "http://u:p@h", ""])
def test_bad_address(url: str) -> None:
    with pytest.raises(ValueError, match="no address"):
        parse_address(url)


def test_path_values_are_one_segment() -> None:
    """Case: F14."""
    assert path("/v1/{a}/{n}", a="../x/%2e?#é", n=3) == "/v1/..%2Fx%2F%252e%3F%23%C3%A9/3"
    for value in ("", ".", ".."):
        with pytest.raises(ValueError, match="cannot be"):
            path("/v1/{a}", a=value)


def test_token_is_not_shown() -> None:
    """Proves: E-02."""
    assert "tkw_x" not in repr(HttpClient("http://h", token="tkw_x" * 9))


@pytest.mark.parametrize(
    ("answer", "content"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
        (chunked(b"a", b"b" * 70000, b"c"), b"a" + b"b" * 70000 + b"c"),
    ],
)
async def test_ends_of_an_answer(tcp: tuple[str, socket.socket], answer: bytes, content: bytes) -> None:
    """RFC 9112: an answer ends by its length, its last chunk, its status, or with the connection."""
    url, listener = tcp
    with peer(listener, answering(answer)):
        async with AsyncHttpClient(url) as client:
            assert (await client.request("GET", "/a")).content == content
        with HttpClient(url) as client:
            assert client.request("GET", "/a").content == content


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nraw",
    ],
)
async def test_answers_that_are_none(tcp: tuple[str, socket.socket], answer: bytes) -> None:
    """What is no whole answer is `ConnectionFailed`, and the request may have arrived."""
    url, listener = tcp
    with peer(listener, answering(answer)):
        async with AsyncHttpClient(url) as client:
            with pytest.raises(ConnectionFailed) as failure:
                await client.request("POST", "/a", timeout_s=5)
            assert failure.value.sent
        with HttpClient(url, timeouts=Timeouts(read=5)) as blocking, pytest.raises(ConnectionFailed):
            blocking.request("POST", "/a")


async def test_more_than_was_asked_for(tcp: tuple[str, socket.socket]) -> None:
    """What follows an answer is never taken for the next one: the connection is not used again."""
    url, listener = tcp
    poisoned = reply(b'{"ok": true}') + reply(b'{"ok": false}')
    with peer(listener, answering(poisoned, poisoned)):
        async with AsyncHttpClient(url) as client:
            for _ in range(3):
                with contextlib.suppress(ConnectionFailed):
                    assert (await client.call("GET", "/a", Answer)).ok
        with HttpClient(url) as blocking:
            for _ in range(3):
                with contextlib.suppress(ConnectionFailed):
                    assert blocking.call("GET", "/a", Answer).ok


@pytest.mark.parametrize(
    ("name", "headers"),
    [("/a b", {}), ("/a\r\nx: y", {}), ("/a", {"X": "a\r\nEvil: 1"}), ("/a", {"X\n": "a"}), ("/a", {"X": "日"})],
)
async def test_nothing_ends_a_line_early(name: str, headers: dict[str, str]) -> None:
    """Case: F14. A path or header value that could end its line is refused before anything is sent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with HttpClient(url) as blocking, pytest.raises(ConnectionFailed) as failure:
            blocking.request("GET", name, headers=headers)
        assert (failure.value.kind, failure.value.sent) == ("LocalProtocolError", False)
        async with AsyncHttpClient(url) as client:
            with pytest.raises(ConnectionFailed) as failure:
                await client.request("GET", name, headers=headers)
        assert (failure.value.kind, failure.value.sent) == ("LocalProtocolError", False)


def test_connection_that_was_closed_meanwhile(tcp: tuple[str, socket.socket]) -> None:
    """A kept connection that the peer has closed is noticed before it is used: the call is made on a new one."""
    url, listener = tcp
    with peer(listener, answering(reply(b'{"ok": true}'))), HttpClient(url) as client:
        for _ in range(3):
            assert client.call("GET", "/a", Answer).ok
            time.sleep(0.05)  # the peer closes after each answer


def test_silence_is_told_from_an_end(tcp: tuple[str, socket.socket]) -> None:
    """A stream whose peer says nothing for too long is `ReadTimeout`, one that is cut is not."""
    url, listener = tcp

    def silent(sock: socket.socket) -> None:
        read_request(sock)
        sock.sendall(chunked(b"a\n", end=False))
        sock.recv(1)

    with (
        peer(listener, silent),
        HttpClient(url) as client,
        pytest.raises(ConnectionFailed) as failure,
        client.stream("GET", "/e", silence_s=0.2) as stream,
    ):
        list(stream.lines())
    assert failure.value.kind == "ReadTimeout"


def test_query_is_quoted(tcp: tuple[str, socket.socket]) -> None:
    """Values of a query cannot add to it."""
    url, listener = tcp
    seen: list[bytes] = []

    def serve(sock: socket.socket) -> None:
        seen.append(read_request(sock).split(b"\r\n")[0])
        sock.sendall(reply(b"{}"))

    with peer(listener, serve), HttpClient(f"{url}/base/") as client:
        client.request("GET", "/a", params={"q": "a&b=c d", "n": 1, "flag": True})
    assert seen == [b"GET /base/a?q=a%26b%3Dc+d&n=1&flag=true HTTP/1.1"]
