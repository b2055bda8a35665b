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

from turnkeeper.client.http import AsyncStream, ConnectionFailed
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
    watch = asyncio.create_task(exchange.abort_when_left())
    try:
        await exchange.run()
        return
    except ConnectionFailed as error:
        if exchange.left:
            return
        why = error.kind
    finally:
        watch.cancel()
    log.warning("manager_call_failed", sandbox_id=live.instance.sandbox_id, error_class=why, answered=exchange.started)
    if not exchange.started:  # else the connection that ends in the middle says it
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
        self.left = False
        self._live = live
        self._target = target
        self._scope = scope
        self._receive = receive
        self._send = send
        self._received = asyncio.Event()
        self._task = asyncio.current_task()
        self._answer: AsyncStream | None = None

    async def abort_when_left(self) -> None:
        """When the caller is gone, end the call to the manager. The request is read to its end by `run` before."""
        await self._received.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.left = True
        if self._answer is not None:
            self._answer.abort()
        elif self._task is not None:
            self._task.cancel()  # it waits for the head of an answer

    async def run(self) -> None:
        """Send the request, hand over the answer."""
        sent = [(name, value) for name, value in self._scope["headers"] if name not in _NOT_SENT]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in sent}
        query: bytes = self._scope["query_string"]
        target = "/" + self._target.decode("ascii") + ("?" + query.decode("latin-1") if query else "")
        try:
            content = self._content(await self._receive(), headers)
            async with self._live.http.forward(self._scope["method"], target, content, headers) as answer:
                self._answer = answer
                await self._hand_over(answer)
        except _CallerLeftError:
            return
        except asyncio.CancelledError:
            if not self.left:
                raise

    async def _hand_over(self, answer: AsyncStream) -> None:
        self.started = True
        headers = [pair for pair in answer.pairs if pair[0] not in _NOT_RETURNED]
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
        async for chunk in answer.chunks():
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _content(self, first: Message, headers: dict[str, str]) -> bytes | AsyncIterator[bytes]:
        """A body that is here as a whole as bytes, else piece by piece, with the length that was announced."""
        if first["type"] == "http.disconnect":
            raise _CallerLeftError
        if not first.get("more_body", False):
            self._received.set()
            return first.get("body", b"")
        for name, value in self._scope["headers"]:
            if name == b"content-length":
                headers["content-length"] = value.decode("latin-1")
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
