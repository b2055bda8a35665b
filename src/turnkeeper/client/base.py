"""What the blocking and the asynchronous client share: addresses, times, and how an answer becomes a value or a failure."""

import contextlib
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from pydantic import BaseModel, ValidationError

from turnkeeper.client.failures import CallError, ClientError, ConnectionFailed
from turnkeeper.client.response import Response, TransportError, head_of
from turnkeeper.domain.errors import InvariantViolation
from turnkeeper.kit import failpoint
from turnkeeper.kit.outside import open_transaction
from turnkeeper.wire.problem import PROBLEM_MEDIA_TYPE, Problem

ANSWER_BYTES_MAX: Final = 64 << 20
PROBLEM_BYTES_MAX: Final = 256 << 10
LINE_BYTES_MAX: Final = 32 << 20
KEEP_ALIVE_S: Final = 4.0  # below the 5 s after which a server with uvicorn's default closes an idle connection

_WORD = re.compile(r"[a-z][a-z_-]*")

A = TypeVar("A", bound=BaseModel)
Body = BaseModel | bytes | None
Params = Mapping[str, str | int | float | bool]
Headers = Mapping[str, str]


@dataclass(frozen=True)
class Address:
    """Where a peer listens. `socket_path` is set for `unix:`, else host and port are; `prefix` precedes every path."""

    socket_path: Path | None = None
    host: str = ""
    port: int = 0
    secure: bool = False
    prefix: str = ""

    @property
    def authority(self) -> str:
        """For the `Host` header."""
        if self.socket_path is not None:
            return "unix"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        if self.socket_path is not None:
            return f"unix:{self.socket_path}"
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.prefix}"


@dataclass(frozen=True)
class Timeouts:
    """Seconds. `call` bounds a whole call; `read` the silence in which a request is sent."""

    call: float = 30.0
    connect: float = 5.0
    read: float = 30.0


DEFAULT_TIMEOUTS: Final = Timeouts()


@dataclass(frozen=True)
class Reply:
    """A whole answer. Header names are in lower case."""

    status: int
    headers: Headers
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
        return Address(Path(name))
    wrong = ValueError(f"{url!r} is no address; use http://host:port, https://host or unix:/path")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    plain = not parts.username and not parts.query and not parts.fragment and url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not host or not plain:
        raise wrong
    secure = parts.scheme == "https"
    return Address(None, host, port if port is not None else 443 if secure else 80, secure, parts.path.rstrip("/"))


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
        self.headers = dict(headers or {})
        if token is not None:
            self.headers["Authorization"] = f"Bearer {token}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.address})"

    def whole_request(
        self, method: str, name: str, body: Body, params: Params | None, headers: Headers | None
    ) -> bytes:
        """A request with its body, as it is sent. `TransportError` `LocalProtocolError` where that cannot be."""
        sent = {**self.headers, **(headers or {})}
        content = b""
        if isinstance(body, BaseModel):
            content = body.model_dump_json().encode()
            sent.setdefault("Content-Type", "application/json")
        elif body is not None:
            content = body
        if content or method not in ("GET", "DELETE"):
            sent["Content-Length"] = str(len(content))
        return self.head(method, name, params, sent) + b"\r\n" + content

    def head(self, method: str, name: str, params: Params | None, headers: Headers) -> bytes:
        """The head of a request, without its empty line."""
        target = self.address.prefix + name
        if params:
            texts = {key: str(value).lower() if isinstance(value, bool) else value for key, value in params.items()}
            target += ("&" if "?" in target else "?") + urlencode(texts)
        return head_of(method, target, self.address.authority, headers.items())


def refuse_in_transaction(operation: str) -> None:
    """No transaction is held across a call to anything outside PostgreSQL (protocol, section 1): a defect of ours."""
    name = open_transaction()
    if name is not None:
        raise InvariantViolation(f"{operation} called inside the transaction {name}")


class Departure:
    """Whether any byte of this request may have left."""

    def __init__(self) -> None:
        self.sent = False


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


def fail_before(operation: str) -> None:
    """The failpoint of a call that is about to be sent. Dropped, nobody can know that it never was."""
    point = failpoint.of_call(operation)
    if point is not None and failpoint.before(point):
        raise ConnectionFailed(operation, "WriteError", sent=True)


def fail_after(operation: str) -> None:
    """The failpoint of a call whose answer is here. Dropped, the answer is lost."""
    point = failpoint.of_call(operation)
    if point is not None and failpoint.after(point):
        raise ConnectionFailed(operation, "ReadError", sent=True)


@contextlib.contextmanager
def transport_failures(
    operation: str, departure: Departure | None, interrupted: Callable[[], bool] = lambda: False
) -> Generator[None]:
    """The transport's exceptions as ours. `departure` None: the request is long since sent."""
    try:
        yield
    except TransportError as error:
        sent = departure is None or departure.sent
        kind = "Interrupted" if interrupted() else error.kind
        raise ConnectionFailed(operation, kind, sent=sent) from error


def checked(operation: str, response: Response, content: bytes) -> Reply:
    """The reply, or the refusal that it is."""
    status, headers = response.status, response.headers
    if 200 <= status < 300:
        return Reply(status, headers, content)
    if headers.get("content-type", "").partition(";")[0].strip() == PROBLEM_MEDIA_TYPE:
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

    def __init__(self, operation: str, status: int) -> None:
        self._operation = operation
        self._status = status
        self._left = ANSWER_BYTES_MAX if status < 400 else PROBLEM_BYTES_MAX
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
