"""How the simulated peers answer one request: as usual, or badly."""

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.peer_server import Handler

JSON = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One request as it arrived. `at`: seconds of the monotonic clock. `name`: the route's last word."""

    name: str
    method: str
    path: str
    at: float
    body: JSON
    token: str | None
    activation_token: str | None
    query: Mapping[str, str]
    mark: float = 0.0


class Behaviour:
    """How one request is answered. The base: as usual."""

    def respond(self, handler: "Handler", usual: Callable[[], "Reply"]) -> None:
        handler.send_reply(usual())


@dataclass(frozen=True)
class Reply:
    status: int
    body: JSON | None = None
    content_type: str = "application/json"


@dataclass(frozen=True)
class Answers(Behaviour):
    """This answer, and nothing done."""

    status: int
    body: JSON | None = None

    def respond(self, handler: "Handler", usual: Callable[[], Reply]) -> None:  # noqa: ARG002
        handler.send_reply(Reply(self.status, self.body))


def problem(status: int, code: str, **extra: Any) -> Reply:
    """A problem as the product's servers send it."""
    body = {"title": code, "status": status, "code": code, "retryable": status in (502, 503, 504), **extra}
    return Reply(status, body, "application/problem+json")


@dataclass(frozen=True)
class Refuses(Behaviour):
    """A problem, and nothing done."""

    status: int
    code: str
    detail: str = ""

    def respond(self, handler: "Handler", usual: Callable[[], Reply]) -> None:  # noqa: ARG002
        handler.send_reply(problem(self.status, self.code, detail=self.detail))


@dataclass(frozen=True)
class Cuts(Behaviour):
    """The connection ends without an answer; `done` says whether the request was carried out before."""

    done: bool = False

    def respond(self, handler: "Handler", usual: Callable[[], Reply]) -> None:
        if self.done:
            usual()
        handler.cut()


@dataclass(frozen=True)
class Hangs(Behaviour):
    """No answer until the peers close, or `release` is set."""

    release: threading.Event = field(default_factory=threading.Event)
    done: bool = False

    def respond(self, handler: "Handler", usual: Callable[[], Reply]) -> None:
        if self.done:
            usual()
        with handler.blocking():
            while not self.release.wait(0.02) and not handler.peers.closing.is_set() and not handler.gone():
                pass
        if self.release.is_set() and not self.done:
            handler.send_reply(usual())
        else:
            handler.cut()


@dataclass(frozen=True)
class Late(Behaviour):
    """As `then`, after a while."""

    after_s: float
    then: Behaviour

    def respond(self, handler: "Handler", usual: Callable[[], Reply]) -> None:
        with handler.blocking():
            handler.peers.closing.wait(self.after_s)
        self.then.respond(handler, usual)


@dataclass(frozen=True)
class Trickles(Behaviour):
    """An answer that never ends: one byte at a time."""

    every_s: float = 0.05

    def respond(self, handler: "Handler", usual: Callable[[], Reply]) -> None:  # noqa: ARG002
        with contextlib.suppress(OSError), handler.blocking():
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
            while not handler.peers.closing.wait(self.every_s) and not handler.gone():
                handler.wfile.write(b" ")
                handler.wfile.flush()
        handler.cut()


@dataclass(frozen=True)
class Calls(Behaviour):
    """Does something of the test's first, then answers as usual."""

    action: Callable[[], object]

    def respond(self, handler: "Handler", usual: Callable[[], Reply]) -> None:
        self.action()
        handler.send_reply(usual())
