"""What stands around every part: the name under which we are asked, the last answer to a defect, and the measuring."""

import ipaddress
import re
from collections.abc import Collection
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnkeeper.api.languages import language_of
from turnkeeper.api.metrics import Metrics
from turnkeeper.api.problems import ProblemRaised, problem_response, shown
from turnkeeper.domain.errors import ProblemCode
from turnkeeper.kit.clock import system_clock
from turnkeeper.kit.ids import new_id
from turnkeeper.kit.log import get_logger

_PORT = re.compile(r":[0-9]{0,5}$")
_ANSWERED = "turnkeeper.answered_failure"

_log = get_logger("api.guard")


class RequestGuard:
    """Makes the wrappers. `allowed_hosts` as in `ApiSettings`."""

    def __init__(self, metrics: Metrics, allowed_hosts: Collection[str] | None) -> None:
        self._metrics = metrics
        self._allowed_hosts = allowed_hosts

    def around(self, part: ASGIApp, *, check_host: bool) -> ASGIApp:
        """`part`, guarded. Without `check_host` any name will do: what the part serves needs a token that no browser has."""
        return _Guarded(part, self._metrics, self._allowed_hosts if check_host else None)


class _Guarded:
    def __init__(self, part: ASGIApp, metrics: Metrics, allowed_hosts: Collection[str] | None) -> None:
        self._part = part
        self._metrics = metrics
        self._allowed_hosts = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = system_clock.monotonic()
        sent = _Sent(send)
        try:
            if self._allowed_hosts is not None:
                check_host(scope, self._allowed_hosts)
            await self._part(scope, receive, sent)
        except ProblemRaised as problem:
            await problem.response(language_of(scope))(scope, receive, sent)
        except Exception as failure:
            await self._answer_failure(failure, scope, receive, sent)
        finally:
            if not sent.is_stream:
                template = route_template(scope)
                took = system_clock.monotonic() - begun
                self._metrics.requests.labels(scope["method"], template, str(sent.status)).observe(took)

    async def _answer_failure(self, failure: Exception, scope: Scope, receive: Receive, sent: "_Sent") -> None:
        if scope.get(_ANSWERED) is failure:
            return  # FastAPI answers first and then raises it again
        response = failure_response(failure, scope, self._metrics)
        if sent.status == 0:
            await response(scope, receive, sent)


def _place(scope: Scope) -> str:
    """The route in a log: its name within the API, and no address (E-02)."""
    return route_template(scope).removeprefix("/v1/")


def failure_response(failure: Exception, scope: Scope, metrics: Metrics) -> Response:
    """The answer to an exception that nobody expected, which is logged here, once, and never shown."""
    scope[_ANSWERED] = failure
    if isinstance(failure, ClientDisconnect):
        return problem_response(ProblemCode.BAD_REQUEST, "the client left before its request was whole")  # to nobody
    if is_outage(failure):
        _log.warning("database_unavailable", route=_place(scope), exception=type(failure).__name__)
        return problem_response(
            ProblemCode.UPSTREAM_UNAVAILABLE, "the database does not answer; try again", language=language_of(scope)
        )
    error_id = new_id()
    metrics.internal_errors.inc()
    _log.error("request_failed", error_id=error_id, route=_place(scope), method=scope["method"], exc_info=failure)
    return problem_response(
        ProblemCode.INTERNAL,
        f"the operator finds it in the log as error_id {error_id}",
        language=language_of(scope),
        extra={"error_id": error_id},
    )


class _Sent:
    """A `send` that remembers the status, 0 while none was sent, and whether the answer is an event stream."""

    __slots__ = ("_send", "is_stream", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.is_stream = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = int(message["status"])
            headers: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
            self.is_stream = any(k == b"content-type" and v.startswith(b"text/event-stream") for k, v in headers)
        await self._send(message)


def route_template(scope: Scope) -> str:
    """The template of the route that answered, never the path itself: a path may be anything."""
    route: Any = scope.get("route")
    return str(getattr(route, "path", "")) or "unknown"


def host_name(scope: Scope) -> str:
    """The name by which the request asks, without its port and in lower case; empty where it says none."""
    return _PORT.sub("", _host(scope)).lower()


def _host(scope: Scope) -> str:
    return next((v for k, v in scope["headers"] if k == b"host"), b"").decode("latin-1")


def check_host(scope: Scope, allowed: Collection[str]) -> None:
    """`ProblemRaised` where the request names another host: a page elsewhere may have made its name point here."""
    value = _host(scope)
    name = host_name(scope)
    if name not in allowed and name != _reached_at(scope):
        names = ", ".join(sorted(allowed))
        raise ProblemRaised(
            ProblemCode.HOST_NOT_ALLOWED,
            f"Host is {shown(value)}: this server answers to {names}; "
            "add a name with `turnkeeper up --allowed-host NAME` or TURNKEEPER_ALLOWED_HOSTS",
            field="host",
        )


def _reached_at(scope: Scope) -> str | None:
    """The address of ours that this connection came to, as a browser writes it. An address cannot be made to point elsewhere."""
    try:
        address = ipaddress.ip_address(str((scope.get("server") or ("",))[0]))
    except ValueError:
        return None
    if address.version == 6 and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return f"[{address}]" if address.version == 6 else str(address)


def is_outage(failure: Exception) -> bool:
    """Whether the database could not be used for now, as opposed to a defect of ours."""
    return bool(getattr(failure, "retryable", False))
