"""What the blocking and the asynchronous client share: addresses, times, and how an answer becomes a value or a failure."""

import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import BaseModel, ValidationError

from turnkeeper.client.failures import CallError, ClientError, ConnectionFailed
from turnkeeper.domain.errors import InvariantViolation
from turnkeeper.kit.outside import open_transaction
from turnkeeper.kit.sockets import unix_address
from turnkeeper.wire.problem import PROBLEM_MEDIA_TYPE, Problem

ANSWER_BYTES_MAX: Final = 64 << 20
PROBLEM_BYTES_MAX: Final = 256 << 10
LINE_BYTES_MAX: Final = 32 << 20
KEEP_ALIVE_S: Final = 4.0  # below the 5 s after which a server with uvicorn's default closes an idle connection
CONNECTIONS_MAX: Final = 64

_JSON: Final = "application/json"
_WORD = re.compile(r"[a-z][a-z_-]*")

A = TypeVar("A", bound=BaseModel)
Body = BaseModel | bytes | None
Params = Mapping[str, str | int | float | bool]
Headers = Mapping[str, str]


@dataclass(frozen=True)
class Address:
    """Where a peer listens. `socket_path` is set for `unix:`; `base` is the URL that requests are made with."""

    base: str
    socket_path: Path | None = None


@dataclass(frozen=True)
class Timeouts:
    """Seconds. `call` bounds a whole asynchronous call; `read` the silence within one, blocking or not."""

    call: float = 30.0
    connect: float = 5.0
    read: float = 30.0

    def transport(self, read: float | None) -> httpx2.Timeout:
        """As the transport wants it; `read` None: silence is allowed."""
        return httpx2.Timeout(connect=self.connect, read=read, write=self.read, pool=self.connect)


DEFAULT_TIMEOUTS: Final = Timeouts()


@dataclass(frozen=True)
class Reply:
    """A whole answer."""

    status: int
    headers: httpx2.Headers
    content: bytes


class LineTooLongError(CallError):
    """A line of a stream is longer than the caller takes; the stream cannot go on."""

    def __init__(self, operation: str, bytes_max: int) -> None:
        super().__init__(operation, f"a line is longer than {bytes_max} bytes", retryable=False)


def parse_address(url: str) -> Address:
    """`http://host:port[/base]`, `https://…` or `unix:/absolute/path`; a `ValueError` with one clear line otherwise."""
    if url.startswith("unix:"):
        name = url.removeprefix("unix:")
        if not name.startswith("/") or "\0" in name:
            raise ValueError(f"{url!r} is no address: unix: is followed by an absolute path, such as unix:/run/x.sock")
        return Address("http://unix", Path(name))
    try:
        parsed = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise ValueError(f"{url!r} is no address: {error}") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo or parsed.query or parsed.fragment:
        raise ValueError(f"{url!r} is no address; use http://host:port, https://host or unix:/path")
    return Address(url.rstrip("/"))


def path(template: str, **values: str | int) -> str:
    """`template` with its `{names}` replaced by values, each quoted as one path segment (F14).

    A value that is empty, `.` or `..` names no segment that a server would see, and is a `ValueError`.
    """
    quoted: dict[str, str] = {}
    for name, value in values.items():
        text = str(value)
        if text in ("", ".", ".."):
            raise ValueError(f"{name} cannot be {text!r} in a path")
        quoted[name] = quote(text, safe="")
    return template.format(**quoted)


class ClientBase:
    """A client of one peer. `token` is sent as bearer; `headers` go with every call."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        headers: Headers | None = None,
    ) -> None:
        self.address = parse_address(url)
        self.timeouts = timeouts
        self.headers = {"Accept-Encoding": "identity", **(headers or {})}
        if token is not None:
            self.headers["Authorization"] = f"Bearer {token}"
        self.held = contextlib.ExitStack()  # a directory's descriptor, for a socket path that is too long

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address.socket_path or self.address.base})"

    def transport_options(self) -> dict[str, Any]:
        """What both transports take. Raises OSError where a long path's directory is not there."""
        uds = None
        if self.address.socket_path is not None:
            uds = self.held.enter_context(unix_address(self.address.socket_path))
        secure = self.address.base.startswith("https:")
        context = httpx2.create_ssl_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        limits = httpx2.Limits(
            max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX, keepalive_expiry=KEEP_ALIVE_S
        )
        return {"verify": context, "trust_env": False, "uds": uds, "limits": limits}


