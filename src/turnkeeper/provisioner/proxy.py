"""The proxy to a sandbox's manager: of exactly one generation, streaming both ways, never buffering (protocol, section 5).

`Authorization` becomes the per-sandbox secret; the activation token passes in its own header. Nothing reaches the manager
but a path of plain words, so that no encoding or dot can mean another route there than the one that was allowed here. A
caller that leaves ends the call to the manager at once, also while that has nothing to say.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from turnkeeper.client.http import CallError, ConnectionFailed
from turnkeeper.domain.errors import ProblemCode
from turnkeeper.kit.log import get_logger
from turnkeeper.provisioner.live import Live
from turnkeeper.provisioner.outcomes import Refused
from turnkeeper.provisioner.problems import problem
from turnkeeper.provisioner.service import Service

log = get_logger("provisioner.proxy")

_PREFIX = re.compile(rb"/v1/sandboxes/[^/]+/[^/]+/manager/")
_TARGET = re.compile(rb"v1(?:/[A-Za-z0-9_-]+)+")
_CONTROL_ONLY: Final = (b"v1/secrets", b"v1/snapshot")
"""What the provisioner itself asks of a manager; no attempt's token opens it."""

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NOT_SENT: Final = _HOP_BY_HOP | {
    b"host",
    b"authorization",
    b"content-length",
    b"expect",
    b"accept-encoding",
    b"cookie",
}
_NOT_RETURNED: Final = _HOP_BY_HOP | {b"date", b"server"}


def target_of(raw_path: bytes) -> bytes | None:
    """The manager's path within the proxy's, without its leading slash; None where it is not made of plain words."""
    found = _PREFIX.match(raw_path)
    if found is None:
        return None
    rest = raw_path[found.end() :]
    return rest if _TARGET.fullmatch(rest) else None


def is_control_only(target: bytes) -> bool:
    """Whether only the administrator may ask this."""
    return target in _CONTROL_ONLY


async def forward(service: Service, live: Live, target: bytes, scope: Scope, receive: Receive, send: Send) -> None:
    """Carry one call through. `target` comes from `target_of`."""
    exchange = _Exchange(live, target, scope, receive, send)
    work = asyncio.create_task(exchange.run())
    watch = asyncio.create_task(exchange.wait_for_leaving())
    try:
        await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (work, watch):
            task.cancel()
        await asyncio.wait({work, watch})
    failure = None if work.cancelled() else work.exception()
    if watch.done() and not watch.cancelled():
        watch.exception()
    if failure is None:
        return
    if not isinstance(failure, CallError):
        raise failure
    log.warning(
        "manager_call_failed",
        sandbox_id=live.instance.sandbox_id,
        error_class=failure.kind if isinstance(failure, ConnectionFailed) else type(failure).__name__,
        answered=exchange.started,
    )
    if not exchange.started:  # else the cut connection says it
        await problem(await _why(service, live))(scope, receive, send)


async def _why(service: Service, live: Live) -> Refused:
    """The manager gave no answer: whether it has ended is for the backend to say, not for the silence (K-05)."""
    name, generation = live.instance.sandbox_id, live.instance.generation
    await service.live.drop(name)
    found = await service.running(name, generation)
    if isinstance(found, Refused):
        return found
    return Refused(ProblemCode.UPSTREAM_UNAVAILABLE, f"the manager of sandbox {name} did not answer")


class _CallerLeftError(Exception):
    """In the middle of its request."""


class _Exchange:
    def __init__(self, live: Live, target: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        self.started = False
        self._live = live
        self._target = target
        self._scope = scope
        self._receive = receive
        self._send = send
        self._received = asyncio.Event()

    async def wait_for_leaving(self) -> None:
        """Returns when the caller is gone. Its request must have been read before, by the other task."""
        await self._received.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def run(self) -> None:
        headers = [(name, value) for name, value in self._scope["headers"] if name not in _NOT_SENT]
        method: str = self._scope["method"]
        query: bytes = self._scope["query_string"]
        target = "/" + self._target.decode("ascii") + ("?" + query.decode("latin-1") if query else "")
        try:
            first = await self._receive()
            content = self._content(first, headers)
            async with self._live.http.forward(method, target, content, headers) as stream:
                self.started = True
                await self._send(
                    {
                        "type": "http.response.start",
                        "status": stream.status,
                        "headers": [pair for pair in _lower(stream.headers.raw) if pair[0] not in _NOT_RETURNED],
                    }
                )
                async for chunk in stream.chunks():
                    await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        except _CallerLeftError:
            return

    def _content(self, first: Message, headers: list[tuple[bytes, bytes]]) -> bytes | AsyncIterator[bytes]:
        """A body that is here as a whole as bytes, else piece by piece, with the length that was announced."""
        if first["type"] == "http.disconnect":
            raise _CallerLeftError
        if not first.get("more_body", False):
            self._received.set()
            return first.get("body", b"")
        length = [pair for pair in self._scope["headers"] if pair[0] == b"content-length"]
        headers += length or [(b"transfer-encoding", b"chunked")]
        return self._pieces(first)

    async def _pieces(self, message: Message) -> AsyncIterator[bytes]:
        while True:
            if message["type"] == "http.disconnect":
                raise _CallerLeftError
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body", False):
                self._received.set()
                return
            message = await self._receive()


def _lower(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in headers]
