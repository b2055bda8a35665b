"""The proxy to a manager: what passes and what does not, streaming both ways, and who ends a call that nobody wants."""

import asyncio
import contextlib
import itertools
import json
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from provisioner.serving import Scope, Served, Signing
from turnkeeper.client.http import AsyncHttpClient, ClientError, ConnectionFailed
from turnkeeper.client.provisioner import Manager
from turnkeeper.provisioner.proxy import target_of
from turnkeeper.wire.provisioner import ACTIVATION_HEADER, Sandbox


@pytest.fixture
async def sandbox(served: Served) -> Sandbox:
    return await served.ensure(Scope())


def base(sandbox: Sandbox) -> str:
    return f"/v1/sandboxes/{sandbox.sandbox_id}/{sandbox.generation}/manager"


async def echo(http: AsyncHttpClient, sandbox: Sandbox, **more: Any) -> dict[str, Any]:
    reply = await http.request("POST", f"{base(sandbox)}/v1/test/echo", **more)
    answer: dict[str, Any] = json.loads(reply.content)
    return answer


async def test_headers_and_query(served: Served, sandbox: Sandbox) -> None:
    """Proves: K-11. The caller's token is replaced by the sandbox's secret; activation and the rest pass, hops do not."""
    live = served.process.service.live.get(sandbox.sandbox_id)
    assert live is not None
    async with served.client() as http:
        answer = await echo(
            http,
            sandbox,
            body=b"hello",
            headers={ACTIVATION_HEADER: "token-of-the-turn", "Cookie": "a=b", "TE": "trailers", "X-Other": "1"},
            params={"after": 7},
        )
    headers = answer["headers"]
    assert headers["authorization"] == f"Bearer {live.instance.manager.secret}"
    assert headers[ACTIVATION_HEADER.lower()] == "token-of-the-turn"
    assert headers["x-other"] == "1"
    assert not {"cookie", "te"} & set(headers)
    assert served.settings.admin_token not in json.dumps(answer)
    assert (answer["body"], answer["path"]) == (5, "/v1/test/echo?after=7")


async def test_big_bodies_pass_in_pieces(served: Served, sandbox: Sandbox) -> None:
    """A body of 20 MB, sent in pieces of unknown number, arrives whole; the one that is too short is not a request."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 1_000_000

    async with served.client() as http, http.forward("POST", f"{base(sandbox)}/v1/test/echo", pieces(), {}) as stream:
        answer = json.loads(b"".join([chunk async for chunk in stream.chunks()]))
    assert answer["body"] == 20_000_000


async def test_lines_come_as_they_are_written(served: Served, sandbox: Sandbox) -> None:
    """An open stream is never buffered: each line arrives long before the next one is written."""
    arrived: list[float] = []
    async with (
        served.client() as http,
        http.stream("GET", f"{base(sandbox)}/v1/test/stream", params={"n": 4, "pause_ms": 300}) as stream,
    ):
        async for line in stream.lines():
            assert json.loads(line)["n"] == len(arrived)
            arrived.append(time.monotonic())
    assert len(arrived) == 4
    assert all(later - earlier > 0.1 for earlier, later in itertools.pairwise(arrived))


@pytest.mark.parametrize("name", ["slow?s=30", "stream?n=1000&pause_ms=20"])
async def test_caller_that_leaves_ends_the_call(served: Served, sandbox: Sandbox, name: str) -> None:
    """A caller that goes away, before the answer or in the middle of it, ends the call to the manager at once."""
    async with served.client() as http:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5), http.forward("GET", f"{base(sandbox)}/v1/test/{name}", b"", {}) as stream:
                async for _ in stream.chunks():
                    pass
    async with served.client() as http:
        left: list[str] = []
        for _ in range(100):
            left = json.loads((await http.request("GET", f"{base(sandbox)}/v1/test/left")).content)
            if left:
                break
            await asyncio.sleep(0.02)
    assert left == [name.partition("?")[0]]


async def test_slow_reader_slows_the_writer(served: Served, sandbox: Sandbox) -> None:
    """Backpressure: of an endless answer that nobody reads, only what the buffers hold is taken from the manager."""
    address = str(served.settings.directory / "p.sock")
    reader = socket.socket(socket.AF_UNIX)
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(address)
    with reader:
        request = f"GET {base(sandbox)}/v1/test/flood HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.settings.admin_token}\r\n\r\n"
        reader.sendall(request.encode())
        assert reader.recv(100).startswith(b"HTTP/1.1 200")
        sent = -1
        async with served.client() as http:
            for _ in range(100):
                before, sent = sent, int((await http.request("GET", f"{base(sandbox)}/v1/test/flooded")).content)
                if sent == before:
                    break
                await asyncio.sleep(0.1)
        assert 0 < sent < 8_000_000


async def test_connections_are_kept(served: Served, sandbox: Sandbox) -> None:
    """Calls one after another use one connection to the manager."""
    async with served.client() as http:
        ports = {(await http.request("GET", f"{base(sandbox)}/v1/test/connection")).content for _ in range(10)}
    assert len(ports) == 1


async def test_manager_that_dies_in_the_middle(served: Served, sandbox: Sandbox) -> None:
    """A manager that ends in the middle of an answer cuts the caller's connection; afterwards the sandbox is gone (410)."""

    async def read_and_end(http: AsyncHttpClient) -> None:
        async with http.stream("GET", f"{base(sandbox)}/v1/test/stream", params={"n": 1000, "pause_ms": 20}) as stream:
            async for _ in stream.lines():
                with contextlib.suppress(ConnectionFailed, ClientError):
                    await http.request("POST", f"{base(sandbox)}/v1/test/exit", body=b'{"status": 1}')

    async with served.client() as http:
        with pytest.raises(ConnectionFailed):
            await read_and_end(http)
        status = 503
        while status == 503:  # the launcher is still on its way out
            with pytest.raises(ClientError) as caught:
                await http.request("GET", f"{base(sandbox)}/v1/state")
            status = caught.value.status
    assert status == 410


