"""The HTTP server: keep-alive, bounds, malformed requests, backpressure, clients that leave."""

import asyncio
import contextlib
import json
import socket
from pathlib import Path

import httpx2
import pytest

from sandboxd.manager import Manager, Worker, until


def raw(manager: Manager) -> socket.socket:
    """A connection on which anything can be said."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    try:
        sock.connect(str(manager.socket_path))
    except OSError:
        sock.close()
        raise
    return sock


def receive(sock: socket.socket) -> bytes:
    """Everything to the end."""
    parts: list[bytes] = []
    while part := sock.recv(65536):
        parts.append(part)
    return b"".join(parts)


def head(manager: Manager, request: str, *more: str) -> bytes:
    """A request with the secret."""
    lines = [f"{request} HTTP/1.1", "host: x", f"authorization: Bearer {manager.options.secret}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


async def exchange(manager: Manager, data: bytes) -> bytes:
    """Say `data` and hear everything, beside the event loop."""

    def talk() -> bytes:
        with raw(manager) as sock:
            sock.sendall(data)
            return receive(sock)

    return await asyncio.to_thread(talk)


async def test_secret(manager: Manager) -> None:
    """Proves: D-03. Without the secret nothing is answered, also not what is answered before the routes are loaded."""
    for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": manager.options.secret}):
        for path in ("/v1/state", "/v1/take", "/nowhere"):
            response = await manager.http.get(path, headers={"Authorization": "", **header})
            assert (response.status_code, response.json()["code"]) == (401, "unauthorized")
    (await manager.activation().call("GET", "/v1/nowhere")).refused(404, "not_found")
    (await manager.activation().call("GET", "/v1/take")).refused(405, "method_not_allowed")


async def test_activation_token(manager: Manager) -> None:
    """Proves: D-03. A missing, forged or expired token acts on nothing; an expired one may still end its own turn."""
    worker = manager.activation()
    response = await manager.http.post("/v1/take", json={})
    assert (response.status_code, response.json()["code"]) == (403, "forbidden")
    forged = Worker(manager, worker.claims, token_override="a.b.c")
    (await forged.take()).refused(403, "forbidden")
    (await worker.take()).ok()
    (await worker.session()).ok()
    (await worker.prompt("/hang")).ok()
    expired = Worker(manager, {**worker.claims, "exp": 1})
    (await expired.take()).refused(403, "token_expired")
    for call in ("feed", "setup", "session", "prompt"):
        (await expired.call("POST", f"/v1/{call}")).refused(403, "token_expired")
    (await expired.call("GET", "/v1/receipt")).refused(404, "not_settled")
    (await expired.call("POST", "/v1/cancel")).ok()
    (await expired.call("POST", "/v1/stop")).ok()
    assert manager.below() == []


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/take", {}, "mark_ms"),
        ("/v1/take", {"mark_ms": "x", "lease_ttl_ms": 1, "home": "/"}, "mark_ms"),
        ("/v1/take", {"mark_ms": 1, "lease_ttl_ms": 0, "home": "/"}, "lease_ttl_ms"),
        ("/v1/take", {"mark_ms": 1, "lease_ttl_ms": 5, "home": "/", "more": 1}, "more"),
        ("/v1/take", [], "body"),
    ],
)
async def test_bad_bodies(manager: Manager, path: str, body: object, field: str) -> None:
    """Proves: D-03. One line that names the field."""
    told = await manager.activation().call("POST", path, body)
    told.refused(422, "invalid_request")
    assert field in told["detail"]


async def test_malformed_requests(manager: Manager) -> None:
    """Proves: K-08. Whatever is said, the answer is a refusal and the server goes on."""
    for data, status in (
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /v1/mark HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n", b"400"),
        (head(manager, "GET /v1/mark", "connection: Upgrade", "upgrade: h2c"), b"400"),
        (head(manager, "GET /v1/mark", *[f"h{n}: {'x' * 1000}" for n in range(100)]), b"431"),
        (head(manager, "GET /v1/mark")[:-2] + b"endless: " + b"x" * 900_000, b"431"),
        (head(manager, "PUT /v1/secrets", "transfer-encoding: chunked") + b"1;" + b"x" * 900_000, b"431"),
        (head(manager, "PUT /v1/secrets", "transfer-encoding: chunked") + b"0\r\nt: " + b"x" * 900_000, b"431"),
        (head(manager, "PUT /v1/secrets", "content-length: 99999999") + b"x" * 9_000_000, b"413"),
        (b"\x16\x03\x01\x00\xa5\x01\x00", b"400"),
    ):
        answer = await exchange(manager, data)
        assert answer.startswith(b"HTTP/1.1 " + status), (data[:60], answer[:80])
        assert b"connection: close" in answer
    await manager.state()


async def test_keep_alive_and_pipelining(manager: Manager) -> None:
    """Proves: K-08. Requests on one connection are answered in their order, also when they are sent at once."""
    many = (
        head(manager, "GET /v1/mark") * 40
        + head(manager, "GET /nowhere")
        + head(manager, "GET /v1/mark", "connection: close")
    )
    answer = await exchange(manager, many)
    statuses = [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200"] * 40 + [b"404", b"200"]
    chunked = head(manager, "PUT /v1/secrets", "transfer-encoding: chunked", "connection: close")
    body = json.dumps({"values": {"A": "b"}}).encode()
    pieces = b"".join(b"%x\r\n%b\r\n" % (1, body[i : i + 1]) for i in range(len(body))) + b"0\r\n\r\n"
    assert (await exchange(manager, chunked + pieces)).startswith(b"HTTP/1.1 200")


async def test_slow_reader_costs_no_memory(manager: Manager) -> None:
    """Proves: D-08. A walk of 150 MB into a client that does not read is held back, and is whole when it is read."""
    for number in range(15):
        (manager.workdir / str(number)).write_bytes(bytes([number]) * 10_000_000)

    def resident() -> int:
        assert manager.process is not None
        status = Path(f"/proc/{manager.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024

    before = resident()

    def slow() -> bytes:
        with raw(manager) as sock:
            sock.sendall(head(manager, "GET /v1/snapshot?workdir=project", "connection: close"))
            first = sock.recv(1000)
            stalled.set()
            resume.wait(10)
            return first + receive(sock)

    stalled, resume = Flag(), Flag()
    reading = asyncio.create_task(asyncio.to_thread(slow))
    await until(stalled.is_set)
    await asyncio.sleep(0.5)
    assert resident() - before < 20_000_000
    resume.set()
    answer = await reading
    assert len(answer) > 150_000_000
    assert answer.endswith(b"0\r\n\r\n")


class Flag:
    """A flag between a thread and a test."""

    def __init__(self) -> None:
        import threading

        self._event = threading.Event()
        self.set = self._event.set
        self.is_set = self._event.is_set
        self.wait = self._event.wait


async def test_client_that_leaves_does_not_undo_a_take(manager: Manager) -> None:
    """Proves: D-03. The barrier is passed to its end even if nobody hears the answer; asked again it is the same."""
    old = manager.activation()
    (await old.take()).ok()
    (await old.session()).ok()
    (await old.prompt("/run sleep 1000")).ok()
    worker = old.next()
    with pytest.raises(httpx2.TimeoutException):
        await worker.call(
            "POST", "/v1/take", {"mark_ms": 1, "lease_ttl_ms": 10**9, "home": str(manager.home)}, timeout=0.001
        )
    (await worker.take()).ok()
    assert manager.below() == []


async def test_too_many_connections(manager: Manager) -> None:
    """Proves: K-08. Connections are bounded; when some have gone there is room again."""
    open_ones: list[socket.socket] = []
    while len(open_ones) < 300:
        try:
            open_ones.append(raw(manager))
        except BlockingIOError:  # the listener's queue is full: the manager has its turn
            await asyncio.sleep(0.01)
    answer = b""
    with contextlib.suppress(OSError):  # closed without an answer
        open_ones[-1].sendall(head(manager, "GET /v1/mark"))
        answer = open_ones[-1].recv(100)
    assert answer == b""
    for sock in open_ones:
        sock.close()
    for _ in range(100):
        try:
            await manager.state()
            return
        except httpx2.TransportError:
            await asyncio.sleep(0.05)
    raise AssertionError("there is no room again")