def refuse_in_transaction(operation: str) -> None:
    """No transaction is held across a call to anything outside PostgreSQL (protocol, section 1): a defect of ours."""
    name = open_transaction()
    if name is not None:
        raise InvariantViolation(f"{operation} called inside the transaction {name}")


def request_options(
    body: Body | AsyncIterator[bytes], headers: Headers | list[tuple[bytes, bytes]] | None
) -> dict[str, Any]:
    """What `build_request` takes of a body and further headers."""
    if isinstance(body, BaseModel):
        return {"content": body.model_dump_json().encode(), "headers": {"Content-Type": _JSON, **dict(headers or ())}}
    return {"content": body, "headers": headers}


class Departure:
    """Whether any byte of this request may have left."""

    def __init__(self) -> None:
        self.sent = False

    def note(self, event: str) -> None:
        """An event of the transport's trace."""
        if event == "http11.send_request_headers.started":
            self.sent = True


class LineJoiner:
    """Lines out of pieces that are cut anywhere."""

    def __init__(self, operation: str, bytes_max: int) -> None:
        self._operation = operation
        self._bytes_max = bytes_max
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that `chunk` completes, without their newline; `LineTooLongError` where one passes the bound."""
        first, *rest = chunk.split(b"\n")
        self._keep(first)
        for part in rest:
            line = b"".join(self._parts)
            self._parts, self._size = [], 0
            self._keep(part)
            yield line

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._bytes_max:
            raise LineTooLongError(self._operation, self._bytes_max)
        if part:
            self._parts.append(part)


def operation_name(method: str, name: str) -> str:
    """For messages: the last word of the path says what was asked for; ids and queries stay out (E-02)."""
    words = [part for part in name.partition("?")[0].split("/") if _WORD.fullmatch(part)]
    return f"{method} {words[-1] if words else '/'}"


@contextlib.contextmanager
def transport_failures(
    operation: str, departure: Departure | None, interrupted: Callable[[], bool] = lambda: False
) -> Generator[None]:
    """The transport's exceptions as ours. `departure` None: the request is long since sent."""
    try:
        yield
    except (httpx2.TransportError, httpx2.StreamError, OSError) as error:
        if isinstance(error, TimeoutError):
            raise  # the deadline of the whole call, which its owner turns into an answer
        sent = departure is None or departure.sent
        kind = "Interrupted" if interrupted() else type(error).__name__
        raise ConnectionFailed(operation, kind, sent=sent) from error


def checked(operation: str, response: httpx2.Response, content: bytes) -> Reply:
    """The reply, or the refusal that it is."""
    status = response.status_code
    if 200 <= status < 300:
        return Reply(status, response.headers, content)
    if response.headers.get("content-type", "").partition(";")[0].strip() == PROBLEM_MEDIA_TYPE:
        with contextlib.suppress(ValidationError):
            problem = Problem.model_validate_json(content)
            raise ClientError(
                operation,
                status,
                problem.code,
                problem.detail,
                retryable=problem.retryable,
                extra=problem.extra(),
            )
    raise ClientError(operation, status, "unexpected_answer", retryable=status in (408, 429, 502, 503, 504))


def parsed(operation: str, reply: Reply, answer: type[A]) -> A:
    """The reply's body as `answer`."""
    try:
        return answer.model_validate_json(reply.content)
    except ValidationError as error:
        # without the values: they may be anything, and the message would repeat them
        where = ", ".join(".".join(map(str, one["loc"])) or "body" for one in error.errors(include_input=False)[:3])
        raise ClientError(operation, reply.status, "bad_answer", f"not a {answer.__name__}: {where}") from None


class BoundedBody:
    """The pieces of an answer, up to a size that nothing honest reaches."""

    def __init__(self, operation: str, response: httpx2.Response) -> None:
        self._operation = operation
        self._status = response.status_code
        self._left = ANSWER_BYTES_MAX if response.status_code < 400 else PROBLEM_BYTES_MAX
        self._parts: list[bytes] = []

    def add(self, part: bytes) -> None:
        """Keep a piece; `ClientError` `bad_answer` past the bound."""
        self._left -= len(part)
        if self._left < 0:
            raise ClientError(self._operation, self._status, "bad_answer", "the answer is too large")
        self._parts.append(part)

    def whole(self) -> bytes:
        """All of it."""
        return b"".join(self._parts)