async def test_problems_of_the_manager_pass(served: Served, sandbox: Sandbox) -> None:
    """A problem of the manager reaches the caller as it is."""
    async with served.client() as http:
        with pytest.raises(ClientError) as caught:
            await http.request("GET", f"{base(sandbox)}/v1/nothing")
    assert (caught.value.status, caught.value.code) == (404, "not_found")


async def test_worker_client_through_the_proxy(served: Served, signing: Signing) -> None:
    """The typed client speaks to the manager with an attempt's token; secrets and walks stay with the control plane."""
    scope = Scope()
    sandbox = await served.ensure(scope)
    token = signing.token(scope.uid, scope.scope)
    manager = Manager(served.url, token, sandbox_id=sandbox.sandbox_id, generation=sandbox.generation)
    with contextlib.closing(manager):
        assert (await asyncio.to_thread(manager.mark, timeout_s=10)).mark_ms > 0
    async with served.client(token) as http:
        for method, name in (("PUT", "secrets"), ("GET", "snapshot?workdir=project")):
            with pytest.raises(ClientError) as caught:
                await http.request(method, f"{base(sandbox)}/v1/{name}")
            assert caught.value.status == 403


@pytest.mark.parametrize(
    "rest",
    [
        "",
        "v1",
        "v1/",
        "v1//take",
        "v1/../secrets",
        "v1/%2e%2e/x",
        "v1/test%2fecho",
        "v1/..%2f..%2fx",
        "v1/take%00",
        "v1/take;x",
        "/v1/take",
        "http://other/v1/take",
        "v1/take\\x",
        "v2/take",
    ],
)
async def test_paths_of_other_than_plain_words(served: Served, sandbox: Sandbox, rest: str) -> None:
    """Case: F14. A path that could mean another route at the manager is refused before anything is sent."""
    assert target_of(f"{base(sandbox)}/{rest}".encode()) is None
    request = f"GET {base(sandbox)}/{rest} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.settings.admin_token}\r\nConnection: close\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(served.settings.directory / "p.sock"))
        sock.sendall(request.encode("latin-1"))
        sock.settimeout(10)
        status = sock.recv(20)
    assert status.split()[1] in (b"400", b"404"), status
